// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/link/tls.h"

#include <assert.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "net/fabric/link/crypto.h"
#include "net/fabric/link/tls_buffer.h"
#include "net/trust/certificate.h"
#include "net/trust/revocation.h"

#define BUFFER_BYTES (128 << 10) // each direction

static_assert(SL_TLS_BATCH_BYTES + (8 << 10) <= BUFFER_BYTES, "room for what TLS adds to a batch, and says itself");

enum { N_FILES = 3 }; // read again here when they change

struct stamp {
    ino_t inode;
    off_t bytes;
    struct timespec written;
};

struct sl_tls {
    struct sl_crypto crypto;
    struct sl_tls_buffers *buffers;
    SSL_CTX *context;
    struct sl_identity self;
    struct sl_revocations *revocations; // NULL: none
    uint64_t edition;                   // of its lists, by which open connections were checked
    char *paths[N_FILES];
    struct sl_tls_files files; // with these paths
    struct stamp stamps[N_FILES];
};

static enum sl_status set_up(SSL_CTX *context, struct sl_error *err) {
    SSL_CTX_set_num_tickets(context, 0); // connections last long; a reconnecting peer authenticates again
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    // 128 bits first: fewer rounds per byte.
    return SSL_CTX_set_ciphersuites(context,
                                    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") == 1
               ? SL_OK
               : sl_fail(err, SL_ERR_UNSUPPORTED, "OpenSSL has none of TLS 1.3's ciphers");
}

static void take_stamps(const struct sl_tls *tls, struct stamp stamps_out[N_FILES]) {
    memset(stamps_out, 0, N_FILES * sizeof *stamps_out); // padding, too: they are compared as bytes
    for (int i = 0; i < N_FILES; i++) {
        struct stat st;
        if (stat(tls->paths[i], &st) == 0) {
            stamps_out[i].inode = st.st_ino;
            stamps_out[i].bytes = st.st_size;
            stamps_out[i].written = st.st_mtim;
        }
    }
}

// Returns the roles of the peers that a worker exchanges data with.
static unsigned peers_of(unsigned role) {
    switch (role) {
    case SL_ROLE_PREFILL:
        return SL_ROLE_DECODE | SL_ROLE_KVSTORE;
    case SL_ROLE_DECODE:
        return SL_ROLE_COMPUTE | SL_ROLE_KVSTORE; // one of both roles ships to another
    default:
        return SL_ROLE_WORKER;
    }
}

// Checks that our certificate is a worker's, and, if it replaces another, of the same worker.
static enum sl_status check_self(const struct sl_tls *tls, const struct sl_identity *self, struct sl_error *err) {
    const bool was_stated = tls->context && tls->self.role != SL_ROLE_UNSTATED_WORKER;
    enum sl_status status = sl_identity_check(
        self, tls->context ? tls->self.cluster : self->cluster,
        was_stated ? tls->self.role : sl_roles_accepted(SL_ROLE_WORKER, tls->files.accepts_unstated), err);
    SL_THEN_FAIL_IF(status, tls->context && strcmp(self->name, tls->self.name) != 0, err, SL_ERR_DENIED,
                    "the certificate is of \"%s\", not of \"%s\"", self->name, tls->self.name);
    if (status != SL_OK) {
        sl_error_prefix(err, tls->files.certificate);
    }
    return status == SL_OK ? SL_OK : SL_ERR_INVALID;
}

// Reads the files; if they are invalid, the previous ones stay in use.
static enum sl_status load(struct sl_tls *tls, struct sl_error *err) {
    SSL_CTX *context;
    struct sl_identity self;
    SL_TRY(sl_certificate_context(&tls->files, tls->crypto.library, &context, &self, err));
    enum sl_status status = check_self(tls, &self, err);
    SL_THEN(status, set_up(context, err));
    SL_TRY_OR(status, SSL_CTX_free(context));
    SSL_CTX_free(tls->context); // connections that were made with it keep it
    tls->context = context;
    tls->self = self;
    return SL_OK;
}

enum sl_status sl_tls_create(const struct sl_tls_files *files, struct sl_tls **tls_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_tls, tls, err, "no memory for TLS");
    tls->paths[0] = strdup(files->ca);
    tls->paths[1] = strdup(files->certificate);
    tls->paths[2] = strdup(files->key);
    tls->files =
        (struct sl_tls_files){tls->paths[0], tls->paths[1], tls->paths[2], .accepts_unstated = files->accepts_unstated};
    tls->buffers = sl_tls_buffers_create();
    enum sl_status status = SL_OK;
    if (!tls->buffers || !tls->paths[0] || !tls->paths[1] || !tls->paths[2]) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for TLS");
    } else {
        take_stamps(tls, tls->stamps);
        status = sl_crypto_open(&tls->crypto, err);
        SL_THEN(status, load(tls, err));
        SL_THEN(status, sl_revocations_open(files, &tls->revocations, err));
        tls->edition = status == SL_OK ? sl_revocations_edition(tls->revocations) : 0;
    }
    SL_TRY_OR(status, sl_tls_destroy(&tls));
    *tls_out = tls;
    return SL_OK;
}

void sl_tls_destroy(struct sl_tls **tls_inout) {
    SL_TAKE_OR_RETURN(tls, tls_inout);
    SSL_CTX_free(tls->context);
    sl_revocations_close(&tls->revocations);
    sl_crypto_close(&tls->crypto);
    sl_tls_buffers_destroy(&tls->buffers);
    for (int i = 0; i < N_FILES; i++) {
        free(tls->paths[i]);
    }
    free(tls);
}

static void read_again(struct sl_tls *tls) {
    struct stamp stamps[N_FILES];
    struct sl_error err;
    take_stamps(tls, stamps);
    if (memcmp(stamps, tls->stamps, sizeof stamps) == 0) {
        return;
    }
    memcpy(tls->stamps, stamps, sizeof stamps); // if the files are just changing, their stamps will change again
    if (load(tls, &err) == SL_OK) {
        sl_log_info("fabric", "certificate=%s was read again", tls->files.certificate);
    } else {
        sl_log_warn("fabric", "certificates were replaced, and the old ones stay in use: %s", err.text);
    }
}

const char *sl_tls_name(const struct sl_tls *tls) {
    return tls->self.name;
}

// ---- a connection ----------------------------------------------------------------------------------------------------

SSL *sl_tls_open(struct sl_tls *tls, int fd, bool connector) {
    read_again(tls);
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

bool sl_tls_has_new_lists(struct sl_tls *tls) {
    const uint64_t before = tls->edition;
    tls->edition = sl_revocations_edition(tls->revocations);
    return tls->edition != before;
}

enum sl_status sl_tls_check_revoked(const struct sl_tls *tls, SSL *ssl, struct sl_error *err) {
    STACK_OF(X509) *chain = SSL_get0_verified_chain(ssl);
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < sk_X509_num(chain); i++) {
        status = sl_revocations_check(tls->revocations, sk_X509_value(chain, i), err);
    }
    return status;
}

enum sl_status sl_tls_shake_hands(struct sl_tls *tls, SSL *ssl, const char *name, bool *wants_write_out,
                                  struct sl_error *err) {
    ERR_clear_error();
    int rc = SSL_do_handshake(ssl), why = SSL_get_error(ssl, rc);
    *wants_write_out = why == SSL_ERROR_WANT_WRITE;
    if (rc != 1) {
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? SL_AGAIN : refuse_peer(ssl, err);
    }
    struct sl_identity peer;
    enum sl_status status = sl_certificate_identity(SSL_get0_peer_certificate(ssl), &peer, err);
    SL_THEN(status, sl_identity_check(&peer, tls->self.cluster,
                                      sl_roles_accepted(peers_of(tls->self.role), tls->files.accepts_unstated), err));
    SL_THEN(status, sl_identity_check_name(&peer, name, err));
    SL_THEN(status, sl_tls_check_revoked(tls, ssl, err));
    if (status != SL_OK) {
        return SL_ERR_PEER_CORRUPT;
    }
    return sl_tls_buffer_add(tls->buffers, ssl, BUFFER_BYTES) ? SL_OK
                                                              : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for TLS");
}

size_t sl_tls_read(SSL *ssl, void *to, size_t bytes, enum sl_status *status_out) {
    size_t n = 0;
    *status_out = SL_OK;
    ERR_clear_error();
    int rc = SSL_read_ex(ssl, to, bytes, &n);
    if (rc == 1) {
        return n;
    }
    int why = SSL_get_error(ssl, rc);
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        // A process that was killed ends without TLS's close notification.
        bool cut = ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
        *status_out = why == SSL_ERROR_SSL && !cut ? SL_ERR_PEER_CORRUPT : SL_ERR_PEER_LOST;
        ERR_clear_error();
    }
    return 0;
}

// Requests a new key in time, as OpenSSL leaves that to its caller; the next records carry the notice to the other
// side.
static bool change_key(SSL *ssl, uint64_t *n_records) {
    *n_records = 0;
    return SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
}

bool sl_tls_write(SSL *ssl, uint64_t *n_records_inout, const void *from, size_t bytes) {
    size_t n = 0;
    ERR_clear_error();
    sl_tls_buffer_hold(ssl, true);
    bool written = (*n_records_inout < SL_TLS_KEY_RECORDS || change_key(ssl, n_records_inout)) &&
                   SSL_write_ex(ssl, from, bytes, &n) == 1;
    sl_tls_buffer_hold(ssl, false);
    *n_records_inout += written;
    ERR_clear_error();
    return written;
}

enum sl_status sl_tls_flush(SSL *ssl) {
    int rc = sl_tls_buffer_flush(ssl);
    return rc == 1 ? SL_OK : rc == 0 ? SL_AGAIN : SL_ERR_PEER_LOST;
}
