// SPDX-License-Identifier: Apache-2.0
// Purpose: the longest prefix wins, the cap holds, the least recently used goes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "coordinator/workers/affinity.h"

static struct sl_affinity *make(size_t max_entries) {
    struct sl_affinity *affinity = NULL;
    struct sl_error err;
    assert_int_equal(sl_affinity_create(max_entries, &affinity, &err), SL_OK);
    return affinity;
}

static void make_keys(uint64_t prompt, uint64_t *keys, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        keys[i] = sl_hash(&i, sizeof(i), prompt);
    }
}

static void test_affinity_finds_longest_prefix(void **state) {
    (void)state;
    struct sl_affinity *affinity = make(100);
    uint64_t keys[10], other[10], worker = 77;
    make_keys(1, keys, 10);
    make_keys(2, other, 10);
    assert_int_equal(sl_affinity_match(affinity, keys, 10, &worker), 0);
    assert_int_equal(worker, 0);
    sl_affinity_put(affinity, keys, 6, 11);
    sl_affinity_put(affinity, keys, 3, 12); // another worker has read the short prefixes since
    assert_int_equal(sl_affinity_match(affinity, keys, 10, &worker), 6);
    assert_int_equal(worker, 11);
    assert_int_equal(sl_affinity_match(affinity, keys, 3, &worker), 3);
    assert_int_equal(worker, 12);
    assert_int_equal(sl_affinity_match(affinity, other, 10, &worker), 0);
    assert_int_equal(sl_affinity_match(affinity, keys, 0, &worker), 0);
    sl_affinity_destroy(&affinity);
    assert_null(affinity);
    sl_affinity_destroy(&affinity);
}

static void test_affinity_cap_holds_and_oldest_goes(void **state) {
    (void)state;
    struct sl_affinity *affinity = make(64);
    uint64_t favourite[1], keys[4], worker;
    make_keys(1000000, favourite, 1);
    sl_affinity_put(affinity, favourite, 1, 5);
    for (uint64_t prompt = 0; prompt < 5000; prompt++) {
        make_keys(prompt, keys, 4);
        sl_affinity_put(affinity, keys, 4, prompt + 1);
        assert_int_equal(sl_affinity_match(affinity, favourite, 1, &worker), 1); // used, so it stays
        assert_int_equal(worker, 5);
        assert_int_equal(sl_affinity_match(affinity, keys, 4, &worker), 4);
        assert_int_equal(worker, prompt + 1);
    }
    int64_t n_known = 0;
    for (uint64_t prompt = 0; prompt < 5000; prompt++) {
        make_keys(prompt, keys, 4);
        n_known += sl_affinity_match(affinity, keys, 4, &worker);
    }
    assert_in_range(n_known, 60, 67); // a longest prefix, which was matched, outlives the others of its prompt
    sl_affinity_destroy(&affinity);
}

static void test_affinity_of_one_entry_works(void **state) {
    (void)state;
    struct sl_affinity *affinity = make(1);
    uint64_t keys[3], worker;
    make_keys(9, keys, 3);
    sl_affinity_put(affinity, keys, 3, 4);
    assert_int_equal(sl_affinity_match(affinity, keys, 3, &worker), 1); // the shortest was put last
    sl_affinity_destroy(&affinity);
    struct sl_error err;
    assert_int_equal(sl_affinity_create(0, &affinity, &err), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_affinity_finds_longest_prefix),
        cmocka_unit_test(test_affinity_cap_holds_and_oldest_goes),
        cmocka_unit_test(test_affinity_of_one_entry_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
