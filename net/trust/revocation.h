// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: rejects certificates that the authority has revoked: a file holds its revocation lists (CRLs, PEM), as
 *          `openssl ca -gencrl` and other authorities make them. Used for gRPC and for the data plane.
 *
 * Design: after TLS has accepted a certificate, we look it up by serial number in its issuer's lists. We do so
 *         ourselves because gRPC reads a list only once. An authority of the CA file must have signed each list. A file
 *         that changes is read again within a second; if it is damaged, the lists stay as they were, and the log says
 *         so. A list past its next update is still used, and the log says so: the certificates that it names stay
 *         revoked, and an attacker who withholds a newer list must not stop the cluster. Servers and fabrics ask for the
 *         edition of the lists several times a second, and check open calls and connections again when it is a new one.
 * Threads: any.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "net/trust/tls_files.h"

struct sl_revocations;
struct x509_st; // OpenSSL's X509

// Opens files->revoked; copies the paths. Without such a file: SL_OK and NULL. SL_ERR_INVALID, SL_ERR_IO: name the file
// and the fault.
enum sl_status sl_revocations_open(const struct sl_tls_files *files, struct sl_revocations **revocations_out,
                                   struct sl_error *err);
void sl_revocations_close(struct sl_revocations **revocations); // accepts NULL, nulls

// Returns a number that changes when the lists were read again; at most a second after the file has changed. 0: there are none.
uint64_t sl_revocations_edition(struct sl_revocations *revocations);
// Checks a certificate. SL_ERR_DENIED: it was revoked. revocations may be NULL, here and below: none was.
enum sl_status sl_revocations_check(struct sl_revocations *revocations, const struct x509_st *certificate,
                                    struct sl_error *err);
// Checks all certificates of a chain in PEM. SL_ERR_DENIED: one was revoked, or the chain is empty.
enum sl_status sl_revocations_check_chain(struct sl_revocations *revocations, const char *pem, size_t bytes,
                                          struct sl_error *err);
