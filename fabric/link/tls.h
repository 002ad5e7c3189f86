// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: TLS 1.3 under links, by OpenSSL: both sides prove themselves with certificates of the cluster's authority.
 *
 * Design: a certificate says who its owner is by one URI, spiffe://CLUSTER/ROLE/NAME. Fabrics are the data plane of workers, so
 *         both must have role "worker", and the same CLUSTER.
 *
 *         Records are OpenSSL's, so it alone decides what of the bytes that come is believed. Its costs beside the cipher are
 *         small: a system call for every record of 16 KiB would be the largest, so it reads and writes through a buffer of several
 *         (tls_buffer.h), and what is written leaves when it is flushed. The cipher is the fastest there is (crypto.h).
 */
#pragma once

#include <openssl/types.h>

#include "fabric/link/link.h"
#include "trust/tls_files.h"

struct sl_tls;

// SL_ERR_INVALID names the file that is not what it should be. The paths are copied.
enum sl_status sl_tls_create(const struct sl_tls_files *files, struct sl_tls **tls_out, struct sl_error *err);
void sl_tls_destroy(struct sl_tls **tls); // accepts NULL, nulls

// With the files as they are now: certificates can be replaced under way. NULL: no memory.
SSL *sl_tls_open(struct sl_tls *tls, int fd, bool connector);
// SL_AGAIN: after *wants_write_out, or something to read. SL_ERR_PEER_CORRUPT: it is not who it should be.
enum sl_status sl_tls_shake_hands(struct sl_tls *tls, SSL *ssl, bool *wants_write_out, struct sl_error *err);
// Bytes that came; 0: none now. *status_out: SL_OK, SL_ERR_PEER_LOST where the other side has ended, SL_ERR_PEER_CORRUPT where
// what came is not TLS.
size_t sl_tls_read(SSL *ssl, void *to, size_t bytes, enum sl_status *status_out);
/*
 * One record, into the buffer: SL_TLS_BATCH_BYTES of them fit behind a flush. False: TLS is over. *n_records_inout: under the key that
 * we send with; the caller keeps it, from 0. Behind SL_TLS_KEY_RECORDS comes a new key.
 */
bool sl_tls_write(SSL *ssl, uint64_t *n_records_inout, const void *from, size_t bytes);
#define SL_TLS_BATCH_BYTES ((size_t)112 << 10)
#define SL_TLS_KEY_RECORDS ((uint64_t)1 << 22) // RFC 8446, 5.5, allows AES-GCM 2^24.5
// To the kernel. SL_AGAIN: it has no room for all of it; SL_ERR_PEER_LOST: errno says why.
enum sl_status sl_tls_flush(SSL *ssl);
