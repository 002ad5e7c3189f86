// SPDX-License-Identifier: Apache-2.0
#include "net/trust/sha256.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PART_BYTES = 64 << 10 };

enum sl_status sl_sha256(const void *bytes, size_t n_bytes, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err) {
    unsigned n = 0;
    return EVP_Digest(bytes, n_bytes, hash_out, &n, EVP_sha256(), NULL) == 1 && n == SL_SHA256_BYTES
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL, "OpenSSL computes no SHA-256");
}

void sl_sha256_write_hex(const uint8_t hash[SL_SHA256_BYTES], char hex_out[SL_SHA256_HEX_BYTES]) {
    for (int i = 0; i < SL_SHA256_BYTES; i++) {
        snprintf(hex_out + 2 * i, 3, "%02x", hash[i]);
    }
}

enum sl_status sl_sha256_hex(const void *bytes, size_t n_bytes, char hex_out[SL_SHA256_HEX_BYTES],
                             struct sl_error *err) {
    unsigned char hash[SL_SHA256_BYTES];
    SL_TRY(sl_sha256(bytes, n_bytes, hash, err));
    sl_sha256_write_hex(hash, hex_out);
    return SL_OK;
}

enum sl_status sl_sha256_base64(const void *bytes, size_t n_bytes, char text_out[SL_SHA256_TEXT_BYTES],
                                struct sl_error *err) {
    unsigned char hash[SL_SHA256_BYTES];
    SL_TRY(sl_sha256(bytes, n_bytes, hash, err));
    EVP_EncodeBlock((unsigned char *)text_out, hash, SL_SHA256_BYTES);
    return SL_OK;
}

// ---- a hash of bytes that come one after the other ------------------------------------------------------------------

struct sl_sha256 {
    EVP_MD_CTX *all, *copy; // the copy is finished in place of the hash that goes on
    bool failed;            // reported by sl_sha256_get()
};

enum sl_status sl_sha256_create(struct sl_sha256 **sha_out, struct sl_error *err) {
    struct sl_sha256 *sha = calloc(1, sizeof *sha);
    if (sha) {
        sha->all = EVP_MD_CTX_new();
        sha->copy = EVP_MD_CTX_new();
    }
    SL_FAIL_OR(!sha || !sha->all || !sha->copy || EVP_DigestInit_ex(sha->all, EVP_sha256(), NULL) != 1,
               sl_sha256_destroy(&sha), err, SL_ERR_EXHAUSTED, "no memory for a SHA-256");
    *sha_out = sha;
    return SL_OK;
}

void sl_sha256_destroy(struct sl_sha256 **sha_inout) {
    SL_TAKE_OR_RETURN(sha, sha_inout);
    EVP_MD_CTX_free(sha->all);
    EVP_MD_CTX_free(sha->copy);
    free(sha);
}

void sl_sha256_add(struct sl_sha256 *sha, const void *bytes, size_t n_bytes) {
    sha->failed |= EVP_DigestUpdate(sha->all, bytes, n_bytes) != 1;
}

enum sl_status sl_sha256_get(struct sl_sha256 *sha, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err) {
    return !sha->failed && EVP_MD_CTX_copy_ex(sha->copy, sha->all) == 1 &&
                   EVP_DigestFinal_ex(sha->copy, hash_out, NULL) == 1
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL, "OpenSSL computes no SHA-256");
}

// ---- files ----------------------------------------------------------------------------------------------------------

enum sl_status sl_sha256_file(int fd, char hex_out[SL_SHA256_HEX_BYTES], struct sl_error *err) {
    unsigned char hash[SL_SHA256_BYTES], *part = malloc(PART_BYTES);
    struct sl_sha256 *sha = NULL;
    enum sl_status status =
        part ? sl_sha256_create(&sha, err) : sl_fail(err, SL_ERR_EXHAUSTED, "no memory to read a file");
    ssize_t n = 1;
    for (off_t at = 0; status == SL_OK && n > 0; at += n) {
        do {
            n = pread(fd, part, PART_BYTES, at);
        } while (n < 0 && errno == EINTR);
        if (n < 0) {
            status = sl_fail(err, SL_ERR_IO, "cannot be read: %s", strerror(errno));
        } else {
            sl_sha256_add(sha, part, (size_t)n);
        }
    }
    if (status == SL_OK && (status = sl_sha256_get(sha, hash, err)) == SL_OK) {
        sl_sha256_write_hex(hash, hex_out);
    }
    sl_sha256_destroy(&sha);
    free(part);
    return status;
}
