// SPDX-License-Identifier: Apache-2.0
// Purpose: holds the GPU's scores of slots to the reference tier: bits, but for the variance.
#include "tests/kernels/cuda/gpu_fixture.h"

enum { HEADS = 4, GROUP = 2, D = 8, STATES = 2, STRIDE = 1024, M = 37 };
static const uint32_t n_slots[2][HEADS] = {{0, 1, 63, 1000}, {64, 65, 1000, 320}};
static const uint32_t n_packed[2][HEADS] = {{0, 0, 0, 3}, {0, 1, 15, 4}};

struct scene {
    struct cache cache;
    struct sl_kv_heads heads;
    struct gpu_heads gpu;
    uint32_t most;
    struct sl_vectors out; // the reference's
    float *gpu_out;
    bool close; // not to the bit
};

static const size_t out_bytes = HEADS * GROUP * STRIDE * sizeof(float);

static void scene_open(struct scene *s, int which, bool equal) {
    const uint32_t *n = n_slots[which], *packed = n_packed[which];
    const uint32_t all[HEADS] = {321, 321, 321, 321};
    uint64_t seed = 3;
    memset(s, 0, sizeof *s);
    cache_fill(&s->cache, tier("reference"), SL_KV_F16, SL_KV_INT8, HEADS, D, STATES, equal ? all : n, packed);
    for (int h = 0; h < HEADS; h++) {
        for (uint32_t j = s->cache.kv[h].n_packed * 64; j < s->cache.kv[h].n_slots; j++) {
            float x = fabsf(random_float(&seed));
            sl_page_state(&s->cache.work, s->cache.pages[h][j / 64], 0)[j % 64] = x;
            sl_page_state(&s->cache.work, s->cache.pages[h][j / 64], 1)[j % 64] = x * x * random_float(&seed);
        }
    }
    s->heads = (struct sl_kv_heads){.kv = s->cache.kv, .n = HEADS};
    s->gpu = gpu_heads_up(s->cache.kv, HEADS);
    s->most = gpu_most_slots(s->cache.kv, HEADS);
}

static void scene_close(struct scene *s) {
    gpu_heads_free(&s->gpu);
    cache_free(&s->cache);
}

static void begin(struct scene *s) {
    s->out = (struct sl_vectors){take(out_bytes), STRIDE};
    s->gpu_out = gpu_up(s->out.at, out_bytes);
}

static void end(struct scene *s, const char *what) {
    gpu_assert_equal(s->gpu_out, s->out.at, out_bytes, what);
    free(s->out.at);
}

static void test_what_pages_keep(void **state) {
    (void)state;
    const struct sl_ops *ops = tier("reference");
    FOR_ORDERS(order) {
        for (int which = 0; which < 2; which++) {
            struct scene s;
            scene_open(&s, which, false);
            for (int plane = 0; plane < STATES; plane++) {
                begin(&s);
                ops->read_state(NULL, &s.heads, plane, s.out);
                sl_gpu_read_state(queue, s.gpu.at, HEADS, s.most, plane, s.gpu_out, STRIDE);
                end(&s, "read_state");
            }
            double want[HEADS], got[HEADS], *gpu = gpu_room(sizeof got);
            ops->variance(NULL, &s.heads, 0, want);
            sl_gpu_variance(queue, s.gpu.at, HEADS, 0, gpu);
            gpu_down(got, gpu, sizeof got);
            for (int h = 0; h < HEADS; h++) {
                assert_true(fabs(got[h] - want[h]) <= 1e-12 * want[h]);
            }
            gpu_free(gpu);
            scene_close(&s);
        }
    }
}

static void test_write_state_and_spread(void **state) {
    (void)state;
    const struct sl_ops *ops = tier("reference");
    FOR_ORDERS(order) {
        struct scene s;
        scene_open(&s, 0, true);
        float *values = random_floats(M * HEADS, 9), *gpu = gpu_up(values, M * HEADS * sizeof *values);
        ops->write_state(NULL, &s.heads, 1, M, values);
        sl_gpu_write_state(queue, s.gpu.at, HEADS, 1, M, gpu);
        sl_gpu_write_state(queue, s.gpu.at, HEADS, 0, 0, gpu);
        gpu_assert_pages(&s.gpu, s.cache.kv, "write_state");
        begin(&s);
        ops->spread(NULL, values, HEADS, M, s.out);
        sl_gpu_spread(queue, gpu, HEADS, M, s.gpu_out, STRIDE);
        end(&s, "spread");
        begin(&s);
        ops->share(NULL, &s.heads, s.out); // of what was never written, NaN
        sl_gpu_share(queue, s.gpu.at, HEADS, s.most, s.gpu_out, STRIDE);
        gpu_free(s.gpu_out);
        free(s.out.at);
        s.out.at = random_floats(HEADS * GROUP * STRIDE, 4);
        s.gpu_out = gpu_up(s.out.at, out_bytes);
        ops->share(NULL, &s.heads, s.out);
        sl_gpu_share(queue, s.gpu.at, HEADS, s.most, s.gpu_out, STRIDE);
        end(&s, "share");
        gpu_free(gpu);
        free(values);
        scene_close(&s);
    }
}

static void test_scores_of_state_and_of_nothing(void **state) {
    (void)state;
    const struct sl_ops *ops = tier("reference");
    FOR_ORDERS(order) {
        for (int which = 0; which < 2; which++) {
            struct scene s;
            scene_open(&s, which, false);
            begin(&s);
            ops->mean_state(NULL, &s.heads, 3100, s.out, (struct sl_vectors){0});
            sl_gpu_mean_state(queue, s.gpu.at, HEADS, s.most, 3100, s.gpu_out, STRIDE, NULL, 0);
            end(&s, "mean_state");
            begin(&s);
            ops->mean_state(NULL, &s.heads, 3100, (struct sl_vectors){0}, s.out);
            sl_gpu_mean_state(queue, s.gpu.at, HEADS, s.most, 3100, NULL, 0, s.gpu_out, STRIDE);
            end(&s, "deviation");
            begin(&s);
            ops->recency(NULL, &s.heads, s.out);
            sl_gpu_recency(queue, s.gpu.at, HEADS, s.most, s.gpu_out, STRIDE);
            end(&s, "recency");
            begin(&s);
            ops->chance(NULL, &s.heads, 42, 17, 1000000, s.out);
            sl_gpu_chance(queue, s.gpu.at, HEADS, 64, 42, 17, 1000000, s.gpu_out, STRIDE); // few threads, many slots
            end(&s, "chance");
            scene_close(&s);
        }
    }
}

static void test_scores_of_attention(void **state) {
    (void)state;
    const struct sl_ops *ops = tier("reference");
    float *x = random_floats(HEADS * GROUP * STRIDE, 4);
    const struct sl_vectors in = {x, STRIDE};
    FOR_ORDERS(order) {
        float *gpu = gpu_up(x, out_bytes);
        for (int which = 0; which < 4; which++) {
            struct scene s;
            scene_open(&s, which / 2, false);
            bool max = which % 2;
            begin(&s);
            ops->pool(NULL, &s.heads, GROUP, in, max, 5 + which, 10 * which, s.out);
            sl_gpu_pool(queue, s.gpu.at, HEADS, s.most, GROUP, gpu, STRIDE, max, 5 + which, 10 * which, s.gpu_out,
                        STRIDE);
            end(&s, "pool");
            begin(&s);
            ops->mean_group(NULL, &s.heads, GROUP, in, s.out);
            sl_gpu_mean_group(queue, s.gpu.at, HEADS, s.most, GROUP, gpu, STRIDE, s.gpu_out, STRIDE);
            end(&s, "mean_group");
            scene_close(&s);
        }
        gpu_free(gpu);
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_what_pages_keep),
        GPU_TEST(test_write_state_and_spread),
        GPU_TEST(test_scores_of_state_and_of_nothing),
        GPU_TEST(test_scores_of_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
