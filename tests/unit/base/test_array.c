// SPDX-License-Identifier: Apache-2.0
// Purpose: an array grows by doubling, keeps its items, and stays as it is where there is no memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/array.h"

static void test_it_grows_by_doubling(void **state) {
    (void)state;
    int *items = NULL;
    size_t capacity = 0, n_grown = 0;
    for (size_t i = 0; i < 1000; i++) {
        size_t before = capacity;
        assert_true(sl_array_reserve(&items, &capacity, i + 1, sizeof *items));
        n_grown += capacity != before;
        items[i] = (int)i;
    }
    assert_int_equal(capacity, 1024);
    assert_int_equal(n_grown, 7); // 16, 32, ..., 1024
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(items[i], i);
    }
    assert_true(sl_array_reserve(&items, &capacity, 5000, sizeof *items)); // more than twice as many
    assert_int_equal(capacity, 5000);
    assert_int_equal(items[999], 999);
    free(items);
}

static void test_without_memory_nothing_changes(void **state) {
    (void)state;
    int *items = NULL;
    size_t capacity = 0;
    assert_true(sl_array_reserve(&items, &capacity, 1, sizeof *items));
    int *before = items;
    volatile size_t too_many = SIZE_MAX / 2; // which overflows
    assert_false(sl_array_reserve(&items, &capacity, too_many, sizeof *items));
    assert_ptr_equal(items, before);
    assert_int_equal(capacity, 16);
    free(items);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_grows_by_doubling),
        cmocka_unit_test(test_without_memory_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
