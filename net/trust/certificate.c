// SPDX-License-Identifier: Apache-2.0
#include "net/trust/certificate.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#define MAX_URI_BYTES 256

// Copies the one URI of a certificate. False: it has none, or several, or the URI is too long.
static bool one_uri(const X509 *certificate, char uri_out[MAX_URI_BYTES]) {
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    int n_uris = 0;
    bool fits = false;
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == GEN_URI) {
            const ASN1_IA5STRING *uri = name->d.uniformResourceIdentifier;
            size_t n = (size_t)ASN1_STRING_length(uri);
            const char *text = (const char *)ASN1_STRING_get0_data(uri);
            fits = n < MAX_URI_BYTES && memchr(text, '\0', n) == NULL;
            snprintf(uri_out, MAX_URI_BYTES, "%.*s", fits ? (int)n : 0, text);
            n_uris++;
        }
    }
    GENERAL_NAMES_free(names);
    return n_uris == 1 && fits;
}

enum sl_status sl_certificate_identity(const X509 *certificate, struct sl_identity *identity_out,
                                       struct sl_error *err) {
    char uri[MAX_URI_BYTES];
    SL_FAIL_IF(!certificate || !one_uri(certificate, uri), err, SL_ERR_INVALID,
               "a certificate without one URI, spiffe://CLUSTER/ROLE/NAME");
    return sl_identity_parse(uri, identity_out, err);
}

static enum sl_status refuse_file(const char *path, const char *what, struct sl_error *err) {
    unsigned long code = ERR_peek_error(); // the first error: the cause, before the operations that failed for it
    char text[160] = "";
    if (code) {
        ERR_error_string_n(code, text, sizeof text);
    }
    ERR_clear_error();
    return sl_fail(err, SL_ERR_INVALID, "%s: %s%s%s", path, what, text[0] ? ": " : "", text);
}

static enum sl_status load(SSL_CTX *context, const struct sl_tls_files *files, struct sl_identity *self_out,
                           struct sl_error *err) {
    if (SSL_CTX_load_verify_file(context, files->ca) != 1) {
        return refuse_file(files->ca, "no certificate of an authority can be read from it", err);
    }
    if (SSL_CTX_use_certificate_chain_file(context, files->certificate) != 1) {
        return refuse_file(files->certificate, "no certificate can be read from it", err);
    }
    if (SSL_CTX_use_PrivateKey_file(context, files->key, SSL_FILETYPE_PEM) != 1) {
        return refuse_file(files->key, "no private key can be read from it", err);
    }
    if (SSL_CTX_check_private_key(context) != 1) {
        return refuse_file(files->key, "it is not the key of the certificate", err);
    }
    SL_TRY_OR(sl_certificate_identity(SSL_CTX_get0_certificate(context), self_out, err),
              sl_error_prefix(err, files->certificate));
    return SL_OK;
}

enum sl_status sl_certificate_context(const struct sl_tls_files *files, OSSL_LIB_CTX *library, SSL_CTX **context_out,
                                      struct sl_identity *self_out, struct sl_error *err) {
    SSL_CTX *context = SSL_CTX_new_ex(library, NULL, TLS_method());
    SL_FAIL_IF(!context, err, SL_ERR_EXHAUSTED, "no memory for TLS");
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SL_TRY_OR(load(context, files, self_out, err), SSL_CTX_free(context));
    *context_out = context;
    return SL_OK;
}

enum sl_status sl_certificate_check(const struct sl_tls_files *files, struct sl_identity *self_out,
                                    struct sl_error *err) {
    SSL_CTX *context;
    SL_TRY(sl_certificate_context(files, NULL, &context, self_out, err));
    SSL_CTX_free(context);
    return SL_OK;
}
