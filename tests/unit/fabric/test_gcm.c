// SPDX-License-Identifier: Apache-2.0
/*
* Purpose: compares AES-GCM of our provider with OpenSSL's own: equal bytes for equal messages, and the same refusals. Skipped where the
 *          provider is not to be had: OpenSSL's own is then all there is.
 */
#include "harness.h"

#include <openssl/evp.h>
#include <openssl/provider.h>
#include <stdlib.h>
#include <string.h>

#include "net/fabric/link/crypto.h"

#define MAX_BYTES ((size_t)70000)
#define TAG_BYTES 16

static struct sl_crypto crypto;
static EVP_CIPHER *ours[2], *theirs[2]; // of 128 and 256 bits
static uint8_t key[32], iv[12], additional[300], text[MAX_BYTES];

static int set_up(void **state) {
    static const char *const names[] = {"AES-128-GCM", "AES-256-GCM"};
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_crypto_open(&crypto, &err), SL_OK);
    for (int i = 0; i < 2; i++) {
        ours[i] = EVP_CIPHER_fetch(crypto.library, names[i], NULL);
        theirs[i] = EVP_CIPHER_fetch(crypto.library, names[i], "provider=default");
        assert_true(ours[i] && theirs[i]);
    }
    fill_pattern(key, sizeof key, 1);
    fill_pattern(iv, sizeof iv, 2);
    fill_pattern(additional, sizeof additional, 3);
    fill_pattern(text, sizeof text, 4);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        EVP_CIPHER_free(ours[i]);
        EVP_CIPHER_free(theirs[i]);
    }
    sl_crypto_close(&crypto);
    sl_crypto_close(&crypto); // again: nothing
    return 0;
}

static void need_ours(void) {
    if (!crypto.gcm) {
        skip();
    }
}

struct message {
    size_t additional_bytes, bytes, cut; // cut: update()s of so many; 0: one
};

// As OpenSSL's TLS calls it. Returns whether all went well.
static bool crypt(EVP_CIPHER_CTX *context, bool encrypts, const struct message *m, const uint8_t *in, uint8_t *out,
                  uint8_t tag[TAG_BYTES]) {
    int n = 0;
    size_t step = m->cut > 0 ? m->cut : m->bytes;
    if (EVP_CipherInit_ex(context, NULL, NULL, NULL, iv, encrypts) != 1 ||
        (!encrypts && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, tag) != 1)) {
        return false;
    }
    if (m->additional_bytes > 0 && EVP_CipherUpdate(context, NULL, &n, additional, (int)m->additional_bytes) != 1) {
        return false;
    }
    for (size_t at = 0; at < m->bytes; at += step) {
        step = step < m->bytes - at ? step : m->bytes - at;
        if (EVP_CipherUpdate(context, out + at, &n, in + at, (int)step) != 1 || n != (int)step) {
            return false;
        }
    }
    uint8_t nothing[16];
    return EVP_CipherFinal_ex(context, nothing, &n) == 1 && n == 0 &&
           (!encrypts || EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag) == 1);
}

static EVP_CIPHER_CTX *context_of(const EVP_CIPHER *cipher, bool encrypts) {
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_non_null(context);
    assert_int_equal(EVP_CipherInit_ex(context, cipher, NULL, key, NULL, encrypts), 1);
    return context;
}

static void compare(int strength, const struct message *m) {
    // Exactly so long: a byte beyond is seen by the sanitizers.
    uint8_t *a = malloc(m->bytes + 1), *b = malloc(m->bytes + 1), tag_a[TAG_BYTES], tag_b[TAG_BYTES];
    assert_true(a && b);
    a[m->bytes] = 77;
    EVP_CIPHER_CTX *our = context_of(ours[strength], true), *their = context_of(theirs[strength], true);
    assert_true(crypt(our, true, m, text, a, tag_a));
    assert_true(crypt(their, true, m, text, b, tag_b));
    assert_memory_equal(a, b, m->bytes);
    assert_memory_equal(tag_a, tag_b, TAG_BYTES);
    EVP_CIPHER_CTX *back = context_of(ours[strength], false);
    assert_true(crypt(back, false, m, a, a, tag_b)); // in place, as TLS does it
    assert_memory_equal(a, text, m->bytes);
    memcpy(a, b, m->bytes);
    tag_b[m->bytes % TAG_BYTES] ^= 1;
    assert_false(crypt(back, false, m, a, a, tag_b));
    tag_b[m->bytes % TAG_BYTES] ^= 1;
    if (m->bytes > 0) {
        b[m->bytes / 2] ^= 4;
        assert_false(crypt(back, false, m, b, b, tag_b));
        b[m->bytes / 2] ^= 4;
    }
    if (m->additional_bytes > 0) {
        additional[m->additional_bytes - 1] ^= 4;
        assert_false(crypt(back, false, m, a, a, tag_b));
        additional[m->additional_bytes - 1] ^= 4;
    }
    assert_int_equal(a[m->bytes], 77);
    EVP_CIPHER_CTX_free(our);
    EVP_CIPHER_CTX_free(their);
    EVP_CIPHER_CTX_free(back);
    free(a);
    free(b);
}

static void test_bytes_are_openssls(void **state) {
    (void)state;
    need_ours();
    static const size_t sizes[] = {1023, 1024, 4097, 16383, 16384, 16385, 16401, 65536, MAX_BYTES};
    for (int strength = 0; strength < 2; strength++) {
        for (size_t n = 0; n < 600; n++) {
            compare(strength, &(struct message){n % 23, n, n % 7 == 0 ? 0 : n % 97});
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            compare(strength, &(struct message){5, sizes[i], 0});
            compare(strength, &(struct message){sizeof additional, sizes[i], 1000 + i});
        }
    }
}

static void test_cipher_is_what_tls_asks_for(void **state) {
    (void)state;
    need_ours();
    for (int i = 0; i < 2; i++) {
        assert_string_equal(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(ours[i])), "sluice-gcm");
        assert_string_equal(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(theirs[i])), "default");
        assert_int_equal(EVP_CIPHER_get_key_length(ours[i]), EVP_CIPHER_get_key_length(theirs[i]));
        assert_int_equal(EVP_CIPHER_get_iv_length(ours[i]), EVP_CIPHER_get_iv_length(theirs[i]));
        assert_int_equal(EVP_CIPHER_get_mode(ours[i]), EVP_CIPHER_get_mode(theirs[i]));
        assert_int_equal(EVP_CIPHER_get_block_size(ours[i]), EVP_CIPHER_get_block_size(theirs[i]));
        assert_true(EVP_CIPHER_get_flags(ours[i]) & EVP_CIPH_FLAG_AEAD_CIPHER);
        assert_int_equal(EVP_CIPHER_get_nid(ours[i]), EVP_CIPHER_get_nid(theirs[i]));
        EVP_CIPHER_CTX *context = context_of(ours[i], true);
        assert_int_equal(EVP_CIPHER_CTX_get_iv_length(context), 12);
        assert_int_equal(EVP_CIPHER_CTX_get_tag_length(context), TAG_BYTES);
        EVP_CIPHER_CTX_free(context);
    }
}

// An IV is good for one message, and everything of a message comes in its order.
static void test_misuse_is_refused(void **state) {
    (void)state;
    need_ours();
    uint8_t out[64], tag[TAG_BYTES] = {0};
    int n = 0;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_CipherInit_ex(context, ours[0], NULL, NULL, iv, 1), 1); // without a key
    assert_int_equal(EVP_CipherUpdate(context, out, &n, text, 16), 0);
    assert_int_equal(EVP_CipherInit_ex(context, NULL, NULL, key, NULL, 1), 1); // without an IV
    assert_int_equal(EVP_CipherUpdate(context, NULL, &n, additional, 5), 0);
    assert_int_equal(EVP_CipherUpdate(context, out, &n, text, 16), 0);
    assert_int_equal(EVP_CipherFinal_ex(context, out, &n), 0);
    assert_int_equal(EVP_CipherInit_ex(context, NULL, NULL, NULL, iv, 1), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag), 0); // before the end
    assert_int_equal(EVP_CipherUpdate(context, NULL, &n, additional, 5), 1);
    assert_int_equal(EVP_CipherUpdate(context, NULL, &n, additional, 5), 0); // in two parts
    assert_int_equal(EVP_CipherUpdate(context, out, &n, text, 16), 1);
    assert_int_equal(EVP_CipherUpdate(context, NULL, &n, additional, 5), 0);
    assert_int_equal(EVP_CipherFinal_ex(context, out, &n), 1);
    assert_int_equal(EVP_CipherUpdate(context, out, &n, text, 16), 0); // a second message
    assert_int_equal(EVP_CipherFinal_ex(context, out, &n), 0);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IVLEN, 16, NULL), 0);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IVLEN, 12, NULL), 1);
    // Decrypting, without a tag and with a short one.
    assert_int_equal(EVP_CipherInit_ex(context, NULL, NULL, NULL, iv, 0), 1);
    assert_int_equal(EVP_CipherUpdate(context, out, &n, text, 16), 1);
    assert_int_equal(EVP_CipherFinal_ex(context, out, &n), 0);
    assert_int_equal(EVP_CipherInit_ex(context, NULL, NULL, NULL, iv, 0), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 4, tag), 0);
    EVP_CIPHER_CTX_free(context);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_openssls),
        cmocka_unit_test(test_cipher_is_what_tls_asks_for),
        cmocka_unit_test(test_misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
