// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: certificates that the authority has taken back, by its lists in a file (CRLs, PEM): `openssl ca -gencrl`, and what other authorities
 *          make. For gRPC and for the data plane alike.
 *
 * Design: what TLS has found good is looked up by issuer and serial number in the lists of its issuer; in front of our own library and of gRPC's, which
 *         reads no list again that it has read once. Each list must be signed by an authority of the CA file. A file that changes is read
 *         again within a second, and one that is damaged leaves the lists as they were, which the log says. A list that is past
 *         its day is used, and the log says so: what it names is no better for that, and who keeps a newer one away must not
 *         stop the cluster either.
 * Threads: any.
 */
#pragma once

#include <stddef.h>

#include "trust/tls_files.h"

struct sl_revocations;
struct x509_st; // OpenSSL's X509

// By files->revoked; the paths are copied. No such file given: SL_OK, and NULL. SL_ERR_INVALID, SL_ERR_IO: name the file and what is wrong.
enum sl_status sl_revocations_open(const struct sl_tls_files *files, struct sl_revocations **revocations_out,
                                   struct sl_error *err);
void sl_revocations_close(struct sl_revocations **revocations); // accepts NULL, nulls

// SL_ERR_DENIED: this certificate was taken back. revocations may be NULL, here and below: none were.
enum sl_status sl_revocations_check(struct sl_revocations *revocations, const struct x509_st *certificate,
                                    struct sl_error *err);
// All certificates of a chain in PEM. SL_ERR_DENIED: also where there is none.
enum sl_status sl_revocations_check_chain(struct sl_revocations *revocations, const char *pem, size_t bytes,
                                          struct sl_error *err);
