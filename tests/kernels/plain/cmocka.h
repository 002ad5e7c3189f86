// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: as much of cmocka's interface as check_dense.c and check_matmul.c use, for processors that we build for without
 *          having their libraries (neon_compiles.sh). What fails ends the program.
 */
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define fail_msg(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), abort())

#define assert_true(c)                   ((c) ? (void)0 : fail_msg("%s\n", #c))
#define assert_int_equal(a, b)           assert_true((long long)(a) == (long long)(b))
#define assert_float_equal(a, b, e)      assert_true(fabs((double)(a) - (double)(b)) <= (e))
#define assert_null(p)                   assert_true((p) == NULL)
#define assert_non_null(p)               assert_true((p) != NULL)
#define assert_string_equal(a, b)        assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, n)     assert_true(memcmp(a, b, n) == 0)
#define assert_memory_not_equal(a, b, n) assert_true(memcmp(a, b, n) != 0)

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f)                                                                                            \
    { #f, f }

static inline int run_tests(const struct CMUnitTest *tests, size_t n) {
    void *state = NULL;
    for (size_t i = 0; i < n; i++) {
        tests[i].run(&state);
        printf("[       OK ] %s\n", tests[i].name);
    }
    return 0;
}

#define cmocka_run_group_tests(tests, setup, teardown) run_tests(tests, sizeof(tests) / sizeof((tests)[0]))
