// SPDX-License-Identifier: Apache-2.0
// Purpose: the bootstrap where its answer is known: constants, two values, normal differences.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "lab/bootstrap.h"

static void assert_near(double x, double y, double tolerance) {
    if (!(fabs(x - y) <= tolerance)) {
        fail_msg("%.6f is not within %g of %.6f", x, tolerance, y);
    }
}

static void test_bootstrap_of_nothing_is_nan(void **state) {
    (void)state;
    struct sl_interval none = sl_bootstrap_mean(NULL, 0, 1);
    assert_true(isnan(none.mean) && isnan(none.low) && isnan(none.high));
}

static void test_bootstrap_of_a_single_sample_has_no_interval(void **state) {
    (void)state;
    struct sl_interval one = sl_bootstrap_mean((double[]){0.25}, 1, 1);
    assert_true(one.mean == 0.25 && isnan(one.low) && isnan(one.high));
}

static void test_bootstrap_of_a_constant_is_exact(void **state) {
    (void)state;
    double differences[40];
    for (uint32_t i = 0; i < 40; i++) {
        differences[i] = -0.125;
    }
    struct sl_interval same = sl_bootstrap_mean(differences, 40, 1);
    assert_true(fabs(same.mean + 0.125) < 1e-12 && fabs(same.low + 0.125) < 1e-12 && fabs(same.high + 0.125) < 1e-12);
}

static void test_bootstrap_is_a_function_of_its_seed(void **state) {
    (void)state;
    double differences[] = {0.1, 0.9, 0.3, 0.4, 0.7, 0.2};
    struct sl_interval a = sl_bootstrap_mean(differences, 6, 7), b = sl_bootstrap_mean(differences, 6, 7),
                       c = sl_bootstrap_mean(differences, 6, 8);
    assert_true(a.mean == b.mean && a.low == b.low && a.high == b.high);
    assert_true(a.low != c.low || a.high != c.high);
    assert_true(a.low < a.mean && a.mean < a.high);
}

// n tosses of a coin: sums are binomial, whose quantiles are known.
static void test_bootstrap_has_the_binomials_quantiles(void **state) {
    (void)state;
    double tosses[100];
    for (int i = 0; i < 100; i++) {
        tosses[i] = i < 50;
    }
    struct sl_interval coin = sl_bootstrap_mean(tosses, 100, 3);
    assert_near(coin.mean, 0.5, 1e-12);
    assert_near(coin.low, 0.40, 0.0101); // P(X <= 40 of 100) = 0.028, P(X <= 39) = 0.018
    assert_near(coin.high, 0.60, 0.0101);
}

// Uniform from 0 to 1.
static double uniform(uint64_t *state) {
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static double normal(uint64_t *state) {
    double radius = sqrt(-2 * log(1 - uniform(state)));
    return radius * cos(2 * 3.14159265358979 * uniform(state));
}

// About 95% of the intervals of 400 experiments hold the true mean: 4 standard errors are 4.4%.
static void test_bootstrap_covers_the_mean(void **state) {
    (void)state;
    uint64_t random = 12345;
    int n_covered = 0;
    for (int experiment = 0; experiment < 400; experiment++) {
        double differences[60];
        for (uint32_t i = 0; i < 60; i++) {
            differences[i] = 0.2 + 0.5 * normal(&random);
        }
        struct sl_interval interval = sl_bootstrap_mean(differences, 60, (uint64_t)experiment);
        n_covered += interval.low <= 0.2 && 0.2 <= interval.high;
    }
    assert_in_range(n_covered, 362, 397);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bootstrap_of_nothing_is_nan),
        cmocka_unit_test(test_bootstrap_of_a_single_sample_has_no_interval),
        cmocka_unit_test(test_bootstrap_of_a_constant_is_exact),
        cmocka_unit_test(test_bootstrap_is_a_function_of_its_seed),
        cmocka_unit_test(test_bootstrap_has_the_binomials_quantiles),
        cmocka_unit_test(test_bootstrap_covers_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
