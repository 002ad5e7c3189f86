// SPDX-License-Identifier: Apache-2.0
// Purpose: holds quantize, put_rows and mean_query of the GPU to the bits of the reference tier, and what compression costs to its sums.
#include "tests/kernels/cuda/gpu_fixture.h"

enum { HEADS = 4 };

static void assert_near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * (1.0 + fabs(want)))) {
        fail_msg("got %.17g, expected %.17g", got, want);
    }
}

// to[]: on the device, [HEADS][n_pages]; want[]: the host's; NULL where a head has no such page, and for one more.
static void make_targets(const struct cache *c, uint32_t n_pages, void **want, void **to) {
    for (uint32_t i = 0; i < HEADS * n_pages; i++) {
        const struct sl_kv *kv = &c->kv[i / n_pages];
        bool there = (kv->n_packed + i % n_pages + 1) * SL_PAGE_SLOTS <= kv->n_slots && i != 5;
        want[i] = there ? take(c->packed.bytes) : NULL;
        to[i] = there ? gpu_room(c->packed.bytes) : NULL;
    }
}

static void test_quantize_and_its_error(void **state) {
    (void)state;
    enum { N_PAGES = 3 };
    static const uint32_t n_slots[HEADS] = {0, 64, 200, 300}, packed[HEADS] = {0, 0, 0, 1};
    static const int dims[] = {8, 24, 64, 96, 128};
    const struct sl_ops *ops = tier("reference");
    assert_int_equal(sizeof(struct gpu_page_error), sizeof(struct sl_page_error));
    FOR_ORDERS(order) {
        for (int i = 0; i < 20; i++) {
            struct cache c;
            enum sl_kv_format to_format = SL_KV_INT8 + i % 4, from = (enum sl_kv_format)(i % 3);
            void *want[HEADS * N_PAGES], *to[HEADS * N_PAGES];
            cache_fill(&c, ops, from, to_format, HEADS, dims[i / 4], 2, n_slots, packed);
            ((float *)((char *)c.pages[2][1] + c.work.states))[3] = 5;
            memset((char *)c.pages[2][0] + c.work.v, 0, (size_t)c.d * 2); // a row of zeros: scale 0
            c.packed.n_states = 0;
            make_targets(&c, N_PAGES, want, to);
            struct gpu_heads gpu = gpu_heads_up(c.kv, HEADS);
            const struct sl_kv_heads heads = {.kv = c.kv, .n = HEADS};
            struct sl_page_error error = {1, 2, 3, 4}, got = error;
            void *gpu_to = gpu_up(to, sizeof to), *gpu_error = gpu_up(&error, sizeof error);
            void *work = gpu_room(sl_gpu_page_error_work(HEADS, N_PAGES));
            ops->quantize(NULL, &heads, N_PAGES, want);
            sl_gpu_quantize(queue, gpu.at, HEADS, N_PAGES, gpu_to);
            ops->page_error(NULL, &heads, N_PAGES, want, &error);
            sl_gpu_page_error(queue, gpu.at, HEADS, N_PAGES, gpu_to, work, gpu_error);
            gpu_down(&got, gpu_error, sizeof got);
            assert_near(got.key, error.key);
            assert_near(got.key_norm, error.key_norm);
            assert_near(got.value, error.value);
            assert_near(got.value_norm, error.value_norm);
            for (int p = 0; p < HEADS * N_PAGES; p++) {
                if (want[p] != NULL) {
                    gpu_assert_equal(to[p], want[p], c.packed.bytes, sl_kv_format_name(to_format));
                    free(want[p]);
                }
            }
            gpu_free(gpu_to), gpu_free(gpu_error), gpu_free(work);
            gpu_heads_free(&gpu);
            cache_free(&c);
        }
    }
}

// State travels where the packed layout has it.
static void test_quantize_keeps_state(void **state) {
    (void)state;
    static const uint32_t n_slots[HEADS] = {64, 64, 64, 64}, none[HEADS];
    FOR_ORDERS(order) {
        struct cache c;
        void *want[HEADS], *to[HEADS];
        cache_fill(&c, tier("reference"), SL_KV_F16, SL_KV_INT4, HEADS, 32, 3, n_slots, none);
        assert_int_equal(sl_page_layout_init(&c.packed, SL_KV_INT4, 32, 2, true), SL_OK);
        for (int h = 0; h < HEADS; h++) {
            for (int i = 0; i < 3 * 64; i++) {
                sl_page_state(&c.work, c.pages[h][0], 0)[i] = (float)(100 * h + i);
            }
        }
        make_targets(&c, 1, want, to);
        struct gpu_heads gpu = gpu_heads_up(c.kv, HEADS);
        const struct sl_kv_heads heads = {.kv = c.kv, .n = HEADS};
        void *gpu_to = gpu_up(to, sizeof to);
        tier("reference")->quantize(NULL, &heads, 1, want);
        sl_gpu_quantize(queue, gpu.at, HEADS, 1, gpu_to);
        for (int h = 0; h < HEADS; h++) {
            gpu_assert_equal(to[h], want[h], c.packed.bytes, "state");
            free(want[h]);
        }
        gpu_free(gpu_to);
        gpu_heads_free(&gpu);
        cache_free(&c);
    }
}

static void test_lost(void **state) {
    (void)state;
    enum { GROUP = 3, STRIDE = 1024 };
    static const uint32_t n_slots[HEADS] = {1000, 65, 64, 0}, every[HEADS] = {3, 70, 1, 1};
    static uint32_t keep[HEADS][STRIDE];
    uint32_t kept[HEADS] = {0};
    struct sl_kv kv[HEADS];
    float *x = random_floats(HEADS * GROUP * STRIDE, 3);
    for (int i = 0; i < HEADS * GROUP * STRIDE; i++) {
        x[i] = fabsf(x[i]);
    }
    for (int h = 0; h < HEADS; h++) {
        kv[h] = (struct sl_kv){.n_slots = n_slots[h]};
        for (uint32_t j = 0; j < n_slots[h]; j++) {
            if (j % every[h] == 0) {
                keep[h][kept[h]++] = j;
            }
        }
    }
    const struct sl_kv_heads heads = {.kv = kv, .n = HEADS};
    FOR_ORDERS(order) {
        struct gpu_heads gpu = gpu_heads_up(kv, HEADS);
        void *gpu_x = gpu_up(x, HEADS * GROUP * STRIDE * sizeof *x), *gpu_keep = gpu_up(keep, sizeof keep);
        void *gpu_kept = gpu_up(kept, sizeof kept), *work = gpu_room(sl_gpu_lost_work(HEADS));
        for (int n_rows = 0; n_rows < 2000; n_rows += 1000) {
            double want = 7, got;
            double *gpu_lost = gpu_up(&want, sizeof want);
            tier("reference")
                ->lost(NULL, &heads, GROUP, (struct sl_vectors){x, STRIDE}, (struct sl_lists){keep[0], STRIDE},
                       (struct sl_counts){.host = kept}, n_rows, &want);
            sl_gpu_lost(queue, gpu.at, HEADS, GROUP, gpu_x, STRIDE, gpu_keep, STRIDE, gpu_kept, n_rows, work, gpu_lost);
            gpu_down(&got, gpu_lost, sizeof got);
            assert_true(want > 8);
            assert_near(got, want);
            gpu_free(gpu_lost);
        }
        gpu_free(gpu_x), gpu_free(gpu_keep), gpu_free(gpu_kept), gpu_free(work);
        gpu_heads_free(&gpu);
    }
    free(x);
}

static void test_put_rows(void **state) {
    (void)state;
    enum { STRIDE = 512 };
    static const uint32_t n_slots[HEADS] = {65, 1000, 64, 130}, packed[HEADS] = {0, 3, 0, 1};
    static const uint32_t n_listed[HEADS] = {0, 400, 1, 60};
    static uint32_t slots[HEADS][STRIDE];
    FOR_ORDERS(order) {
        for (int f = 0; f < 3; f++) {
            struct cache c;
            cache_fill(&c, tier("reference"), (enum sl_kv_format)f, SL_KV_INT8, HEADS, 24, 1, n_slots, packed);
            struct gpu_heads gpu = gpu_heads_up(c.kv, HEADS);
            const struct sl_kv_heads heads = {.kv = c.kv, .n = HEADS};
            float *rows = random_floats(STRIDE * 2 * 24, 4);
            char *gpu_rows = gpu_up(rows, STRIDE * 2 * 24 * sizeof *rows);
            const void *of_heads[HEADS], *gpu_of_heads[HEADS];
            for (uint32_t h = 0; h < HEADS; h++) {
                of_heads[h] = (char *)rows + 192 * h;
                gpu_of_heads[h] = gpu_rows + 192 * h;
                for (uint32_t i = 0; i < n_listed[h]; i++) { // in any order
                    slots[h][i] = packed[h] * 64 + i * 7 % (n_slots[h] - packed[h] * 64);
                }
            }
            void *gpu_slots = gpu_up(slots, sizeof slots), *n = gpu_up(n_listed, sizeof n_listed);
            const void **table = gpu_up(gpu_of_heads, sizeof gpu_of_heads);
            tier("reference")
                ->put_rows(NULL, &heads, (struct sl_lists){slots[0], STRIDE}, (struct sl_counts){.host = n_listed},
                           of_heads);
            sl_gpu_put_rows(queue, gpu.at, HEADS, 400, gpu_slots, STRIDE, n, table);
            gpu_assert_pages(&gpu, c.kv, "put_rows");
            gpu_free(gpu_rows), gpu_free(gpu_slots), gpu_free(n), gpu_free(table);
            free(rows);
            gpu_heads_free(&gpu);
            cache_free(&c);
        }
    }
}

static void test_mean_query(void **state) {
    (void)state;
    enum { GROUP = 5, D = 136 };
    struct sl_kv kv[HEADS];
    float *q = random_floats(HEADS * GROUP * D, 8), means[HEADS * D];
    const struct sl_attend args = {.m = 1, .n_heads = HEADS * GROUP, .head_dim = D, .heads = {.kv = kv, .n = HEADS}};
    tier("reference")->mean_query(NULL, &args, q, means);
    FOR_ORDERS(order) {
        float *gpu_q = gpu_up(q, HEADS * GROUP * D * sizeof *q), *gpu = gpu_room(sizeof means);
        sl_gpu_mean_query(queue, gpu_q, HEADS, GROUP, D, gpu);
        gpu_assert_equal(gpu, means, sizeof means, "mean_query");
        gpu_free(gpu_q);
    }
    free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_quantize_and_its_error),
        GPU_TEST(test_quantize_keeps_state),
        GPU_TEST(test_lost),
        GPU_TEST(test_put_rows),
        GPU_TEST(test_mean_query),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
