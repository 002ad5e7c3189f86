// SPDX-License-Identifier: Apache-2.0
// Purpose: holds the GPU's pick to the reference tier: candidates to the bit, sums to 1e-12.
#include "tests/kernels/cuda/gpu_fixture.h"
#include "tests/kernels/pick_fixture.h"

static void compare(const struct gpu_picked *got, const struct sl_picked *want) {
    assert_int_equal(got->n_finite, want->n_finite);
    assert_int_equal(got->n, want->n);
    assert_memory_equal(got->best, want->best, (size_t)want->n * sizeof want->best[0]);
    if (want->n > 0) {
        pick_assert_close(got->lse, want->lse, "lse");
        pick_assert_close(got->rest, want->rest, "rest");
    }
}

static void test_pick(void **state) {
    (void)state;
    static const int32_t vocabularies[] = {1, 33, 600, 5000};
    uint64_t seed = 3;
    struct sl_picked *want = take(PICK_ROWS * sizeof *want);
    struct gpu_picked *got = take(PICK_ROWS * sizeof *got);
    FOR_ORDERS(order) {
        for (int trial = 0; trial < 12; trial++) {
            int32_t n_vocab = vocabularies[trial % 4];
            struct sl_pick asked[PICK_ROWS];
            float *logits = pick_logits(n_vocab, &seed);
            pick_ask(asked, &seed);
            void *gpu_logits = gpu_up(logits, (size_t)(PICK_ROWS * n_vocab) * sizeof *logits);
            void *gpu_asked = gpu_up(asked, sizeof asked), *work = gpu_room(sl_gpu_pick_work(PICK_ROWS));
            struct gpu_picked *picked = gpu_room(PICK_ROWS * sizeof *picked);
            tier("reference")->pick(NULL, logits, n_vocab, asked, PICK_ROWS, want);
            sl_gpu_pick(queue, gpu_logits, n_vocab, gpu_asked, PICK_ROWS, work, picked);
            gpu_down(got, picked, PICK_ROWS * sizeof *got);
            for (int r = 0; r < PICK_ROWS; r++) {
                if (asked[r].most > 0) {
                    compare(&got[r], &want[r]);
                }
            }
            gpu_free(gpu_logits), gpu_free(gpu_asked), gpu_free(work), gpu_free(picked);
            free(logits);
        }
    }
    free(want), free(got);
}

// To the bit, sums too.
static void test_pick_of_a_row_is_the_same_in_any_company(void **state) {
    (void)state;
    enum { N = 2000 };
    uint64_t seed = 9;
    float *logits = pick_logits(N, &seed);
    struct sl_pick asked[PICK_ROWS];
    for (int r = 0; r < PICK_ROWS; r++) {
        asked[r] = (struct sl_pick){100, 0.7f};
    }
    void *gpu_logits = gpu_up(logits, PICK_ROWS * N * sizeof *logits);
    void *gpu_asked = gpu_up(asked, sizeof asked), *work = gpu_room(sl_gpu_pick_work(PICK_ROWS));
    struct gpu_picked *picked = gpu_room(PICK_ROWS * sizeof *picked), *all = take(PICK_ROWS * sizeof *all), one;
    sl_gpu_pick(queue, gpu_logits, N, gpu_asked, PICK_ROWS, work, picked);
    gpu_down(all, picked, PICK_ROWS * sizeof *all);
    for (int r = 0; r < PICK_ROWS - 1; r++) { // in the last one nothing is finite
        sl_gpu_pick(queue, (float *)gpu_logits + r * N, N, gpu_asked, 1, work, picked);
        gpu_down(&one, picked, sizeof one);
        assert_memory_equal(&one, &all[r], offsetof(struct gpu_picked, best));
        assert_memory_equal(one.best, all[r].best, (size_t)one.n * sizeof one.best[0]);
    }
    gpu_free(gpu_logits), gpu_free(gpu_asked), gpu_free(work), gpu_free(picked);
    free(logits), free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_pick),
        GPU_TEST(test_pick_of_a_row_is_the_same_in_any_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
