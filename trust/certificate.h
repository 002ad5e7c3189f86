// SPDX-License-Identifier: Apache-2.0
// Purpose: certificates by OpenSSL: whose one is, and the context of TLS that a process's files make.
#pragma once

#include "trust/identity.h"
#include "trust/tls_files.h"

struct ssl_ctx_st;      // OpenSSL's SSL_CTX
struct x509_st;         // its X509
struct ossl_lib_ctx_st; // its OSSL_LIB_CTX

// By the certificate's one URI. SL_ERR_INVALID: none, or several, or no identity. The certificate may be NULL: SL_ERR_INVALID.
enum sl_status sl_certificate_identity(const struct x509_st *certificate, struct sl_identity *identity_out,
                                       struct sl_error *err);

/*
 * A context of TLS 1.3 that proves us and wants the peer's proof, and who we are. The caller's: SSL_CTX_free(). SL_ERR_INVALID names
 * the file and what is wrong with it. library: whose cryptography; NULL: that of the whole process.
 */
enum sl_status sl_certificate_context(const struct sl_tls_files *files, struct ossl_lib_ctx_st *library,
                                      struct ssl_ctx_st **context_out, struct sl_identity *self_out,
                                      struct sl_error *err);

// Who we are, and that the files are whole and belong together: for those who leave the reading to a library of theirs.
enum sl_status sl_certificate_check(const struct sl_tls_files *files, struct sl_identity *self_out,
                                    struct sl_error *err);
