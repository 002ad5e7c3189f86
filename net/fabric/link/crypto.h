// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the cryptography under TLS: OpenSSL's, in our own library context, with the fastest AES-GCM for this
 *          processor (gcm_provider.h). The rest of the process keeps OpenSSL's default context.
 */
#pragma once

#include <openssl/types.h>

#include "base/status.h"

struct sl_crypto {
    OSSL_LIB_CTX *library;
    OSSL_PROVIDER *openssl, *gcm; // gcm: NULL if OpenSSL's own is the fastest
};

// Makes the library context. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_crypto_open(struct sl_crypto *crypto_out, struct sl_error *err);
void sl_crypto_close(struct sl_crypto *crypto); // when nothing that uses it exists any more; idempotent
