// SPDX-License-Identifier: Apache-2.0
// Purpose: holds protect, spare, budgets, select and gather of the GPU to the bits of the reference tier.
#include "tests/kernels/cuda/gpu_fixture.h"

enum { HEADS = 6, STRIDE = 1024 };
static const uint32_t n_slots[HEADS] = {0, 1, 63, 64, 65, 1000};

struct scene {
    struct sl_kv kv[HEADS];
    struct sl_kv_heads heads;
    struct gpu_heads gpu;
};

static void scene_open(struct scene *s, uint32_t most) {
    for (int h = 0; h < HEADS; h++) {
        s->kv[h] = (struct sl_kv){.n_slots = n_slots[h] < most ? n_slots[h] : most};
    }
    s->heads = (struct sl_kv_heads){.kv = s->kv, .n = HEADS};
    s->gpu = gpu_heads_up(s->kv, HEADS);
}

// Scores of a kind: any, few different ones, special ones.
static float *scores_of(int kind, uint64_t seed) {
    static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-42f, -1e-42f, 1.0f, -1.0f};
    float *x = random_floats(HEADS * STRIDE, seed);
    for (size_t i = 0; i < HEADS * STRIDE && kind > 0; i++) {
        x[i] = kind == 1 ? (float)(next_random(&seed) % 4) : special[next_random(&seed) % 10];
    }
    return x;
}

static void test_protect_and_spare(void **state) {
    (void)state;
    static const struct sl_protection protections[HEADS] = {{3, 4},         {0, 0}, {INT64_MAX, 0},
                                                            {0, INT64_MAX}, {2, 0}, {4, 700}};
    static const uint32_t n_listed[HEADS] = {0, 1, 0, 2, 3, 300};
    assert_int_equal(sizeof(struct gpu_protection), sizeof(struct sl_protection));
    uint32_t listed[HEADS][STRIDE] = {{0}};
    for (uint32_t i = 0; i < 300; i++) {
        listed[3][i] = 7 * i + 1, listed[4][i] = 30 * i, listed[5][i] = 3 * i + 2;
    }
    FOR_ORDERS(order) {
        struct scene s;
        scene_open(&s, 1000);
        float *x = scores_of(0, 3);
        float *gpu = gpu_up(x, HEADS * STRIDE * sizeof *x);
        void *p = gpu_up(protections, sizeof protections), *l = gpu_up(listed, sizeof listed);
        void *n = gpu_up(n_listed, sizeof n_listed);
        tier("reference")->protect(NULL, &s.heads, protections, (struct sl_vectors){x, STRIDE});
        sl_gpu_protect(queue, s.gpu.at, HEADS, 1000, p, gpu, STRIDE);
        tier("reference")
            ->spare(NULL, &s.heads, (struct sl_lists){listed[0], STRIDE}, (struct sl_counts){.host = n_listed},
                    (struct sl_vectors){x, STRIDE});
        sl_gpu_spare(queue, HEADS, 300, l, STRIDE, n, gpu, STRIDE);
        gpu_assert_equal(gpu, x, HEADS * STRIDE * sizeof *x, "protect and spare");
        gpu_free(p), gpu_free(l), gpu_free(n);
        gpu_heads_free(&s.gpu);
        free(x);
    }
}

static void test_budgets(void **state) {
    (void)state;
    static const uint32_t wants[] = {1, 5, 60, 150, 300};
    FOR_ORDERS(order) {
        struct scene s;
        scene_open(&s, 1000);
        float *work = take(HEADS * STRIDE * sizeof *work);
        void *gpu_work = gpu_room(sl_gpu_budgets_work(HEADS));
        for (int trial = 0; trial < 15; trial++) {
            uint32_t kept[HEADS], n_infinite = 0, budget = wants[trial / 3];
            float *x = scores_of(trial % 3, 5 + (uint64_t)trial);
            for (size_t i = 0; i < HEADS * STRIDE; i++) { // of +infinity no head has more than its budget
                bool infinite = x[i] == INFINITY;
                n_infinite = i % STRIDE == 0 ? infinite : n_infinite + infinite;
                x[i] = infinite && n_infinite > budget ? 2.0f : x[i];
            }
            float *gpu = gpu_up(x, HEADS * STRIDE * sizeof *x);
            uint32_t *gpu_kept = gpu_room(sizeof kept);
            tier("reference")
                ->budgets(NULL, &s.heads, (struct sl_vectors){x, STRIDE}, budget, (struct sl_vectors){work, STRIDE},
                          (struct sl_counts){.device = kept});
            sl_gpu_budgets(queue, s.gpu.at, HEADS, 1000, gpu, STRIDE, budget, gpu_work, gpu_kept);
            gpu_assert_equal(gpu_kept, kept, sizeof kept, "budgets");
            gpu_free(gpu);
            free(x);
        }
        free(work);
        gpu_free(gpu_work);
        gpu_heads_free(&s.gpu);
    }
}

static void test_select(void **state) {
    (void)state;
    uint64_t seed = 1;
    FOR_ORDERS(order) {
        struct scene s;
        scene_open(&s, 1000);
        for (int trial = 0; trial < 27; trial++) {
            float *x = scores_of(trial % 3, 10 + (uint64_t)trial),
                  *ties = scores_of(1 + trial % 2, 50 + (uint64_t)trial);
            bool has_ties = trial / 3 % 3 == 2, newest = trial / 3 % 3 == 1;
            uint32_t kept[HEADS], *keep = take(HEADS * STRIDE * sizeof *keep);
            for (int h = 0; h < HEADS; h++) {
                kept[h] = trial >= 18 ? s.kv[h].n_slots / 2 : (uint32_t)(next_random(&seed) % (s.kv[h].n_slots + 1));
            }
            size_t bytes = HEADS * STRIDE * sizeof *x;
            void *gpu_x = gpu_up(x, bytes), *gpu_ties = gpu_up(ties, bytes), *gpu_kept = gpu_up(kept, sizeof kept);
            uint32_t *gpu_keep = gpu_up(keep, bytes);
            tier("reference")
                ->select(NULL, &s.heads, (struct sl_vectors){x, STRIDE},
                         (struct sl_vectors){has_ties ? ties : NULL, STRIDE}, newest, (struct sl_counts){.host = kept},
                         (struct sl_lists){keep, STRIDE});
            sl_gpu_select(queue, s.gpu.at, HEADS, gpu_x, STRIDE, has_ties ? gpu_ties : NULL, STRIDE, newest, gpu_kept,
                          gpu_keep, STRIDE);
            gpu_assert_equal(gpu_keep, keep, bytes, "select");
            gpu_free(gpu_x), gpu_free(gpu_ties), gpu_free(gpu_kept);
            free(x), free(ties), free(keep);
        }
        gpu_heads_free(&s.gpu);
    }
}

// --- gather ----------------------------------------------------------------------------------------------------------

// Every `apart`-th slot is evicted, from slot `from` on.
static uint32_t list_kept(uint32_t n, uint32_t apart, uint32_t from, uint32_t *keep) {
    uint32_t n_kept = 0;
    for (uint32_t j = 0; j < n; j++) {
        if (j < from || j % apart != 0) {
            keep[n_kept++] = j;
        }
    }
    return n_kept;
}

static void test_gather(void **state) {
    (void)state;
    static const struct {
        enum sl_kv_format format;
        int d, n_states;
        uint32_t n_slots[4], apart;
    } cases[] = {{SL_KV_F16, 64, 2, {0, 1, 63, 1000}, 2},
                 {SL_KV_F32, 24, 0, {64, 65, 1000, 640}, 7},
                 {SL_KV_BF16, 8, 4, {1000, 65, 200, 128}, 1},
                 {SL_KV_F16, 128, 1, {700, 65, 200, 128}, 300}};
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct cache c;
            uint32_t keep[4][STRIDE], kept[4], none[4] = {0};
            cache_fill(&c, tier("reference"), cases[i].format, cases[i].format, 4, cases[i].d, cases[i].n_states,
                       cases[i].n_slots, none);
            for (int h = 0; h < 4; h++) {
                kept[h] = list_kept(cases[i].n_slots[h], cases[i].apart, h == 1 ? 1000 : 30, keep[h]);
            }
            struct gpu_heads gpu = gpu_heads_up(c.kv, 4);
            const struct sl_kv_heads heads = {.kv = c.kv, .n = 4};
            void *gpu_keep = gpu_up(keep, sizeof keep), *gpu_kept = gpu_up(kept, sizeof kept);
            tier("reference")
                ->gather(NULL, &heads, (struct sl_lists){keep[0], STRIDE}, (struct sl_counts){.host = kept});
            sl_gpu_gather(queue, gpu.at, 4, &c.work, gpu_keep, STRIDE, gpu_kept);
            gpu_assert_pages(&gpu, c.kv, "gather");
            gpu_free(gpu_keep), gpu_free(gpu_kept);
            gpu_heads_free(&gpu);
            cache_free(&c);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_protect_and_spare),
        GPU_TEST(test_budgets),
        GPU_TEST(test_select),
        GPU_TEST(test_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
