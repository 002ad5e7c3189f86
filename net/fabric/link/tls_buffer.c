// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/link/tls_buffer.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <stdlib.h>

struct sl_tls_buffers {
    BIO_METHOD *filter;
};

// Copies the retry flags of the next BIO to this one.
static void take_retry(BIO *bio) {
    BIO_clear_retry_flags(bio);
    BIO_copy_next_retry(bio);
}

static int pass_write(BIO *bio, const char *from, size_t bytes, size_t *n_out) {
    int rc = BIO_write_ex(BIO_next(bio), from, bytes, n_out);
    take_retry(bio);
    return rc;
}

static int pass_read(BIO *bio, char *to, size_t bytes, size_t *n_out) {
    int rc = BIO_read_ex(BIO_next(bio), to, bytes, n_out);
    take_retry(bio);
    return rc;
}

static long control(BIO *bio, int command, long number, void *pointer) {
    bool held = BIO_get_data(bio) != NULL;
    if (command == BIO_CTRL_FLUSH && held) {
        return 1;
    }
    long rc = BIO_ctrl(BIO_next(bio), command, number, pointer);
    take_retry(bio);
    return rc;
}

static int begin(BIO *bio) {
    BIO_set_init(bio, 1);
    return 1;
}

struct sl_tls_buffers *sl_tls_buffers_create(void) {
    struct sl_tls_buffers *buffers = calloc(1, sizeof *buffers);
    int type = BIO_get_new_index();
    BIO_METHOD *filter = buffers && type > 0 ? BIO_meth_new(type | BIO_TYPE_FILTER, "held") : NULL;
    if (!filter || BIO_meth_set_write_ex(filter, pass_write) != 1 || BIO_meth_set_read_ex(filter, pass_read) != 1 ||
        BIO_meth_set_ctrl(filter, control) != 1 || BIO_meth_set_create(filter, begin) != 1) {
        BIO_meth_free(filter);
        free(buffers);
        return NULL;
    }
    buffers->filter = filter;
    return buffers;
}

void sl_tls_buffers_destroy(struct sl_tls_buffers **buffers) {
    if (buffers && *buffers) {
        BIO_meth_free((*buffers)->filter);
        free(*buffers);
        *buffers = NULL;
    }
}

/*
 * OpenSSL's own reading ahead (SSL_CTX_set_read_ahead) is too slow: for each record it moves the rest of its buffer, to
 * align it, so that of 128 KiB every byte is copied three more times.
 */
bool sl_tls_buffer_add(struct sl_tls_buffers *buffers, SSL *ssl, size_t bytes) {
    BIO *socket = SSL_get_wbio(ssl), *buffer = BIO_new(BIO_f_buffer()), *filter = BIO_new(buffers->filter);
    if (!buffer || !filter || BIO_set_buffer_size(buffer, (long)bytes) != 1 || BIO_up_ref(socket) != 1) {
        BIO_free(buffer);
        BIO_free(filter);
        return false;
    }
    BIO_push(filter, BIO_push(buffer, socket));
    SSL_set_bio(ssl, filter, filter);
    return true;
}

void sl_tls_buffer_hold(SSL *ssl, bool on) {
    BIO *filter = SSL_get_wbio(ssl);
    BIO_set_data(filter, on ? filter : NULL);
}

int sl_tls_buffer_flush(SSL *ssl) {
    BIO *filter = SSL_get_wbio(ssl);
    return BIO_flush(filter) == 1 ? 1 : BIO_should_retry(filter) ? 0 : -1;
}
