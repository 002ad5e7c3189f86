// SPDX-License-Identifier: Apache-2.0
#include "net/trust/public_keys.h"

#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>

static enum sl_status kind_of(const EVP_PKEY *key, enum sl_public_key_kind *kind_out, struct sl_error *err) {
    char curve[32] = "";
    int bits = EVP_PKEY_get_bits(key);
    switch (EVP_PKEY_get_base_id(key)) {
    case EVP_PKEY_RSA:
        *kind_out = SL_KEY_RSA;
        return bits >= 2048 && bits <= 8192
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID, "an RSA key has %d bits; expected 2048 to 8192", bits);
    case EVP_PKEY_EC:
        EVP_PKEY_get_group_name(key, curve, sizeof curve, NULL);
        if (strcmp(curve, "prime256v1") == 0 || strcmp(curve, "secp384r1") == 0) {
            *kind_out = curve[0] == 'p' ? SL_KEY_P256 : SL_KEY_P384;
            return SL_OK;
        }
        return sl_fail(err, SL_ERR_INVALID, "a key is of the curve \"%s\"; expected prime256v1 or secp384r1", curve);
    default: // among them EdDSA, which libjwt 1.10 does not support
        return sl_fail(err, SL_ERR_INVALID, "a key is neither RSA nor of P-256 or P-384");
    }
}

// Returns the key as PEM, malloc'd; NULL: no memory.
static char *write_pem(EVP_PKEY *key) {
    BIO *out = BIO_new(BIO_s_mem());
    char *bytes = NULL, *pem = NULL;
    if (out && PEM_write_bio_PUBKEY(out, key) == 1) {
        long n = BIO_get_mem_data(out, &bytes);
        pem = n > 0 ? strndup(bytes, (size_t)n) : NULL;
    }
    BIO_free(out);
    return pem;
}

static enum sl_status take(struct sl_public_keys *keys, const char *name, const unsigned char *der, long n_der,
                           struct sl_error *err) {
    SL_FAIL_IF(strcmp(name, PEM_STRING_PUBLIC) != 0, err, SL_ERR_INVALID,
               "has a %.40s; expected nothing but PUBLIC KEYs", name);
    SL_FAIL_IF(keys->n == SL_MAX_PUBLIC_KEYS, err, SL_ERR_INVALID, "has more than %d keys", SL_MAX_PUBLIC_KEYS);
    EVP_PKEY *key = d2i_PUBKEY(NULL, &der, n_der);
    struct sl_public_key *next = &keys->list[keys->n];
    enum sl_status status =
        key ? kind_of(key, &next->kind, err) : sl_fail(err, SL_ERR_INVALID, "has a damaged PUBLIC KEY");
    if (status == SL_OK) {
        next->pem = write_pem(key);
        status = next->pem ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a key");
        keys->n += next->pem != NULL;
    }
    EVP_PKEY_free(key);
    return status;
}

enum sl_status sl_public_keys_parse(const char *text, size_t n_bytes, struct sl_public_keys *keys_out,
                                    struct sl_error *err) {
    struct sl_public_keys keys = {.n = 0};
    BIO *in = n_bytes <= INT_MAX ? BIO_new_mem_buf(text, (int)n_bytes) : NULL;
    SL_FAIL_IF(!in, err, SL_ERR_EXHAUSTED, "no memory for keys");
    enum sl_status status = SL_OK;
    char *name = NULL, *header = NULL;
    unsigned char *der = NULL;
    long n_der = 0;
    while (status == SL_OK && PEM_read_bio(in, &name, &header, &der, &n_der) == 1) {
        status = take(&keys, name, der, n_der, err);
        OPENSSL_free(name);
        OPENSSL_free(header);
        OPENSSL_free(der);
    }
    // At the end of the text no further key begins; any other error means that a key begins and does not end.
    SL_THEN_FAIL_IF(status, ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE, err, SL_ERR_INVALID,
                    "is damaged behind %d keys", keys.n);
    SL_THEN_FAIL_IF(status, keys.n == 0, err, SL_ERR_INVALID, "has no PUBLIC KEY in PEM");
    ERR_clear_error();
    BIO_free(in);
    SL_TRY_OR(status, sl_public_keys_cleanup(&keys));
    *keys_out = keys;
    return SL_OK;
}

void sl_public_keys_cleanup(struct sl_public_keys *keys) {
    for (int i = 0; i < keys->n; i++) {
        free(keys->list[i].pem);
    }
    keys->n = 0;
}
