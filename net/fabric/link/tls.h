// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: TLS 1.3 under links, by OpenSSL: both sides authenticate with certificates of the cluster's authority.
 *
 * Design: a certificate identifies its owner by one URI, spiffe://CLUSTER/ROLE/NAME. Fabrics are the data plane of
 *         workers of one CLUSTER. Two prefills have nothing to send each other, and neither have two decodes; a kvstore
 *         serves all. The side that connects expects the name in the address.
 *
 *         OpenSSL handles the records, so it alone decides which received bytes are accepted. Its costs besides the
 *         cipher are small. The largest would be a system call for every record of 16 KiB, so it reads and writes
 *         through a buffer of several records (tls_buffer.h), which is flushed explicitly. The cipher is the fastest
 *         available one (crypto.h).
 */
#pragma once

#include <openssl/types.h>

#include "net/fabric/link/link.h"
#include "net/trust/tls_files.h"

struct sl_tls;

// Reads the files and copies their paths. SL_ERR_INVALID names the invalid file.
enum sl_status sl_tls_create(const struct sl_tls_files *files, struct sl_tls **tls_out, struct sl_error *err);
void sl_tls_destroy(struct sl_tls **tls); // accepts NULL, nulls

// Opens a connection with the current files: certificates can be replaced at run time. NULL: no memory.
SSL *sl_tls_open(struct sl_tls *tls, int fd, bool connector);
// Makes the handshake. SL_AGAIN: call again when it is writable (*wants_write_out) or readable. SL_ERR_PEER_CORRUPT:
// the peer failed authentication. name: the peer's, "" for any.
enum sl_status sl_tls_shake_hands(struct sl_tls *tls, SSL *ssl, const char *name, bool *wants_write_out,
                                  struct sl_error *err);
// Returns true once after the revocation lists were read again: every open connection must be checked.
bool sl_tls_has_new_lists(struct sl_tls *tls);
// Rejects a connection whose other side was revoked, or an authority of it. SL_ERR_DENIED.
enum sl_status sl_tls_check_revoked(const struct sl_tls *tls, SSL *ssl, struct sl_error *err);
// Returns our name in the certificate. It stays when the files are replaced.
const char *sl_tls_name(const struct sl_tls *tls);
// Returns the bytes read; 0: none now. *status_out: SL_OK; SL_ERR_PEER_LOST: the other side has ended;
// SL_ERR_PEER_CORRUPT: the data is not TLS.
size_t sl_tls_read(SSL *ssl, void *to, size_t bytes, enum sl_status *status_out);
/*
 * Writes one record into the buffer: SL_TLS_BATCH_BYTES of them fit after a flush. False: TLS has ended.
 * *n_records_inout: the records under the current sending key; the caller keeps it, from 0. After SL_TLS_KEY_RECORDS a
 * new key is used.
 */
bool sl_tls_write(SSL *ssl, uint64_t *n_records_inout, const void *from, size_t bytes);
#define SL_TLS_BATCH_BYTES ((size_t)112 << 10)
#define SL_TLS_KEY_RECORDS ((uint64_t)1 << 22) // RFC 8446, 5.5, allows AES-GCM 2^24.5
// Flushes to the kernel. SL_AGAIN: it has no room for all of it; SL_ERR_PEER_LOST: errno says why.
enum sl_status sl_tls_flush(SSL *ssl);
