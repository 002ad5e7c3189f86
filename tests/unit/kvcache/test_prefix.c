// SPDX-License-Identifier: Apache-2.0
// Purpose: prefix keys: chained, sensitive to every token, to the length and to the salt, the same by either function and by others'.
#include "tests/unit/kvcache/fixture.h"

enum { N = 300 };

static const struct sl_hash128 salt = {{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3}};

static void random_tokens(int32_t *tokens) {
    uint64_t seed = 3;
    for (int i = 0; i < N; i++) {
        tokens[i] = random_int(&seed, 0, 50000);
    }
}

static bool is_hash_of(const struct sl_hash128 *hash, const struct sl_hash128 *under, const int32_t *tokens,
                       int64_t n) {
    struct sl_hash128 other = sl_prefix_hash(under, tokens, n);
    return sl_hash128_equals(hash, &other);
}

static void test_prefix_keys_equal_hashes_of_whole_blocks(void **state) {
    (void)state;
    int32_t tokens[N];
    struct sl_hash128 keys[8];
    random_tokens(tokens);
    for (int n = 0; n <= N; n++) {
        memset(keys, 0, sizeof keys);
        int64_t n_keys = sl_prefix_keys(&salt, tokens, n, keys, 8);
        assert_int_equal(n_keys, n / SL_PREFIX_BLOCK);
        for (int64_t i = 0; i < n_keys; i++) {
            assert_true(is_hash_of(&keys[i], &salt, tokens, (i + 1) * SL_PREFIX_BLOCK));
        }
        assert_true(sl_hash128_is_zero(&keys[n_keys]));
        struct sl_hash128 hash = sl_prefix_hash_after(&salt, keys, tokens, n);
        assert_true(is_hash_of(&hash, &salt, tokens, n));
    }
    keys[2] = (struct sl_hash128){{0}};
    assert_int_equal(sl_prefix_keys(&salt, tokens, N, keys, 2), 2);
    assert_true(sl_hash128_is_zero(&keys[2]));
}

static void test_prefix_hash_differs_for_every_length_and_token(void **state) {
    (void)state;
    int32_t tokens[N];
    struct sl_hash128 hashes[N + 1];
    random_tokens(tokens);
    for (int n = 0; n <= N; n++) {
        hashes[n] = sl_prefix_hash(&salt, tokens, n);
        for (int i = 0; i < n; i++) {
            assert_false(sl_hash128_equals(&hashes[i], &hashes[n]));
        }
    }
    for (int i = 0; i < N; i++) {
        tokens[i] ^= 1;
        assert_false(is_hash_of(&hashes[N], &salt, tokens, N));
        assert_true(is_hash_of(&hashes[i], &salt, tokens, i)); // what comes later does not matter
        tokens[i] ^= 1;
    }
}

static void test_prefix_hash_differs_for_every_bit_of_the_salt(void **state) {
    (void)state;
    int32_t tokens[N];
    struct sl_hash128 ours[N / SL_PREFIX_BLOCK], theirs[N / SL_PREFIX_BLOCK];
    random_tokens(tokens);
    sl_prefix_keys(&salt, tokens, N, ours, N / SL_PREFIX_BLOCK);
    for (int bit = 0; bit < 128; bit++) {
        struct sl_hash128 other = salt;
        other.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        sl_prefix_keys(&other, tokens, N, theirs, N / SL_PREFIX_BLOCK);
        for (int i = 0; i < N / SL_PREFIX_BLOCK; i++) {
            for (int j = 0; j < N / SL_PREFIX_BLOCK; j++) {
                assert_false(sl_hash128_equals(&ours[i], &theirs[j]));
            }
        }
        struct sl_hash128 whole = sl_prefix_hash(&salt, tokens, N);
        assert_false(is_hash_of(&whole, &other, tokens, N));
    }
}

// key = 16 zeros; for each block of 64 tokens: key = SIPHASH-128(salt, key + block), by openssl mac, the tokens being 0, 3, 6, ...
static void test_prefix_hash_is_what_others_compute(void **state) {
    (void)state;
    static const struct {
        int64_t n_tokens;
        struct sl_hash128 hash;
    } rows[] = {
        {0, {{0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}}},
        {1, {{0x41, 0xb3, 0xd7, 0x0a, 0x8c, 0x77, 0x09, 0x90, 0xa1, 0x2d, 0xee, 0xe3, 0x37, 0x3f, 0x3b, 0xf5}}},
        {64, {{0x5f, 0x0c, 0x7c, 0x90, 0x72, 0x6a, 0x2a, 0x6c, 0x51, 0x41, 0xea, 0x46, 0xeb, 0xb7, 0x4b, 0x03}}},
        {65, {{0x0b, 0xcb, 0xdb, 0x2d, 0xab, 0xc9, 0x0a, 0x1f, 0x21, 0xa8, 0xfd, 0x91, 0x7b, 0xd2, 0x53, 0x35}}},
        {300, {{0xca, 0x0c, 0x40, 0x31, 0x91, 0xfe, 0x76, 0xc0, 0xe5, 0x05, 0xd8, 0xaf, 0x9d, 0x22, 0x0c, 0x44}}},
    };
    int32_t tokens[N];
    for (int i = 0; i < N; i++) {
        tokens[i] = 3 * i;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(is_hash_of(&rows[i].hash, &salt, tokens, rows[i].n_tokens));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_keys_equal_hashes_of_whole_blocks),
        cmocka_unit_test(test_prefix_hash_differs_for_every_length_and_token),
        cmocka_unit_test(test_prefix_hash_differs_for_every_bit_of_the_salt),
        cmocka_unit_test(test_prefix_hash_is_what_others_compute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
