// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds append of the GPU to the bits of the reference tier and attention to its numbers; and one way of computing
 *          attention to the bits of the other.
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
    // by tensor cores: nothing packed, 16 bits, a head size of theirs; few rows and several blocks of them
    {SL_KV_F16, SL_KV_F16, 64, 4, {1, 19}, {{65, 1000}, {19, 64}}, {{0}}, 0, false},
    {SL_KV_BF16, SL_KV_BF16, 128, 3, {64, 2}, {{64, 700}, {3, 1030}}, {{0}}, 0, false},
    {SL_KV_F16, SL_KV_F16, 96, 2, {2, 60}, {{1100, 1100}, {640, 640}}, {{0}}, 100, false},
};

// What rounding queries and weights to the format of the pages may change.
static double tolerance_of(const struct shape *a) {
    bool tensor = a->work != SL_KV_F32 && a->packed == a->work && (a->d == 64 || a->d == 96 || a->d == 128);
    return !tensor ? 1e-5 : a->work == SL_KV_F16 ? 4e-3 : 3e-2;
}

static bool has_packed(const struct shape *a) {
    return a->packed != a->work;
}

struct scene {
    struct cache cache[CALLS];
    struct gpu_heads heads[CALLS];
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
    for (int r = 0; r < m; r++) { // of append; in the window, behind what is there
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
                                      .has_packed = has_packed(a)};
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

static void expect(const float *device, const float *want, size_t n, double tolerance, const char *what) {
    float *got = take(n * sizeof *got);
    gpu_down(got, device, n * sizeof *got);
    gpu_assert_close(gpu_up(got, n * sizeof *got), want, n, tolerance, what);
    free(got);
}

static void test_attend(void **state) {
    (void)state;
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct scene s;
            scene_open(&s, &shapes[i]);
            void *work = gpu_room(sl_gpu_attend_work(CALLS, s.most_rows, s.most_slots, &s.shape));
            tier("reference")->attend(NULL, s.cpu, CALLS);
            sl_gpu_attend(queue, s.gpu, CALLS, s.most_rows, s.most_slots, &s.shape, NULL);
            for (int call = 0; call < CALLS; call++) {
                size_t n = s.n_out[call], n_lse = s.n_lse[call];
                float *out = take(n * sizeof *out), *lse = take(n_lse * sizeof *lse);
                expect(s.calls[call].out, s.cpu[call].out, n, tolerance_of(&shapes[i]), "attend");
                expect(s.calls[call].lse, s.cpu[call].lse, n_lse, tolerance_of(&shapes[i]), "lse");
                gpu_down(out, s.calls[call].out, n * sizeof *out);
                gpu_down(lse, s.calls[call].lse, n_lse * sizeof *lse);
                sl_gpu_attend(queue, s.gpu, CALLS, s.most_rows, s.most_slots, &s.shape, work);
                expect(s.calls[call].out, out, n, 0, "splits put aside");
                expect(s.calls[call].lse, lse, n_lse, 0, "lse of splits put aside");
                free(out), free(lse);
            }
            gpu_free(work);
            scene_close(&s);
        }
    }
}

// A row alone, over the slots that it saw among others, has the same bits.
static void test_rows_do_not_depend_on_their_neighbours(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct scene s;
        scene_open(&s, &shapes[i]);
        const struct sl_attend *cpu = &s.cpu[1];
        size_t row = s.n_out[1] / (size_t)cpu->m;
        float *all = take(s.n_out[1] * sizeof *all), *lse = take(s.n_lse[1] * sizeof *lse);
        sl_gpu_attend(queue, s.gpu + 1, 1, cpu->m, s.most_slots, &s.shape, NULL);
        gpu_down(all, s.calls[1].out, s.n_out[1] * sizeof *all);
        gpu_down(lse, s.calls[1].lse, s.n_lse[1] * sizeof *lse);
        for (int r = 0; r<cpu->m; r += cpu->m> 8 ? 7 : 1) {
            struct sl_kv kv[KV_HEADS];
            for (int h = 0; h < KV_HEADS; h++) {
                kv[h] = s.cache[1].kv[h];
                kv[h].n_slots -= (uint32_t)(cpu->m - r - 1);
            }
            struct gpu_heads heads = gpu_heads_up(kv, KV_HEADS);
            struct gpu_attend alone = s.calls[1];
            alone.m = 1;
            alone.heads = heads.at;
            alone.q += (size_t)r * row;
            alone.positions += r;
            struct gpu_attend *gpu = gpu_up(&alone, sizeof alone);
            sl_gpu_attend(queue, gpu, 1, 1, s.most_slots, &s.shape, NULL);
            expect(alone.out, all + (size_t)r * row, row, 0, "a row alone");
            float of_row[64];
            for (int h = 0; h < s.shape.n_heads; h++) {
                of_row[h] = lse[h * cpu->m + r];
            }
            expect(alone.lse, of_row, (size_t)s.shape.n_heads, 0, "lse of a row alone");
            gpu_free(gpu);
            gpu_heads_free(&heads);
        }
        free(all), free(lse);
        scene_close(&s);
    }
}

// The slots before some row, as calls of their own, and then attend(): the bits of one attend() over all.
static void check_before(enum sl_kv_format format, int d) {
    enum { N = 9000, M = 2, H = KV_HEADS * 2, D = 64 };
    static const uint32_t n_slots[KV_HEADS] = {N, N}, none[KV_HEADS];
    struct cache c;
    float *q = random_floats(M * H * D, 3), want[M * H * D], got[M * H * D], nothing[H * M];
    cache_fill(&c, tier("reference"), format, format, KV_HEADS, d, 0, n_slots, none);
    for (int i = 0; i < H * M; i++) {
        nothing[i] = -INFINITY;
    }
    size_t bytes = (size_t)(M * H * d) * sizeof *q;
    FOR_ORDERS(order) {
        struct gpu_heads heads = gpu_heads_up(c.kv, KV_HEADS);
        struct gpu_attention shape = {
            .n_heads = H, .n_kv_heads = KV_HEADS, .head_dim = d, .scale = 0.5f, .format = format};
        struct gpu_attend call = {
            .q = gpu_up(q, M * H * D * sizeof *q), .m = M, .heads = heads.at, .out = gpu_room(sizeof got)};
        struct gpu_attend *gpu = gpu_up(&call, sizeof call);
        sl_gpu_attend(queue, gpu, 1, M, N, &shape, NULL);
        gpu_down(want, call.out, bytes);
        gpu_free(gpu);
        call.before_out = gpu_room(sizeof got), call.before_sum = gpu_room(sizeof nothing);
        call.before_max = gpu_up(nothing, sizeof nothing);
        for (uint32_t first = 0; first < N; first += SL_ATTEND_SPLIT) {
            struct sl_kv part[KV_HEADS];
            for (int h = 0; h < KV_HEADS; h++) {
                part[h] = c.kv[h];
                part[h].pages += first / SL_PAGE_SLOTS;
                part[h].n_slots = N - first < SL_ATTEND_SPLIT ? N - first : SL_ATTEND_SPLIT;
            }
            struct gpu_heads of_part = gpu_heads_up(part, KV_HEADS);
            call.heads = of_part.at;
            gpu = gpu_up(&call, sizeof call);
            shape.unfinished = first + SL_ATTEND_SPLIT < N;
            void *work = gpu_room(sl_gpu_attend_work(1, M, SL_ATTEND_SPLIT, &shape));
            sl_gpu_attend(queue, gpu, 1, M, SL_ATTEND_SPLIT, &shape, first > 0 ? work : NULL);
            gpu_wait(queue);
            gpu_free(work), gpu_free(gpu);
            gpu_heads_free(&of_part);
        }
        gpu_down(got, call.out, bytes);
        assert_memory_equal(got, want, bytes);
        gpu_free((void *)call.q), gpu_free(call.out), gpu_free(call.before_out);
        gpu_free(call.before_sum), gpu_free(call.before_max);
        gpu_heads_free(&heads);
    }
    cache_free(&c);
    free(q);
}

static void test_attend_before(void **state) {
    (void)state;
    check_before(SL_KV_F16, 16);
    check_before(SL_KV_BF16, 64);
}

static void test_append(void **state) {
    (void)state;
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct scene s;
            if (shapes[i].n_packed[0][0] >= 16) {
                continue; // its rows' own slots are packed
            }
            scene_open(&s, &shapes[i]);
            ((float *)s.cpu[0].k)[1] = 1e6f; // beyond f16
            gpu_down((float *)s.cpu[1].k, s.calls[1].k, 4);
            gpu_copy(queue, (void *)s.calls[0].k, s.cpu[0].k, 2 * sizeof(float));
            tier("reference")->append(NULL, s.cpu, CALLS);
            sl_gpu_append(queue, s.gpu, CALLS, s.most_rows, &s.shape);
            for (int call = 0; call < CALLS; call++) {
                gpu_assert_pages(&s.heads[call], s.cache[call].kv, "append");
            }
            scene_close(&s);
        }
    }
}

// --- listed slots ----------------------------------------------------------------------------------------------------

static void attend_listed(struct scene *s, double tolerance, uint32_t lists[KV_HEADS][1200], const uint32_t *n,
                          bool aside) {
    void *gpu_lists = gpu_up(lists, KV_HEADS * sizeof lists[0]), *gpu_n = gpu_up(n, KV_HEADS * sizeof *n);
    void *work = gpu_room(sl_gpu_attend_work(1, 1, 1200, &s->shape));
    tier("reference")->attend_slots(NULL, &s->cpu[0], (struct sl_lists){lists[0], 1200}, (struct sl_counts){.host = n});
    sl_gpu_attend_slots(queue, s->gpu, 1200, &s->shape, gpu_lists, 1200, gpu_n, aside ? work : NULL);
    expect(s->calls[0].out, s->cpu[0].out, s->n_out[0], tolerance, "attend_slots");
    expect(s->calls[0].lse, s->cpu[0].lse, s->n_lse[0], tolerance, "lse of attend_slots");
    gpu_free(gpu_lists), gpu_free(gpu_n), gpu_free(work);
}

static void test_attend_slots(void **state) {
    (void)state;
    static uint32_t lists[KV_HEADS][1200];
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct scene s;
            if (shapes[i].m[0] != 1) {
                continue;
            }
            scene_open(&s, &shapes[i]);
            uint32_t n[KV_HEADS] = {s.cache[0].kv[0].n_slots, s.cache[0].kv[1].n_slots};
            for (uint32_t j = 0; j < 1200; j++) {
                lists[0][j] = lists[1][j] = j;
            }
            attend_listed(&s, tolerance_of(&shapes[i]), lists, n, order == 0);
            float *all = take(s.n_out[0] * sizeof *all);
            gpu_down(all, s.calls[0].out, s.n_out[0] * sizeof *all);
            sl_gpu_attend(queue, s.gpu, 1, 1, s.most_slots, &s.shape, NULL);
            expect(s.calls[0].out, all, s.n_out[0], 0, "a list of all slots");
            free(all);
            for (uint32_t j = 0; j < n[1]; j++) {
                lists[1][j] = j * 7 % n[1]; // of a head that has others beside it, in another order
            }
            const uint32_t few[KV_HEADS] = {0, (n[1] + 1) / 2};
            attend_listed(&s, tolerance_of(&shapes[i]), lists, few, order == 1);
            scene_close(&s);
        }
    }
}

// --- statistics ------------------------------------------------------------------------------------------------------

static void check_fold(struct scene *s, int call, int first_row) {
    const struct sl_fold what = {2, 0, 1};
    struct sl_kv_heads heads = {.kv = s->cache[call].kv, .n = KV_HEADS};
    float *want[3], *got = take(KV_HEADS * 1200 * sizeof *got);
    tier("reference")->fold(NULL, &s->cpu[call], first_row, &what);
    for (int plane = 0; plane < 3; plane++) {
        want[plane] = take(KV_HEADS * 1200 * sizeof *got);
        tier("reference")->read_state(NULL, &heads, plane, (struct sl_vectors){want[plane], 1200});
    }
    sl_gpu_fold(queue, s->gpu + call, s->most_slots, &s->shape, first_row, what.sum, what.square, what.above);
    gpu_heads_down(&s->heads[call]);
    for (int plane = 0; plane < 3; plane++) {
        tier("reference")->read_state(NULL, &heads, plane, (struct sl_vectors){got, 1200});
        for (int h = 0; h < KV_HEADS; h++) {
            for (uint32_t j = 0; j < heads.kv[h].n_slots; j++) {
                double x = (double)got[h * 1200 + (int)j], y = (double)want[plane][h * 1200 + (int)j];
                if (!(fabs(x - y) <= 1e-5 * (1 + y))) {
                    fail_msg("plane %d of head %d, slot %u: %.9g, not %.9g", plane, h, j, x, y);
                }
            }
        }
        free(want[plane]);
    }
    free(got);
}

static void test_fold_and_window_sums(void **state) {
    (void)state;
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct scene s;
            scene_open(&s, &shapes[i]);
            tier("reference")->attend(NULL, s.cpu, CALLS);
            for (int call = 0; call < CALLS; call++) {
                int first_row = shapes[i].m[call] / 3, n_heads = s.shape.n_heads;
                size_t n = (size_t)n_heads * 1200;
                float *sums = take(n * sizeof *sums), *gpu_sums = gpu_up(sums, n * sizeof *sums);
                gpu_copy(queue, s.calls[call].lse, s.cpu[call].lse, s.n_lse[call] * sizeof(float));
                tier("reference")->window_sums(NULL, &s.cpu[call], first_row, (struct sl_vectors){sums, 1200});
                sl_gpu_window_sums(queue, s.gpu + call, s.most_slots, &s.shape, first_row, gpu_sums, 1200);
                gpu_assert_close(gpu_sums, sums, n, 1e-5, "window_sums");
                free(sums);
                check_fold(&s, call, first_row);
            }
            scene_close(&s);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_attend),        GPU_TEST(test_rows_do_not_depend_on_their_neighbours),
        GPU_TEST(test_attend_before), GPU_TEST(test_append),
        GPU_TEST(test_attend_slots),  GPU_TEST(test_fold_and_window_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
