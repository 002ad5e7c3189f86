// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds value_change, what evicting a slot does to the attention output (CAOTE), to its formulas in every tier.
 *          check_evict.c times it.
 */
#include "tests/kernels/evict_fixture.h"
#include "tests/stream.h"

static void change_of(const struct sl_ops *ops, const struct sl_kv *kv, const float *weights, bool mean_center,
                      float *change_out) {
    const struct sl_kv_heads heads = one_head(kv);
    ops->value_change(NULL, &heads, 1, one_vector(weights), mean_center, one_vector(change_out));
}

static void test_value_change_gives_the_golden_vectors(void **state) {
    (void)state;
    static const double exact[] = {.583095, .368671, .145774}, fast[] = {.745356, .319438, .117851};
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        float weights[] = {.5f, .3f, .2f}, change[3];
        open_head(&c, tier(*name), SL_KV_F32, 8, 3, 0);
        set_row(&c, v_of(&c, 0), 1, 0);
        set_row(&c, v_of(&c, 1), 0, 1);
        set_row(&c, v_of(&c, 2), 1, 1);
        change_of(tier(*name), c.kv, weights, false, change);
        for (int j = 0; j < 3; j++) {
            assert_true(fabs((double)change[j] - exact[j]) < within(*name, 1e-6));
        }
        change_of(tier(*name), c.kv, weights, true, change);
        for (int j = 0; j < 3; j++) {
            assert_true(fabs((double)change[j] - fast[j]) < within(*name, 1e-6));
        }
        cache_free(&c);
    }
}

// || o - o without slot j || by leaving slot j out and dividing by what is left
static double change_by_removal(const float *v, const float *weights, uint32_t n, int d, uint32_t removed) {
    double all = 0, rest = 0, squares = 0;
    for (uint32_t j = 0; j < n; j++) {
        all += (double)weights[j];
        rest += j == removed ? 0.0 : (double)weights[j];
    }
    for (int i = 0; i < d; i++) {
        double with = 0, without = 0;
        for (uint32_t j = 0; j < n; j++) {
            double x = (double)weights[j] * (double)v[j * (size_t)d + (size_t)i];
            with += x / all;
            without += j == removed ? 0.0 : x / rest;
        }
        squares += (with - without) * (with - without);
    }
    return sqrt(squares);
}

static void test_value_change_equals_the_output_change_of_removal(void **state) {
    (void)state;
    static const int dims[] = {8, 40, 64, 128};
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t f = 0; f < N_FORMATS; f++) {
            for (size_t s = 0; s < 4; s++) {
                enum { N = 150 };
                struct cache c;
                int d = dims[s];
                open_head(&c, tier(*name), formats[f], d, N, 1);
                float *v = take(N * (size_t)d * sizeof *v), *weights = random_weights(N, 31 + f), change[N];
                tier("reference")->read_rows(c.kv, 0, N, NULL, v);
                change_of(tier(*name), c.kv, weights, false, change);
                for (uint32_t j = 0; j < N; j++) {
                    assert_close((double)change[j], change_by_removal(v, weights, N, d, j), 1e-5);
                }
                free(v);
                free(weights);
                cache_free(&c);
            }
        }
    }
}

static void test_value_change_around_the_mean_equals_its_formula(void **state) {
    (void)state;
    enum { N = 200, D = 72 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t f = 0; f < N_FORMATS - 3; f++) {
            struct cache c;
            open_head(&c, tier(*name), formats[f], D, N, 0);
            float *v = take(N * D * sizeof *v), *weights = random_weights(N, 37), change[N];
            double sum = 0, mean[D] = {0};
            tier("reference")->read_rows(c.kv, 0, N, NULL, v);
            for (int j = 0; j < N; j++) {
                sum += (double)weights[j];
                for (int i = 0; i < D; i++) {
                    mean[i] += (double)v[j * D + i] / N;
                }
            }
            change_of(tier(*name), c.kv, weights, true, change);
            for (int j = 0; j < N; j++) {
                double squares = 0, a = (double)weights[j] / sum;
                for (int i = 0; i < D; i++) {
                    squares += pow(mean[i] - (double)v[j * D + i], 2);
                }
                assert_close((double)change[j], a / (1 - a) * sqrt(squares), 1e-5);
            }
            free(v);
            free(weights);
            cache_free(&c);
        }
    }
}

// Adding a constant vector to all V changes nothing, V times 4 gives 4 times the change, weights times 8 the same.
static void test_value_change_is_invariant_as_the_output_error_is(void **state) {
    (void)state;
    enum { N = 130, D = 24 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int fast = 0; fast < 2; fast++) {
            struct cache c;
            float *weights = random_weights(N, 41), *shift = random_floats(D, 43), plain[N], changed[N];
            open_head(&c, tier(*name), SL_KV_F32, D, N, 0);
            change_of(tier(*name), c.kv, weights, fast, plain);
            for (int j = 0; j < N; j++) {
                weights[j] *= 8.0f;
            }
            change_of(tier(*name), c.kv, weights, fast, changed);
            assert_memory_equal(plain, changed, sizeof plain);
            for (uint32_t j = 0; j < N; j++) {
                for (int i = 0; i < D; i++) {
                    v_of(&c, j)[i] *= 4.0f;
                }
            }
            change_of(tier(*name), c.kv, weights, fast, changed);
            for (int j = 0; j < N; j++) {
                assert_close((double)changed[j], 4.0 * (double)plain[j], within(*name, 1e-6));
            }
            for (uint32_t j = 0; j < N; j++) {
                for (int i = 0; i < D; i++) {
                    v_of(&c, j)[i] = v_of(&c, j)[i] / 4.0f + shift[i];
                }
            }
            change_of(tier(*name), c.kv, weights, fast, changed);
            for (int j = 0; j < N; j++) {
                assert_close((double)changed[j], (double)plain[j], within(*name, 3e-6));
            }
            free(weights);
            free(shift);
            cache_free(&c);
        }
    }
}

static void test_value_change_of_equal_values_is_zero(void **state) {
    (void)state;
    enum { N = 100, D = 16 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        float *weights = random_weights(N, 47), change[N];
        open_head(&c, tier(*name), SL_KV_F32, D, N, 0);
        for (uint32_t j = 0; j < N; j++) {
            memcpy(v_of(&c, j), v_of(&c, 0), D * sizeof(float));
        }
        for (int fast = 0; fast < 2; fast++) {
            change_of(tier(*name), c.kv, weights, fast, change);
            for (int j = 0; j < N; j++) {
                assert_true(fabs((double)change[j]) < within(*name, 1e-6));
            }
        }
        free(weights);
        cache_free(&c);
    }
}

// No weights at all count as equal ones; all weight on one slot divides by 1e-6, not by 0.
static void test_value_change_is_finite_at_its_ends(void **state) {
    (void)state;
    enum { N = 70 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        float weights[N], none[N] = {0}, equal[N], got[N];
        open_head(&c, tier(*name), SL_KV_F32, 8, N, 0);
        for (int j = 0; j < N; j++) {
            weights[j] = 3.0f;
        }
        change_of(tier(*name), c.kv, weights, false, equal);
        change_of(tier(*name), c.kv, none, false, got);
        for (int j = 0; j < N; j++) {
            assert_close((double)got[j], (double)equal[j], within(*name, 1e-6));
        }
        none[0] = 2.0f;
        for (uint32_t j = 0; j < N; j++) {
            set_row(&c, v_of(&c, j), j == 0 ? 0.0f : 1.0f, 0.0f);
        }
        change_of(tier(*name), c.kv, none, false, got);
        for (int j = 0; j < N; j++) {
            assert_true(got[j] == 0.0f); // slot 0 is its own center, the others have no weight
        }
        change_of(tier(*name), c.kv, none, true, got);
        assert_close((double)got[0], 1e6 * 69.0 / 70.0, 1e-5);
        cache_free(&c);
    }
}

// A group of query heads: the root of the sum of the squares of each head's value.
static void test_value_change_of_a_group_adds_squares(void **state) {
    (void)state;
    enum { HEADS = 3, GROUP = 4, D = 24, STRIDE = 1024 };
    static const uint32_t n_slots[HEADS] = {1000, 130, 64}, n_packed[HEADS] = {2, 0, 1};
    struct sl_stream *stream;
    stream = test_stream_open(2);
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int fast = 0; fast < 2; fast++) {
            struct cache c;
            float *weights = random_weights(HEADS * GROUP * STRIDE, 41), *got = take(HEADS * STRIDE * sizeof *got);
            cache_fill(&c, tier(*name), SL_KV_F16, SL_KV_INT4, HEADS, D, 0, n_slots, n_packed);
            const struct sl_kv_heads heads = {.kv = c.kv, .n = HEADS};
            tier(*name)->value_change(stream, &heads, GROUP, (struct sl_vectors){weights, STRIDE}, fast,
                                      (struct sl_vectors){got, STRIDE});
            for (int h = 0; h < HEADS; h++) {
                float alone[STRIDE];
                double squares[STRIDE] = {0};
                for (int g = 0; g < GROUP; g++) {
                    change_of(tier(*name), &c.kv[h], weights + (h * GROUP + g) * STRIDE, fast, alone);
                    for (uint32_t j = 0; j < n_slots[h]; j++) {
                        squares[j] += (double)alone[j] * (double)alone[j];
                    }
                }
                for (uint32_t j = 0; j < n_slots[h]; j++) {
                    assert_close((double)got[h * STRIDE + (int)j], sqrt(squares[j]), within(*name, 1e-6));
                }
            }
            free(weights);
            free(got);
            cache_free(&c);
        }
    }
    test_stream_close(&stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value_change_gives_the_golden_vectors),
        cmocka_unit_test(test_value_change_equals_the_output_change_of_removal),
        cmocka_unit_test(test_value_change_around_the_mean_equals_its_formula),
        cmocka_unit_test(test_value_change_is_invariant_as_the_output_error_is),
        cmocka_unit_test(test_value_change_of_equal_values_is_zero),
        cmocka_unit_test(test_value_change_is_finite_at_its_ends),
        cmocka_unit_test(test_value_change_of_a_group_adds_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
