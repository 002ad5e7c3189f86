// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see gcm_provider.h. The functions are those of provider-cipher(7); a comment after each gives its name
 *          there.
 *
 * Design: a message is init(iv), one update() without an output (the additional data), update()s, final(). ipsec-mb
 *         begins a message with IV and additional data together, so it begins at the first data or additional data.
 * Invariants: a key encrypts or decrypts, as in TLS; the state of a message is used once: after final() only init() is
 *             allowed. A wrong tag is an error of final(), and of nothing else.
 * Threads: as OpenSSL's: one per context. The manager is only read.
 */
#include "net/fabric/link/gcm_provider.h"

#include <intel-ipsec-mb.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define IV_BYTES  12
#define TAG_BYTES 16

struct strength {
    size_t key_bytes;
    aes_gcm_pre_t expand;
    aes_gcm_init_t begin;
    aes_gcm_enc_dec_update_t encrypt, decrypt;
    aes_gcm_enc_dec_finalize_t end_encrypt, end_decrypt;
};

struct provider {
    IMB_MGR *manager;
    struct strength aes_128, aes_256;
};

enum stage { NOTHING, READY, BEGUN, OVER };

struct cipher {
    struct gcm_key_data key; // first: for its alignment
    const struct strength *by;
    struct gcm_context_data message;
    enum stage stage;
    bool encrypts, has_key, has_tag;
    uint8_t iv[IV_BYTES];
    uint8_t tag[TAG_BYTES]; // encrypting: of the last message; decrypting: the expected one
};

// ---- a context -------------------------------------------------------------------------------------------------------

static void *create(const struct strength *by) {
    struct cipher *it = NULL;
    if (posix_memalign((void **)&it, 64, sizeof *it) != 0) {
        return NULL;
    }
    memset(it, 0, sizeof *it);
    it->by = by;
    return it;
}

static void *create_128(void *provider) { // newctx
    return create(&((struct provider *)provider)->aes_128);
}

static void *create_256(void *provider) { // newctx
    return create(&((struct provider *)provider)->aes_256);
}

static void destroy(void *cipher) { // freectx
    if (cipher) {
        OPENSSL_cleanse(cipher, sizeof(struct cipher));
        free(cipher);
    }
}

static int set(void *cipher, const OSSL_PARAM params[]) { // set_ctx_params
    struct cipher *it = cipher;
    size_t iv_bytes = IV_BYTES;
    const OSSL_PARAM *p = OSSL_PARAM_locate_const(params, OSSL_CIPHER_PARAM_AEAD_IVLEN);
    if (p && (!OSSL_PARAM_get_size_t(p, &iv_bytes) || iv_bytes != IV_BYTES)) {
        return 0;
    }
    p = OSSL_PARAM_locate_const(params, OSSL_CIPHER_PARAM_AEAD_TAG);
    if (p) {
        if (p->data_type != OSSL_PARAM_OCTET_STRING || p->data_size != TAG_BYTES || !p->data || it->encrypts) {
            return 0;
        }
        memcpy(it->tag, p->data, TAG_BYTES);
        it->has_tag = true;
    }
    return 1;
}

static int get(void *cipher, OSSL_PARAM params[]) { // get_ctx_params
    struct cipher *it = cipher;
    OSSL_PARAM *p = OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_KEYLEN);
    if (p && !OSSL_PARAM_set_size_t(p, it->by->key_bytes)) {
        return 0;
    }
    p = OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_IVLEN);
    if (p && !OSSL_PARAM_set_size_t(p, IV_BYTES)) {
        return 0;
    }
    p = OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_AEAD_TAGLEN);
    if (p && !OSSL_PARAM_set_size_t(p, TAG_BYTES)) {
        return 0;
    }
    p = OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_AEAD_TAG);
    if (p) {
        bool is_there = it->encrypts && it->stage == OVER && p->data_type == OSSL_PARAM_OCTET_STRING &&
                        p->data_size == TAG_BYTES && p->data;
        return is_there && OSSL_PARAM_set_octet_string(p, it->tag, TAG_BYTES);
    }
    return 1;
}

static const OSSL_PARAM *settable(void *cipher, void *provider) { // settable_ctx_params
    static const OSSL_PARAM params[] = {OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_IVLEN, NULL),
                                        OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, NULL, 0), OSSL_PARAM_END};
    (void)cipher, (void)provider;
    return params;
}

static const OSSL_PARAM *gettable(void *cipher, void *provider) { // gettable_ctx_params
    static const OSSL_PARAM params[] = {OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_KEYLEN, NULL),
                                        OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_IVLEN, NULL),
                                        OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_TAGLEN, NULL),
                                        OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, NULL, 0), OSSL_PARAM_END};
    (void)cipher, (void)provider;
    return params;
}

// ---- a message -------------------------------------------------------------------------------------------------------

// Sets key and IV, which may come separately. Without an IV there is no message: an IV serves for one message.
static int init(struct cipher *it, bool encrypts, const uint8_t *key, size_t key_bytes, const uint8_t *iv,
                size_t iv_bytes, const OSSL_PARAM params[]) {
    if ((key && key_bytes != it->by->key_bytes) || (iv && iv_bytes != IV_BYTES)) {
        return 0;
    }
    it->encrypts = encrypts;
    it->has_tag = false;
    it->stage = NOTHING;
    if (key) {
        it->by->expand(key, &it->key);
        it->has_key = true;
    }
    if (iv) {
        memcpy(it->iv, iv, IV_BYTES);
        it->stage = it->has_key ? READY : NOTHING;
    }
    return !params || set(it, params);
}

static int init_encrypt(void *cipher, const unsigned char *key, size_t key_bytes, const unsigned char *iv,
                        size_t iv_bytes, const OSSL_PARAM params[]) { // encrypt_init
    return init(cipher, true, key, key_bytes, iv, iv_bytes, params);
}

static int init_decrypt(void *cipher, const unsigned char *key, size_t key_bytes, const unsigned char *iv,
                        size_t iv_bytes, const OSSL_PARAM params[]) { // decrypt_init
    return init(cipher, false, key, key_bytes, iv, iv_bytes, params);
}

static void begin(struct cipher *it, const uint8_t *additional, size_t bytes) {
    it->by->begin(&it->key, &it->message, it->iv, additional, bytes);
    it->stage = BEGUN;
}

// Begins the message, also without additional data.
static bool has_begun(struct cipher *it) {
    static const uint8_t none[1];
    if (it->stage == READY) {
        begin(it, none, 0);
    }
    return it->stage == BEGUN;
}

static int update(void *cipher, unsigned char *out, size_t *n_out, size_t out_bytes, const unsigned char *in,
                  size_t bytes) { // update
    struct cipher *it = cipher;
    *n_out = 0;
    if (!out) { // the additional data, all at once
        if (it->stage != READY) {
            return 0;
        }
        begin(it, in, bytes);
        *n_out = bytes;
        return 1;
    }
    if (!has_begun(it) || out_bytes < bytes) {
        return 0;
    }
    if (bytes > 0) {
        (it->encrypts ? it->by->encrypt : it->by->decrypt)(&it->key, &it->message, out, in, bytes);
    }
    *n_out = bytes;
    return 1;
}

static int end(void *cipher, unsigned char *out, size_t *n_out, size_t out_bytes) { // final
    struct cipher *it = cipher;
    uint8_t tag[TAG_BYTES];
    (void)out, (void)out_bytes;
    *n_out = 0;
    if (!has_begun(it) || (!it->encrypts && !it->has_tag)) {
        return 0;
    }
    it->stage = OVER;
    if (it->encrypts) {
        it->by->end_encrypt(&it->key, &it->message, it->tag, TAG_BYTES);
        return 1;
    }
    it->by->end_decrypt(&it->key, &it->message, tag, TAG_BYTES);
    it->has_tag = false;
    return CRYPTO_memcmp(tag, it->tag, TAG_BYTES) == 0;
}

// ---- the ciphers, and the provider ----------------------------------------------------------------------------------------

static int describe(OSSL_PARAM params[], size_t key_bytes) {
    const struct {
        const char *name;
        size_t value;
    } facts[] = {{OSSL_CIPHER_PARAM_KEYLEN, key_bytes}, {OSSL_CIPHER_PARAM_IVLEN, IV_BYTES},
                 {OSSL_CIPHER_PARAM_BLOCK_SIZE, 1},     {OSSL_CIPHER_PARAM_MODE, EVP_CIPH_GCM_MODE},
                 {OSSL_CIPHER_PARAM_AEAD, 1},           {OSSL_CIPHER_PARAM_CUSTOM_IV, 1}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        OSSL_PARAM *p = OSSL_PARAM_locate(params, facts[i].name);
        // Integers and booleans alike: they fit an int, and OpenSSL asks for the type that it has room for.
        if (p && !OSSL_PARAM_set_uint(p, (unsigned)facts[i].value) && !OSSL_PARAM_set_int(p, (int)facts[i].value)) {
            return 0;
        }
    }
    return 1;
}

static int describe_128(OSSL_PARAM params[]) { // get_params
    return describe(params, 16);
}

static int describe_256(OSSL_PARAM params[]) { // get_params
    return describe(params, 32);
}

#define ENTRY(id, function)                                                                                            \
    { id, (void (*)(void))(function) }
#define CIPHER(create, describe)                                                                                       \
    {                                                                                                                  \
        ENTRY(OSSL_FUNC_CIPHER_NEWCTX, create), ENTRY(OSSL_FUNC_CIPHER_FREECTX, destroy),                              \
            ENTRY(OSSL_FUNC_CIPHER_ENCRYPT_INIT, init_encrypt), ENTRY(OSSL_FUNC_CIPHER_DECRYPT_INIT, init_decrypt),    \
            ENTRY(OSSL_FUNC_CIPHER_UPDATE, update), ENTRY(OSSL_FUNC_CIPHER_FINAL, end),                                \
            ENTRY(OSSL_FUNC_CIPHER_GET_PARAMS, describe), ENTRY(OSSL_FUNC_CIPHER_GET_CTX_PARAMS, get),                 \
            ENTRY(OSSL_FUNC_CIPHER_SET_CTX_PARAMS, set), ENTRY(OSSL_FUNC_CIPHER_GETTABLE_CTX_PARAMS, gettable),        \
            ENTRY(OSSL_FUNC_CIPHER_SETTABLE_CTX_PARAMS, settable), ENTRY(0, NULL)                                      \
    }

static const OSSL_ALGORITHM *query(void *provider, int operation, int *no_cache) { // query_operation
    static const OSSL_DISPATCH aes_128[] = CIPHER(create_128, describe_128),
                               aes_256[] = CIPHER(create_256, describe_256);
    static const OSSL_ALGORITHM ciphers[] = {
        {"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", "provider=" SL_GCM_PROVIDER, aes_128, NULL},
        {"AES-256-GCM:id-aes256-GCM:2.16.840.1.101.3.4.1.46", "provider=" SL_GCM_PROVIDER, aes_256, NULL},
        {NULL, NULL, NULL, NULL},
    };
    (void)provider;
    *no_cache = 0;
    return operation == OSSL_OP_CIPHER ? ciphers : NULL;
}

static void tear_down(void *provider) { // teardown
    struct provider *it = provider;
    free_mb_mgr(it->manager);
    free(it);
}

int sl_gcm_provider(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *core, const OSSL_DISPATCH **functions_out,
                    void **provider_out) {
    static const OSSL_DISPATCH functions[] = {ENTRY(OSSL_FUNC_PROVIDER_QUERY_OPERATION, query),
                                              ENTRY(OSSL_FUNC_PROVIDER_TEARDOWN, tear_down), ENTRY(0, NULL)};
    (void)handle, (void)core;
    struct provider *it = calloc(1, sizeof *it);
    IMB_MGR *m = it ? alloc_mb_mgr(0) : NULL;
    if (!m || (m->features & IMB_CPUFLAGS_AVX512_T2) != IMB_CPUFLAGS_AVX512_T2) {
        free_mb_mgr(m);
        free(it);
        return 0;
    }
    init_mb_mgr_avx512(m);
    *it = (struct provider){
        m,
        {16, m->gcm128_pre, m->gcm128_init, m->gcm128_enc_update, m->gcm128_dec_update, m->gcm128_enc_finalize,
         m->gcm128_dec_finalize},
        {32, m->gcm256_pre, m->gcm256_init, m->gcm256_enc_update, m->gcm256_dec_update, m->gcm256_enc_finalize,
         m->gcm256_dec_finalize},
    };
    *functions_out = functions;
    *provider_out = it;
    return 1;
}
