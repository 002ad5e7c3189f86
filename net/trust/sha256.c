// SPDX-License-Identifier: Apache-2.0
// Purpose: see sha256.h.
#include "net/trust/sha256.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HASH_BYTES = 32, PART_BYTES = 64 << 10 };

static enum sl_status digest(const void *bytes, size_t n_bytes, unsigned char hash_out[HASH_BYTES],
                             struct sl_error *err) {
    unsigned n = 0;
    return EVP_Digest(bytes, n_bytes, hash_out, &n, EVP_sha256(), NULL) == 1 && n == HASH_BYTES
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL, "OpenSSL computes no SHA-256");
}

static void write_hex(const unsigned char hash[HASH_BYTES], char hex_out[SL_SHA256_HEX_BYTES]) {
    for (int i = 0; i < HASH_BYTES; i++) {
        snprintf(hex_out + 2 * i, 3, "%02x", hash[i]);
    }
}

enum sl_status sl_sha256_hex(const void *bytes, size_t n_bytes, char hex_out[SL_SHA256_HEX_BYTES],
                             struct sl_error *err) {
    unsigned char hash[HASH_BYTES];
    enum sl_status status = digest(bytes, n_bytes, hash, err);
    if (status == SL_OK) {
        write_hex(hash, hex_out);
    }
    return status;
}

enum sl_status sl_sha256_base64(const void *bytes, size_t n_bytes, char text_out[SL_SHA256_TEXT_BYTES],
                                struct sl_error *err) {
    unsigned char hash[HASH_BYTES];
    enum sl_status status = digest(bytes, n_bytes, hash, err);
    if (status == SL_OK) {
        EVP_EncodeBlock((unsigned char *)text_out, hash, HASH_BYTES);
    }
    return status;
}

enum sl_status sl_sha256_file(int fd, char hex_out[SL_SHA256_HEX_BYTES], struct sl_error *err) {
    unsigned char hash[HASH_BYTES], *part = malloc(PART_BYTES);
    if (!part) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory to read a file");
    }
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    ssize_t n = 1;
    for (off_t at = 0; ok && n > 0; at += n) {
        do {
            n = pread(fd, part, PART_BYTES, at);
        } while (n < 0 && errno == EINTR);
        ok = n <= 0 || EVP_DigestUpdate(context, part, (size_t)n) == 1;
    }
    ok = ok && EVP_DigestFinal_ex(context, hash, NULL) == 1;
    EVP_MD_CTX_free(context);
    free(part);
    if (n < 0) {
        return sl_fail(err, SL_ERR_IO, "cannot be read: %s", strerror(errno));
    }
    if (!ok) {
        return sl_fail(err, SL_ERR_INTERNAL, "OpenSSL computes no SHA-256");
    }
    write_hex(hash, hex_out);
    return SL_OK;
}
