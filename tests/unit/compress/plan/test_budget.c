// SPDX-License-Identifier: Apache-2.0
// Budgets divided over layers and heads: sums are exact, bounds are kept, and a larger weight never gets less.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/plan/budget.h"

static int64_t sum_of(const int64_t *shares, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += shares[i];
    }
    return sum;
}

static void assert_shares(const int64_t *shares, const int64_t *expected, int n) {
    for (int i = 0; i < n; i++) {
        if (shares[i] != expected[i]) {
            fail_msg("share %d is %lld, expected %lld", i, (long long)shares[i], (long long)expected[i]);
        }
    }
}

static void test_budget_divide_by_hand(void **state) {
    (void)state;
    int64_t shares[4];
    sl_budget_divide(10, (double[]){1, 1, 1}, 3, 0, 10, shares); // 10/3 each: the first gets the rest
    assert_shares(shares, (int64_t[]){4, 3, 3}, 3);
    sl_budget_divide(10, (double[]){1, 2, 2}, 3, 0, 10, shares);
    assert_shares(shares, (int64_t[]){2, 4, 4}, 3);
    sl_budget_divide(10, (double[]){1, 2.25, 0.25}, 3, 0, 10, shares); // 2.857, 6.429, .714: remainders of 1 and 3
    assert_shares(shares, (int64_t[]){3, 6, 1}, 3);
    sl_budget_divide(12, (double[]){10, 1, 1}, 3, 0, 6, shares); // 6, and what is left over in proportion
    assert_shares(shares, (int64_t[]){6, 3, 3}, 3);
    sl_budget_divide(12, (double[]){10, 2, 1}, 3, 0, 6, shares);
    assert_shares(shares, (int64_t[]){6, 4, 2}, 3);
    sl_budget_divide(12, (double[]){10, 2, 0}, 3, 3, 8, shares); // the last is raised, at the others' cost
    assert_shares(shares, (int64_t[]){6, 3, 3}, 3);
    sl_budget_divide(7, (double[]){0, 0, 0}, 3, 1, 5, shares);
    assert_shares(shares, (int64_t[]){3, 2, 2}, 3);
    sl_budget_divide(9, (double[]){1, 0, 0}, 3, 0, 5, shares); // beyond the most, what has no weight is equal
    assert_shares(shares, (int64_t[]){5, 2, 2}, 3);
    sl_budget_divide(9, (double[]){NAN, INFINITY, 1}, 3, 0, 5, shares); // broken weights count as none
    assert_shares(shares, (int64_t[]){2, 2, 5}, 3);
    sl_budget_divide(20, (double[]){1e308, 1e308, 1e-308, 0}, 4, 0, 20, shares);
    assert_shares(shares, (int64_t[]){10, 10, 0, 0}, 4);
}

static double random_weight(int kind) {
    switch (kind) {
    case 0:
        return 1;
    case 1:
        return exp((double)(rand() % 2000) / 100 - 10);
    case 2:
        return rand() % 3 ? exp((double)(rand() % 600) - 300) : 0;
    default:
        return rand() % 4;
    }
}

static void test_budget_divide_is_exact_bounded_and_ordered(void **state) {
    (void)state;
    srand(1);
    for (int round = 0; round < 20000; round++) {
        int n = 1 + rand() % 60, kind = rand() % 4;
        double weights[60];
        int64_t shares[60], least = rand() % 5, most = least + rand() % 3000;
        int64_t total = n * least + (most > least ? rand() % (n * (most - least) + 1) : 0);
        for (int i = 0; i < n; i++) {
            weights[i] = random_weight(kind);
        }
        sl_budget_divide(total, weights, n, least, most, shares);
        assert_int_equal(sum_of(shares, n), total);
        for (int i = 0; i < n; i++) {
            assert_in_range(shares[i], least, most);
            for (int j = 0; j < i; j++) {
                assert_false(weights[i] > weights[j] && shares[i] < shares[j]);
                assert_false(weights[i] < weights[j] && shares[i] > shares[j]);
                assert_true(weights[i] != weights[j] || llabs(shares[i] - shares[j]) <= 1);
            }
        }
    }
}

static void test_budget_pyramid_falls_linearly(void **state) {
    (void)state;
    int64_t shares[32];
    sl_budget_pyramid(5 * 1000, 5, 0, 4096, shares); // 1950 down to 50
    assert_shares(shares, (int64_t[]){1950, 1475, 1000, 525, 50}, 5);
    sl_budget_pyramid(5 * 1000, 5, 0, 1800, shares); // no more than there is: the line tilts less, its mean stays
    assert_shares(shares, (int64_t[]){1800, 1400, 1000, 600, 200}, 5);
    sl_budget_pyramid(5 * 1000, 5, 600, 4096, shares);
    assert_shares(shares, (int64_t[]){1400, 1200, 1000, 800, 600}, 5);
    sl_budget_pyramid(77, 1, 0, 100, shares);
    assert_int_equal(shares[0], 77);
    srand(2);
    for (int round = 0; round < 5000; round++) {
        int n = 1 + rand() % 32;
        int64_t least = rand() % 50, most = least + rand() % 3000;
        int64_t total = n * least + (most > least ? rand() % (n * (most - least) + 1) : 0);
        sl_budget_pyramid(total, n, least, most, shares);
        assert_int_equal(sum_of(shares, n), total);
        for (int i = 0; i < n; i++) {
            assert_in_range(shares[i], least, most);
            assert_true(i == 0 || shares[i] <= shares[i - 1]);
        }
    }
}

// With one head a layer the raw reading is x itself: softmax(-(0, .5, 1)) * 3 * .3
static void test_budget_d2o_golden(void **state) {
    (void)state;
    const double x[3] = {0, 0.5, 1}, alpha[3] = {0.455832, 0.276476, 0.167691};
    double weights[3];
    sl_budget_d2o_weights(SL_LAYERS_D2O_RAW, x, 3, 1, weights);
    for (int l = 0; l < 3; l++) {
        assert_true(fabs(weights[l] * 3 * 0.3 - alpha[l]) < 1e-6);
    }
    // Over the heads of a layer both are (0, 1), so their mean is the same, however large the variances are.
    const double variances[2][2] = {{3, 5}, {1e6, 1e6 + 1}};
    sl_budget_d2o_weights(SL_LAYERS_D2O, &variances[0][0], 2, 2, weights);
    assert_true(fabs(weights[0] - 0.5) < 1e-6 && fabs(weights[1] - 0.5) < 1e-6);
    const double skewed[2][3] = {{0, 0, 9}, {0, 9, 9}}; // x = 1/3, 2/3
    sl_budget_d2o_weights(SL_LAYERS_D2O, &skewed[0][0], 2, 3, weights);
    assert_true(fabs(weights[0] / weights[1] - exp(1.0 / 3)) < 1e-5);
    const double far[3] = {100, 600, 1100}; // over layers: 0, .5, 1
    sl_budget_d2o_weights(SL_LAYERS_D2O_MINMAX, far, 3, 1, weights);
    for (int l = 0; l < 3; l++) {
        assert_true(fabs(weights[l] * 3 * 0.3 - alpha[l]) < 1e-6);
    }
    sl_budget_d2o_weights(SL_LAYERS_D2O_RAW, far, 3, 1, weights); // as degenerate as it is, but a number
    assert_true(fabs(weights[0] - 1) < 1e-9 && weights[1] >= 0 && weights[2] >= 0);
    const double huge[3] = {1e300, 2e300, 3e300};
    sl_budget_d2o_weights(SL_LAYERS_D2O_RAW, huge, 3, 1, weights);
    assert_true(weights[0] == 1 && weights[1] == 0 && weights[2] == 0);
}

static void test_budget_d2o_equal_variances_are_uniform_and_denser_layers_get_more(void **state) {
    (void)state;
    srand(3);
    for (int round = 0; round < 3000; round++) {
        int n = 1 + rand() % 32, n_heads = 1 + rand() % 8;
        double variances[32 * 8], weights[32];
        int64_t shares[32], total = rand() % (n * 1000 + 1);
        for (int i = 0; i < n * n_heads; i++) {
            variances[i] = round % 2 ? 2.5 : (double)(rand() % 1000) / 100;
        }
        enum sl_split_layers reading = (enum sl_split_layers)(SL_LAYERS_D2O + rand() % 3);
        sl_budget_d2o_weights(reading, variances, n, n_heads, weights);
        sl_budget_divide(total, weights, n, 0, 1000, shares);
        assert_int_equal(sum_of(shares, n), total);
        for (int i = 0; i < n; i++) {
            double f_i = 0;
            for (int h = 0; h < n_heads; h++) {
                f_i += variances[i * n_heads + h];
            }
            for (int j = 0; j < i; j++) {
                double f_j = 0;
                for (int h = 0; h < n_heads; h++) {
                    f_j += variances[j * n_heads + h];
                }
                if (round % 2) {
                    assert_true(llabs(shares[i] - shares[j]) <= 1);
                } else if (reading != SL_LAYERS_D2O) { // whose x is not a function of the mean
                    assert_false(f_i < f_j - 1e-6 && shares[i] < shares[j]);
                    assert_false(f_i > f_j + 1e-6 && shares[i] > shares[j]);
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_divide_by_hand),
        cmocka_unit_test(test_budget_divide_is_exact_bounded_and_ordered),
        cmocka_unit_test(test_budget_pyramid_falls_linearly),
        cmocka_unit_test(test_budget_d2o_golden),
        cmocka_unit_test(test_budget_d2o_equal_variances_are_uniform_and_denser_layers_get_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
