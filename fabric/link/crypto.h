// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the cryptography under TLS: OpenSSL's, in a library context of our own, with the fastest AES-GCM that this processor has
 *          (gcm_provider.h). Nobody else in the process is told to use that.
 */
#pragma once

#include <openssl/types.h>

#include "base/status.h"

struct sl_crypto {
    OSSL_LIB_CTX *library;
    OSSL_PROVIDER *openssl, *gcm; // gcm: NULL where OpenSSL's own is the fastest
};

// SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_crypto_open(struct sl_crypto *crypto_out, struct sl_error *err);
void sl_crypto_close(struct sl_crypto *crypto); // when nothing is there any more that was made with it; again: nothing
