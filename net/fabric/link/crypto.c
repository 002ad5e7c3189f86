// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/link/crypto.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>
#include <string.h>

#if SLUICE_IPSEC_MB
#include "net/fabric/link/gcm_provider.h"

// Adds the fast AES-GCM; if the processor cannot run it, OpenSSL's own stays in use.
static void add_gcm(struct sl_crypto *crypto) {
    if (OSSL_PROVIDER_add_builtin(crypto->library, SL_GCM_PROVIDER, sl_gcm_provider) == 1) {
        crypto->gcm = OSSL_PROVIDER_load(crypto->library, SL_GCM_PROVIDER);
    }
    if (crypto->gcm && EVP_set_default_properties(crypto->library, "?provider=" SL_GCM_PROVIDER) != 1) {
        OSSL_PROVIDER_unload(crypto->gcm);
        crypto->gcm = NULL;
    }
    ERR_clear_error();
}
#else
static void add_gcm(struct sl_crypto *crypto) {
    (void)crypto;
}
#endif

enum sl_status sl_crypto_open(struct sl_crypto *crypto_out, struct sl_error *err) {
    struct sl_crypto crypto = {.library = OSSL_LIB_CTX_new()};
    crypto.openssl = crypto.library ? OSSL_PROVIDER_load(crypto.library, "default") : NULL;
    if (!crypto.openssl) {
        sl_crypto_close(&crypto);
        ERR_clear_error();
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for TLS");
    }
    add_gcm(&crypto);
    *crypto_out = crypto;
    return SL_OK;
}

void sl_crypto_close(struct sl_crypto *crypto) {
    if (crypto->gcm) {
        OSSL_PROVIDER_unload(crypto->gcm);
    }
    if (crypto->openssl) {
        OSSL_PROVIDER_unload(crypto->openssl);
    }
    OSSL_LIB_CTX_free(crypto->library);
    memset(crypto, 0, sizeof *crypto);
}
