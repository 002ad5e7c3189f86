// SPDX-License-Identifier: Apache-2.0
// Purpose: holds pick of every tier to sorting by the total order of engine/tensor/ops.h, and to sums in f64 as it says.
#include <math.h>

#include "tests/kernels/kv_fixture.h"

// --- rows of logits --------------------------------------------------------------------------------------------------

enum { ROWS = 6 };

// A number of the row's kind: any; few different ones; special ones; all equal but few; hardly any finite.
static float random_logit(int kind, uint64_t *seed) {
    static const float special[] = {NAN,     -NAN,  INFINITY, -INFINITY, 0.0f,  -0.0f, 1e-42f,
                                    -1e-42f, 3e38f, -3e38f,   1.0f,      -1.0f, 20.0f, 20.0f};
    uint64_t any = next_random(seed);
    switch (kind) {
    case 1:
        return (float)(any % 4) - 2.0f;
    case 2:
        return special[any % 14];
    case 3:
        return any % 50 == 0 ? random_float(seed) : 1.5f;
    case 4:
        return any % 50 == 0 ? random_float(seed) : NAN;
    case 5:
        return -INFINITY;
    default:
        return 6.0f * random_float(seed);
    }
}

// [ROWS][n_vocab], a kind a row; to be freed.
static float *random_rows(int32_t n_vocab, uint64_t *seed) {
    float *logits = take((size_t)(ROWS * n_vocab) * sizeof *logits);
    for (int64_t i = 0; i < (int64_t)ROWS * n_vocab; i++) {
        logits[i] = random_logit((int)(i / n_vocab), seed);
    }
    return logits;
}

static void ask(struct sl_pick asked[ROWS], uint64_t *seed) {
    static const int32_t most[] = {0, 1, 2, 20, 100, 1000, SL_MAX_CANDIDATES};
    static const float temperatures[] = {0.0f, 0.1f, 0.8f, 1.0f, 5.0f};
    for (int r = 0; r < ROWS; r++) {
        asked[r] = (struct sl_pick){most[next_random(seed) % 7], temperatures[next_random(seed) % 5]};
    }
}

// Asserts sums in f64, which may be added in any order.
static void assert_sum(double got, double want, const char *what) {
    if (!(fabs(got - want) <= 1e-12 * (1.0 + fabs(want)))) {
        fail_msg("%s is %.17g, not %.17g", what, got, want);
    }
}

// --- checks ----------------------------------------------------------------------------------------------------------

static const float *sort_logits; // qsort has no argument for it

static int by_logit(const void *a, const void *b) {
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    float x = sort_logits[i], y = sort_logits[j];
    return x != y ? (x < y ? 1 : -1) : (i > j) - (i < j);
}

static void check_row(const float *logits, int32_t n_vocab, struct sl_pick asked, const struct sl_picked *picked) {
    int32_t *order = take((size_t)n_vocab * sizeof *order), n = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (isfinite(logits[id])) {
            order[n++] = id;
        }
    }
    sort_logits = logits;
    qsort(order, (size_t)n, sizeof *order, by_logit);
    assert_int_equal(picked->n_finite, n);
    assert_int_equal(picked->n, n < asked.most ? n : asked.most);
    for (int32_t i = 0; i < picked->n; i++) {
        assert_int_equal(picked->best[i].id, order[i]);
        assert_memory_equal(&picked->best[i].logit, &logits[order[i]], sizeof(float));
    }
    double sum = 0, rest = 0;
    for (int32_t i = n - 1; i >= 0; i--) { // from the smallest
        sum += exp((double)logits[order[i]] - (double)logits[order[0]]);
        double below = i < picked->n ? 0 : (double)logits[order[i]] - (double)logits[order[picked->n - 1]];
        rest += i < picked->n || asked.temperature == 0 ? 0 : exp(below / (double)asked.temperature);
    }
    if (n > 0) {
        assert_sum(picked->lse, (double)logits[order[0]] + log(sum), "lse");
        assert_sum(picked->rest, rest, "rest");
    }
    free(order);
}

static void test_pick_equals_sorting(void **state) {
    (void)state;
    static const int32_t vocabularies[] = {1, 7, 300, 3000};
    uint64_t seed = 5;
    struct sl_picked *picked = take(ROWS * sizeof *picked);
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int trial = 0; trial < (is_emulated(*name) ? 24 : 80); trial++) {
            int32_t n_vocab = vocabularies[trial % 4];
            struct sl_pick asked[ROWS];
            float *logits = random_rows(n_vocab, &seed);
            ask(asked, &seed);
            memset(picked, 0xff, ROWS * sizeof *picked);
            tier(*name)->pick(NULL, logits, n_vocab, asked, ROWS, picked);
            for (int r = 0; r < ROWS; r++) {
                if (asked[r].most > 0) {
                    check_row(logits + r * n_vocab, n_vocab, asked[r], &picked[r]);
                } else {
                    assert_int_equal(picked[r].n, -1);
                }
            }
            free(logits);
        }
    }
    free(picked);
}

// To the bit, sums too.
static void test_pick_of_a_row_is_the_same_in_any_company(void **state) {
    (void)state;
    enum { N = 2000 };
    struct sl_picked *all = take(ROWS * sizeof *all), *one = take(sizeof *one);
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 9;
        float *logits = random_rows(N, &seed);
        struct sl_pick asked[ROWS];
        for (int r = 0; r < ROWS; r++) {
            asked[r] = (struct sl_pick){100, 0.7f};
        }
        tier(*name)->pick(NULL, logits, N, asked, ROWS, all);
        for (int r = 0; r < ROWS - 1; r++) { // in the last one nothing is finite
            tier(*name)->pick(NULL, logits + r * N, N, asked, 1, one);
            assert_memory_equal(one, &all[r], offsetof(struct sl_picked, best));
            assert_memory_equal(one->best, all[r].best, (size_t)one->n * sizeof one->best[0]);
        }
        free(logits);
    }
    free(all), free(one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pick_equals_sorting),
        cmocka_unit_test(test_pick_of_a_row_is_the_same_in_any_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
