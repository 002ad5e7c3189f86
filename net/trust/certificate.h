// SPDX-License-Identifier: Apache-2.0
// Purpose: certificates by OpenSSL: the identity in a certificate, and the TLS context made of a process' files.
#pragma once

#include "net/trust/identity.h"
#include "net/trust/tls_files.h"

struct ssl_ctx_st;      // OpenSSL's SSL_CTX
struct x509_st;         // its X509
struct ossl_lib_ctx_st; // its OSSL_LIB_CTX

// Reads the identity from the certificate's one URI. SL_ERR_INVALID: no or several URIs, no identity, or certificate is
// NULL.
enum sl_status sl_certificate_identity(const struct x509_st *certificate, struct sl_identity *identity_out,
                                       struct sl_error *err);

/*
 * Makes a context of TLS 1.3 that presents our certificate and requires the peer's; also returns our identity. The
 * caller frees it: SSL_CTX_free(). SL_ERR_INVALID names the file and the fault. library: whose cryptography; NULL: the
 * process' default.
 */
enum sl_status sl_certificate_context(const struct sl_tls_files *files, struct ossl_lib_ctx_st *library,
                                      struct ssl_ctx_st **context_out, struct sl_identity *self_out,
                                      struct sl_error *err);

// Returns our identity and checks that the files are complete and belong together. For callers whose own library reads
// the files.
enum sl_status sl_certificate_check(const struct sl_tls_files *files, struct sl_identity *self_out,
                                    struct sl_error *err);
