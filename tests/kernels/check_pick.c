// SPDX-License-Identifier: Apache-2.0
// Purpose: holds pick of every tier to sorting by the total order of tensor/ops.h, and to sums in f64 as it says.
#include <math.h>

#include "tests/kernels/pick_fixture.h"

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
        pick_assert_close(picked->lse, (double)logits[order[0]] + log(sum), "lse");
        pick_assert_close(picked->rest, rest, "rest");
    }
    free(order);
}

static void test_pick_equals_sorting(void **state) {
    (void)state;
    static const int32_t vocabularies[] = {1, 7, 300, 3000};
    uint64_t seed = 5;
    struct sl_picked *picked = take(PICK_ROWS * sizeof *picked);
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (int trial = 0; trial < 80; trial++) {
            int32_t n_vocab = vocabularies[trial % 4];
            struct sl_pick asked[PICK_ROWS];
            float *logits = pick_logits(n_vocab, &seed);
            pick_ask(asked, &seed);
            memset(picked, 0xff, PICK_ROWS * sizeof *picked);
            tier(*name)->pick(NULL, logits, n_vocab, asked, PICK_ROWS, picked);
            for (int r = 0; r < PICK_ROWS; r++) {
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pick_equals_sorting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
