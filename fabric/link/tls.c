// SPDX-License-Identifier: Apache-2.0
#include "fabric/link/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BUFFER_BYTES ((size_t)128 << 10) // some records a system call
#define MAX_IDENTITY      256

struct sl_tls {
    SSL_CTX *context;
    char cluster[MAX_IDENTITY]; // "spiffe://CLUSTER/worker/", of our own certificate
};

// ---- who is it -------------------------------------------------------------------------------------------------------

// The one URI of a certificate. False: none, or several, or too long.
static bool identity_of(X509 *certificate, char *out, size_t bytes) {
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    int n_uris = 0;
    bool fits = false;
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == GEN_URI) {
            const ASN1_IA5STRING *uri = name->d.uniformResourceIdentifier;
            size_t n = (size_t)ASN1_STRING_length(uri);
            const char *text = (const char *)ASN1_STRING_get0_data(uri);
            fits = n < bytes && memchr(text, '\0', n) == NULL;
            snprintf(out, bytes, "%.*s", fits ? (int)n : 0, text);
            n_uris++;
        }
    }
    GENERAL_NAMES_free(names);
    return n_uris == 1 && fits;
}

// Whether a certificate is a worker's, and of which cluster: the part of its identity before the name.
static bool worker_of(X509 *certificate, char *cluster_out, char *identity_out) {
    static const char scheme[] = "spiffe://", role[] = "/worker/";
    if (!certificate || !identity_of(certificate, identity_out, MAX_IDENTITY) ||
        strncmp(identity_out, scheme, strlen(scheme)) != 0) {
        return false;
    }
    const char *cluster = identity_out + strlen(scheme), *slash = strchr(cluster, '/');
    if (!slash || slash == cluster || strncmp(slash, role, strlen(role)) != 0 || slash[strlen(role)] == '\0') {
        return false;
    }
    snprintf(cluster_out, MAX_IDENTITY, "%.*s", (int)(slash - identity_out + (ptrdiff_t)strlen(role)), identity_out);
    return true;
}

// ---- the context -----------------------------------------------------------------------------------------------------

static enum sl_status refuse_file(const char *path, const char *what, struct sl_error *err) {
    unsigned long code = ERR_peek_last_error();
    char text[160] = "";
    if (code) {
        ERR_error_string_n(code, text, sizeof text);
    }
    ERR_clear_error();
    return sl_fail(err, SL_ERR_INVALID, "%s: %s%s%s", path, what, text[0] ? ": " : "", text);
}

static enum sl_status load(struct sl_tls *tls, const struct sl_tls_files *files, struct sl_error *err) {
    SSL_CTX *context = tls->context;
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
    char identity[MAX_IDENTITY] = "";
    if (!worker_of(SSL_CTX_get0_certificate(context), tls->cluster, identity)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: \"%s\" is no worker's identity; expected one URI, spiffe://CLUSTER/worker/NAME",
                       files->certificate, identity);
    }
    return SL_OK;
}

enum sl_status sl_tls_create(const struct sl_tls_files *files, struct sl_tls **tls_out, struct sl_error *err) {
    struct sl_tls *tls = calloc(1, sizeof *tls);
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    if (!tls || !context) {
        free(tls);
        SSL_CTX_free(context);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for TLS");
    }
    tls->context = context;
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_options(context, SSL_OP_ENABLE_KTLS);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_num_tickets(context, 0); // connections last; who connects again proves itself again
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_default_read_buffer_len(context, READ_BUFFER_BYTES);
    SSL_CTX_set_read_ahead(context, 1);
    // 128 bits first: twice as many bytes a second.
    enum sl_status status =
        SSL_CTX_set_ciphersuites(context,
                                 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") == 1
            ? load(tls, files, err)
            : sl_fail(err, SL_ERR_UNSUPPORTED, "OpenSSL has none of TLS 1.3's ciphers");
    if (status != SL_OK) {
        sl_tls_destroy(&tls);
        return status;
    }
    *tls_out = tls;
    return SL_OK;
}

void sl_tls_destroy(struct sl_tls **tls) {
    if (tls && *tls) {
        SSL_CTX_free((*tls)->context);
        free(*tls);
        *tls = NULL;
    }
}

// ---- a connection ----------------------------------------------------------------------------------------------------

SSL *sl_tls_open(struct sl_tls *tls, int fd, bool connector) {
    SSL *ssl = SSL_new(tls->context);
    if (ssl && SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        ssl = NULL;
    }
    if (ssl && connector) {
        SSL_set_connect_state(ssl);
    } else if (ssl) {
        SSL_set_accept_state(ssl);
    }
    return ssl;
}

static enum sl_status refuse_peer(SSL *ssl, struct sl_error *err) {
    long verdict = SSL_get_verify_result(ssl);
    char text[160] = "the connection was closed";
    unsigned long code = ERR_peek_last_error();
    if (verdict != X509_V_OK) {
        snprintf(text, sizeof text, "%s", X509_verify_cert_error_string(verdict));
    } else if (code) {
        ERR_error_string_n(code, text, sizeof text);
    }
    ERR_clear_error();
    return sl_fail(err, SL_ERR_PEER_LOST, "TLS: %s", text);
}

enum sl_status sl_tls_shake_hands(struct sl_tls *tls, SSL *ssl, bool *wants_write_out, struct sl_error *err) {
    ERR_clear_error();
    int rc = SSL_do_handshake(ssl), why = SSL_get_error(ssl, rc);
    *wants_write_out = why == SSL_ERROR_WANT_WRITE;
    if (rc != 1) {
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? SL_AGAIN : refuse_peer(ssl, err);
    }
    char cluster[MAX_IDENTITY], identity[MAX_IDENTITY] = "";
    if (!worker_of(SSL_get0_peer_certificate(ssl), cluster, identity) || strcmp(cluster, tls->cluster) != 0) {
        return sl_fail(err, SL_ERR_PEER_CORRUPT, "\"%.100s\" is no worker of this cluster", identity);
    }
    return SL_OK;
}

static size_t moved(SSL *ssl, int rc, size_t n, enum sl_status *status_out) {
    *status_out = SL_OK;
    if (rc == 1) {
        return n;
    }
    int why = SSL_get_error(ssl, rc);
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        // A process that was killed ends without TLS's own goodbye.
        bool cut = ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
        *status_out = why == SSL_ERROR_SSL && !cut ? SL_ERR_PEER_CORRUPT : SL_ERR_PEER_LOST;
        ERR_clear_error();
    }
    return 0;
}

size_t sl_tls_read(SSL *ssl, void *to, size_t bytes, enum sl_status *status_out) {
    size_t n = 0;
    ERR_clear_error();
    int rc = SSL_read_ex(ssl, to, bytes, &n);
    return moved(ssl, rc, n, status_out);
}

size_t sl_tls_write(SSL *ssl, const void *from, size_t bytes, enum sl_status *status_out) {
    size_t n = 0;
    ERR_clear_error();
    int rc = SSL_write_ex(ssl, from, bytes, &n);
    return moved(ssl, rc, n, status_out);
}
