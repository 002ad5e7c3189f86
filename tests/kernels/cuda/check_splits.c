// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: compares the two modes of attention (attention/launch.h, `work`) bit by bit: many blocks that store splits and add them up, or
 *          one block that computes one split after the other. ../check_attend.c and ../check_retrieve.c check the numbers themselves.
 */
#include "tests/kernels/cuda/gpu_fixture.h"

enum { CALLS = 2, KV_HEADS = 2 };

struct shape {
    enum sl_kv_format work, packed;
    int d, group, m[CALLS];
    uint32_t n_slots[CALLS][KV_HEADS], n_packed[CALLS][KV_HEADS];
    int64_t window;
    bool rope;
};

static const struct shape shapes[] = {
    {SL_KV_F32, SL_KV_F32, 64, 4, {1, 19}, {{65, 1000}, {19, 64}}, {{0}}, 0, false},
    {SL_KV_F16, SL_KV_INT4, 128, 3, {20, 1}, {{200, 600}, {1, 63}}, {{2, 9}, {0, 0}}, 0, false},
    {SL_KV_BF16, SL_KV_INT8, 96, 1, {1, 2}, {{1100, 512}, {130, 513}}, {{16, 0}, {1, 8}}, 0, true},
    {SL_KV_F32, SL_KV_INT2, 24, 2, {33, 5}, {{700, 700}, {65, 65}}, {{5, 5}, {0, 0}}, 100, false},
    {SL_KV_F16, SL_KV_INT1, 256, 2, {1, 1}, {{70, 1}, {64, 65}}, {{1, 0}, {0, 0}}, 0, false},
    {SL_KV_BF16, SL_KV_BF16, 512, 1, {3, 1}, {{70, 3}, {64, 65}}, {{0}}, 0, false},
    // by tensor cores, packed: few rows and many, a window, heads without a packed page
    {SL_KV_F16, SL_KV_INT4, 128, 4, {1, 3}, {{1100, 65}, {600, 513}}, {{17, 0}, {9, 8}}, 0, false},
    {SL_KV_F16, SL_KV_INT8, 64, 3, {20, 1}, {{700, 200}, {64, 1}}, {{10, 3}, {0, 0}}, 100, false},
    {SL_KV_F16, SL_KV_INT2, 128, 8, {1, 2}, {{513, 600}, {130, 512}}, {{8, 1}, {2, 7}}, 0, false},
    {SL_KV_F16, SL_KV_INT1, 64, 1, {9, 1}, {{520, 700}, {64, 640}}, {{8, 10}, {1, 9}}, 0, false},
    // nothing packed, 16 bits, a head size of theirs; few rows and several blocks of them
    {SL_KV_F16, SL_KV_F16, 64, 4, {1, 19}, {{65, 1000}, {19, 64}}, {{0}}, 0, false},
    {SL_KV_BF16, SL_KV_BF16, 128, 3, {64, 2}, {{64, 700}, {3, 1030}}, {{0}}, 0, false},
    {SL_KV_F16, SL_KV_F16, 96, 2, {2, 60}, {{1100, 1100}, {640, 640}}, {{0}}, 100, false},
    // so few that a warp has them all: a split of one page, of some, and of all, with what follows the last page
    {SL_KV_F16, SL_KV_F16, 128, 4, {1, 2}, {{1, 1100}, {577, 512}}, {{0}}, 0, false},
    {SL_KV_BF16, SL_KV_BF16, 96, 1, {13, 1}, {{1100, 130}, {640, 65}}, {{0}}, 0, true},
    {SL_KV_F16, SL_KV_F16, 64, 8, {2, 1}, {{700, 700}, {1030, 1030}}, {{0}}, 100, false},
};

static bool has_packed(const struct shape *a) {
    return a->packed != a->work;
}

struct scene {
    struct cache cache[CALLS];
    struct gpu_copied_heads heads[CALLS];
    struct sl_attend cpu[CALLS];
    struct sl_rope rope;
    struct gpu_attention shape;
    struct gpu_attend calls[CALLS];
    struct gpu_attend *gpu; // device
    int64_t positions[CALLS][64];
    int most_rows;
    uint32_t most_slots;
    size_t n_out[CALLS], n_lse[CALLS];
    void *to_free[64];
    int n_to_free;
};

static void *later(struct scene *s, void *device) { // is freed with the scene
    s->to_free[s->n_to_free++] = device;
    return device;
}

static void open_rope(struct scene *s) {
    enum { MOST = 1200 };
    size_t half = (size_t)s->cpu[0].head_dim / 2, n = MOST * half;
    int64_t *positions = take(MOST * sizeof *positions);
    float *cosines = take(n * sizeof *cosines), *sines = take(n * sizeof *sines);
    s->rope = (struct sl_rope){s->cpu[0].head_dim, s->cpu[0].head_dim, inverse_frequencies(s->cpu[0].head_dim), 1};
    for (int i = 0; i < MOST; i++) {
        positions[i] = i;
    }
    tier("reference")->angles(NULL, &s->rope, positions, MOST, cosines, sines);
    s->shape.slot_cosines = later(s, gpu_up(cosines, n * sizeof *cosines));
    s->shape.slot_sines = later(s, gpu_up(sines, n * sizeof *sines));
    s->shape.rotary_dim = s->cpu[0].head_dim;
    s->cpu[0].rope = s->cpu[1].rope = &s->rope;
    free(positions), free(cosines), free(sines);
}

static void open_call(struct scene *s, const struct shape *a, int i) {
    int n_heads = KV_HEADS * a->group, m = a->m[i];
    size_t n_q = (size_t)(m * n_heads * a->d), n_kv = (size_t)(m * KV_HEADS * a->d);
    cache_fill(&s->cache[i], tier("reference"), a->work, a->packed, KV_HEADS, a->d, 3, a->n_slots[i], a->n_packed[i]);
    for (int r = 0; r < m; r++) { // of append; in the window, after the existing slots
        s->positions[i][r] = position_of(a->n_slots[i][0] - (uint32_t)(m - r));
    }
    s->cpu[i] = (struct sl_attend){.q = random_floats(n_q, 31),
                                   .k = random_floats(n_kv, 32),
                                   .v = random_floats(n_kv, 33),
                                   .m = m,
                                   .n_heads = n_heads,
                                   .head_dim = a->d,
                                   .scale = 0.2f,
                                   .heads = {s->cache[i].kv, KV_HEADS},
                                   .window = a->window,
                                   .positions = s->positions[i],
                                   .out = take(n_q * sizeof(float)),
                                   .lse = take((size_t)(n_heads * m) * sizeof(float))};
    s->n_out[i] = n_q;
    s->n_lse[i] = (size_t)(n_heads * m);
    s->heads[i] = gpu_heads_up(s->cache[i].kv, KV_HEADS);
    s->calls[i] = (struct gpu_attend){.q = later(s, gpu_up(s->cpu[i].q, n_q * sizeof(float))),
                                      .k = later(s, gpu_up(s->cpu[i].k, n_kv * sizeof(float))),
                                      .v = later(s, gpu_up(s->cpu[i].v, n_kv * sizeof(float))),
                                      .m = m,
                                      .heads = s->heads[i].at,
                                      .positions = later(s, gpu_up(s->positions[i], sizeof s->positions[i])),
                                      .out = later(s, gpu_room(n_q * sizeof(float))),
                                      .lse = later(s, gpu_room(s->n_lse[i] * sizeof(float)))};
    uint32_t most = gpu_most_slots(s->cache[i].kv, KV_HEADS);
    s->most_rows = m > s->most_rows ? m : s->most_rows;
    s->most_slots = most > s->most_slots ? most : s->most_slots;
}

static void scene_open(struct scene *s, const struct shape *a) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < CALLS; i++) {
        open_call(s, a, i);
    }
    s->shape = (struct gpu_attention){.n_heads = KV_HEADS * a->group,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = a->d,
                                      .scale = 0.2f,
                                      .window = a->window,
                                      .format = a->work,
                                      .has_packed = has_packed(a),
                                      .packed_format = a->packed};
    if (a->rope) {
        open_rope(s);
    }
    s->gpu = later(s, gpu_up(s->calls, sizeof s->calls));
}

static void scene_close(struct scene *s) {
    for (int i = 0; i < CALLS; i++) {
        gpu_heads_free(&s->heads[i]);
        cache_free(&s->cache[i]);
        free((void *)s->cpu[i].q), free((void *)s->cpu[i].k), free((void *)s->cpu[i].v);
        free(s->cpu[i].out), free(s->cpu[i].lse);
    }
    for (int i = 0; i < s->n_to_free; i++) {
        gpu_free(s->to_free[i]);
    }
}

// Both ways of queueing the same call have the same out and lse.
static void assert_same(const struct scene *s, int n_calls, void (*queue_call)(const struct scene *s, void *work),
                        uint32_t most_slots) {
    void *work = gpu_room(sl_gpu_attend_work(n_calls, s->most_rows, most_slots, &s->shape));
    float *out[CALLS], *lse[CALLS];
    queue_call(s, NULL);
    for (int i = 0; i < n_calls; i++) {
        out[i] = take(s->n_out[i] * sizeof(float)), lse[i] = take(s->n_lse[i] * sizeof(float));
        gpu_down(out[i], s->calls[i].out, s->n_out[i] * sizeof(float));
        gpu_down(lse[i], s->calls[i].lse, s->n_lse[i] * sizeof(float));
        assert_true(!isnan(out[i][0]) && !isnan(lse[i][0]));
    }
    queue_call(s, work);
    for (int i = 0; i < n_calls; i++) {
        float *got_out = take(s->n_out[i] * sizeof(float)), *got_lse = take(s->n_lse[i] * sizeof(float));
        gpu_down(got_out, s->calls[i].out, s->n_out[i] * sizeof(float));
        gpu_down(got_lse, s->calls[i].lse, s->n_lse[i] * sizeof(float));
        assert_memory_equal(got_out, out[i], s->n_out[i] * sizeof(float));
        assert_memory_equal(got_lse, lse[i], s->n_lse[i] * sizeof(float));
        free(got_out), free(got_lse), free(out[i]), free(lse[i]);
    }
    gpu_free(work);
}

static void queue_attend(const struct scene *s, void *work) {
    sl_gpu_attend(queue, s->gpu, CALLS, s->most_rows, s->most_slots, &s->shape, work);
}

static void test_attend(void **state) {
    (void)state;
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct scene s;
            scene_open(&s, &shapes[i]);
            assert_same(&s, CALLS, queue_attend, s.most_slots);
            scene_close(&s);
        }
    }
}

enum { LISTED = 1200 };
static void *gpu_lists, *gpu_n; // of the scene at hand

static void queue_attend_slots(const struct scene *s, void *work) {
    const struct gpu_lists listed = {gpu_lists, LISTED, gpu_n};
    sl_gpu_attend_slots(queue, s->gpu, LISTED, &s->shape, listed, work);
}

static void test_attend_slots(void **state) {
    (void)state;
    static uint32_t lists[KV_HEADS][LISTED];
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct scene s;
            if (shapes[i].m[0] != 1) {
                continue;
            }
            scene_open(&s, &shapes[i]);
            uint32_t n[KV_HEADS] = {s.cache[0].kv[0].n_slots, s.cache[0].kv[1].n_slots / 2 + 1};
            for (int h = 0; h < KV_HEADS; h++) {
                for (uint32_t j = 0; j < n[h]; j++) { // in another order
                    lists[h][j] = j * 7 % s.cache[0].kv[h].n_slots;
                }
            }
            gpu_lists = gpu_up(lists, sizeof lists), gpu_n = gpu_up(n, sizeof n);
            assert_same(&s, 1, queue_attend_slots, LISTED);
            gpu_free(gpu_lists), gpu_free(gpu_n);
            scene_close(&s);
        }
    }
}

// A step of decode puts splits aside, a chunk of a prompt does not, and nothing takes more than GPU_MOST_WORK.
static void test_work_is_for_few_rows(void **state) {
    (void)state;
    const struct gpu_attention shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .format = SL_KV_F16};
    assert_true(sl_gpu_attend_work(1, 1, 131072, &shape) > 0);
    assert_true(sl_gpu_attend_work(64, 1, 131072, &shape) > 0);
    assert_true(sl_gpu_attend_work(1, 2048, 1024, &shape) == 0);
    for (int rows = 1; rows <= 4096; rows *= 2) {
        for (uint32_t slots = 64; slots <= 1u << 20; slots *= 4) {
            assert_true(sl_gpu_attend_work(1, rows, slots, &shape) <= GPU_MOST_WORK);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_attend),
        GPU_TEST(test_attend_slots),
        cmocka_unit_test(test_work_is_for_few_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
