// SPDX-License-Identifier: Apache-2.0
// Purpose: prefix keys: chained, sensitive to every token and to the length, the same by either function.
#include "tests/unit/kvcache/fixture.h"

enum { N = 300 };

static void random_tokens(int32_t *tokens) {
    uint64_t seed = 3;
    for (int i = 0; i < N; i++) {
        tokens[i] = random_int(&seed, 0, 50000);
    }
}

static void test_prefix_keys_equal_hashes_of_whole_blocks(void **state) {
    (void)state;
    int32_t tokens[N];
    uint64_t keys[8];
    random_tokens(tokens);
    for (int n = 0; n <= N; n++) {
        memset(keys, 0, sizeof keys);
        int64_t n_keys = sl_prefix_keys(tokens, n, keys, 8);
        assert_int_equal(n_keys, n / SL_PREFIX_BLOCK);
        for (int64_t i = 0; i < n_keys; i++) {
            assert_true(keys[i] == sl_prefix_hash(tokens, (i + 1) * SL_PREFIX_BLOCK));
        }
        assert_true(keys[n_keys] == 0);
    }
    keys[2] = 0;
    assert_int_equal(sl_prefix_keys(tokens, N, keys, 2), 2);
    assert_true(keys[2] == 0);
}

static void test_prefix_hash_differs_for_every_length_and_token(void **state) {
    (void)state;
    int32_t tokens[N];
    uint64_t hashes[N + 1];
    random_tokens(tokens);
    for (int n = 0; n <= N; n++) {
        hashes[n] = sl_prefix_hash(tokens, n);
        for (int i = 0; i < n; i++) {
            assert_true(hashes[i] != hashes[n]);
        }
    }
    for (int i = 0; i < N; i++) {
        tokens[i] ^= 1;
        assert_true(sl_prefix_hash(tokens, N) != hashes[N]);
        assert_true(sl_prefix_hash(tokens, i) == hashes[i]); // what comes later does not matter
        tokens[i] ^= 1;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_keys_equal_hashes_of_whole_blocks),
        cmocka_unit_test(test_prefix_hash_differs_for_every_length_and_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
