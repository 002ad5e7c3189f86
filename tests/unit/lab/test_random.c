// SPDX-License-Identifier: Apache-2.0
// Purpose: random numbers stay what they are, streams are unrelated, permutations permute.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "lab/random.h"

// splitmix64 from state 0, as published with its source (prng.di.unimi.it): other numbers would be other questions.
static void test_random_is_splitmix64(void **state) {
    (void)state;
    struct sl_random random = {0};
    assert_int_equal(sl_random_next(&random), 0xe220a8397b1dcdafu);
    assert_int_equal(sl_random_next(&random), 0x6e789e6aa1b965f4u);
    assert_int_equal(sl_random_next(&random), 0x06c45d188009454fu);
}

static void test_random_streams_differ(void **state) {
    (void)state;
    // Streams that differ in one thing, and streams that would be equal a step later if seeds were just added.
    struct sl_random streams[] = {
        sl_random_start("a", 1, 0), sl_random_start("b", 1, 0), sl_random_start("a", 2, 0),
        sl_random_start("a", 1, 1), sl_random_start("a", 0, 1), sl_random_start("a", 1, 2),
    };
    enum { N = sizeof streams / sizeof *streams, DRAWS = 64 };
    uint64_t drawn[N][DRAWS];
    for (int s = 0; s < N; s++) {
        for (int i = 0; i < DRAWS; i++) {
            drawn[s][i] = sl_random_next(&streams[s]);
        }
        for (int other = 0; other < s; other++) {
            for (int i = 0; i < DRAWS; i++) {
                for (int j = 0; j < DRAWS; j++) {
                    assert_int_not_equal(drawn[s][i], drawn[other][j]);
                }
            }
        }
    }
    struct sl_random again = sl_random_start("a", 1, 0);
    assert_int_equal(sl_random_next(&again), drawn[0][0]);
}

static void test_random_below_is_even(void **state) {
    (void)state;
    enum { N = 7, DRAWS = 70000 };
    struct sl_random random = sl_random_start("even", 3, 0);
    int counts[N] = {0};
    for (int i = 0; i < DRAWS; i++) {
        uint64_t draw = sl_random_below(&random, N);
        assert_true(draw < N);
        counts[draw]++;
    }
    for (int i = 0; i < N; i++) { // 5 standard deviations of 93
        assert_in_range(counts[i], DRAWS / N - 465, DRAWS / N + 465);
    }
    assert_int_equal(sl_random_below(&random, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_is_splitmix64),
        cmocka_unit_test(test_random_streams_differ),
        cmocka_unit_test(test_random_below_is_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
