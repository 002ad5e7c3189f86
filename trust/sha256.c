// SPDX-License-Identifier: Apache-2.0
// Purpose: see sha256.h.
#include "trust/sha256.h"

#include <openssl/evp.h>

enum { HASH_BYTES = 32 };

enum sl_status sl_sha256_base64(const void *bytes, size_t n_bytes, char text_out[SL_SHA256_TEXT_BYTES],
                                struct sl_error *err) {
    unsigned char hash[HASH_BYTES];
    unsigned n = 0;
    if (EVP_Digest(bytes, n_bytes, hash, &n, EVP_sha256(), NULL) != 1 || n != HASH_BYTES) {
        return sl_fail(err, SL_ERR_INTERNAL, "OpenSSL computes no SHA-256");
    }
    EVP_EncodeBlock((unsigned char *)text_out, hash, HASH_BYTES);
    return SL_OK;
}
