// SPDX-License-Identifier: Apache-2.0
// Purpose: holds value_change, nearest and merge of the GPU to the reference tier, within what the order of sums makes.
#include "tests/kernels/cuda/gpu_fixture.h"

enum { HEADS = 4, STRIDE = 1024 };
static const uint32_t none[HEADS];

// --- CAOTE -----------------------------------------------------------------------------------------------------------

static void test_value_change(void **state) {
    (void)state;
    static const struct {
        enum sl_kv_format work, packed;
        int d, group;
        bool mean_center;
        uint32_t n_slots[HEADS], n_packed[HEADS];
    } cases[] = {{SL_KV_F32, SL_KV_F32, 8, 1, false, {0, 1, 63, 1000}, {0}},
                 {SL_KV_F16, SL_KV_INT8, 128, 2, true, {64, 65, 130, 200}, {1, 0, 2, 1}},
                 {SL_KV_BF16, SL_KV_INT4, 96, 5, false, {64, 65, 130, 1100}, {0, 1, 0, 10}},
                 {SL_KV_F16, SL_KV_INT2, 64, 1, true, {2, 65, 130, 200}, {0, 1, 1, 2}}};
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct cache c;
            int group = cases[i].group, d = cases[i].d;
            size_t stride = 1152, n = HEADS * (size_t)group * stride;
            cache_fill(&c, tier("reference"), cases[i].work, cases[i].packed, HEADS, d, 0, cases[i].n_slots,
                       cases[i].n_packed);
            float *weights = random_floats(n, 5), *out = take(HEADS * stride * sizeof *out);
            for (size_t j = 0; j < n; j++) { // some 0, all of one row; one slot with nearly all
                weights[j] = j / stride == 2 || weights[j] < -1 ? 0 : expf(weights[j]);
            }
            weights[0] = 1e9f;
            struct gpu_heads gpu = gpu_heads_up(c.kv, HEADS);
            const struct sl_kv_heads heads = {.kv = c.kv, .n = HEADS};
            uint32_t most = gpu_most_slots(c.kv, HEADS);
            void *gpu_weights = gpu_up(weights, n * sizeof *weights);
            void *work = gpu_room(sl_gpu_value_change_work(HEADS, group, d, most));
            float *gpu_out = gpu_up(out, HEADS * stride * sizeof *out);
            tier("reference")
                ->value_change(NULL, &heads, group, (struct sl_vectors){weights, stride}, cases[i].mean_center,
                               (struct sl_vectors){out, stride});
            sl_gpu_value_change(queue, gpu.at, HEADS, most, d, group, gpu_weights, stride, cases[i].mean_center, work,
                                gpu_out, stride);
            gpu_assert_close(gpu_out, out, HEADS * stride, 1e-5, "value_change");
            gpu_free(gpu_weights), gpu_free(work);
            free(weights), free(out);
            gpu_heads_free(&gpu);
            cache_free(&c);
        }
    }
}

// --- D2O -------------------------------------------------------------------------------------------------------------

struct d2o {
    struct cache cache;
    struct sl_kv_heads heads;
    uint32_t most, keep[HEADS][STRIDE], kept[HEADS];
    // The reference's nearest; of a head that keeps nothing, all, or has nothing, as they were.
    uint32_t *evicted, *into;
    float *cosine;
    struct gpu_heads gpu;
    void *gpu_keep, *gpu_kept;
};
static const size_t list_bytes = HEADS * STRIDE * sizeof(uint32_t);

static void set_key(struct cache *c, int h, uint32_t slot, float x) { // f32
    float *k = (float *)((char *)c->pages[h][slot / 64] + c->work.k) + slot % 64 * (uint32_t)c->d;
    for (int i = 0; i < c->d; i++) {
        k[i] = x;
    }
}

static void d2o_open(struct d2o *s, enum sl_kv_format format, int d, const uint32_t *n_slots, uint32_t every) {
    memset(s, 0, sizeof *s);
    cache_fill(&s->cache, tier("reference"), format, format, HEADS, d, 1, n_slots, none);
    for (int h = 0; h < HEADS; h++) {
        for (uint32_t j = 0; j < n_slots[h] && h > 0; j++) { // the first head keeps nothing
            if (h == 1 || j % every == 1) {                  // the second all
                s->keep[h][s->kept[h]++] = j;
            }
        }
    }
    if (format == SL_KV_F32) { // zero keys, equal ones, one that is no number
        set_key(&s->cache, 3, 0, 0), set_key(&s->cache, 3, 1, 0), set_key(&s->cache, 3, 2, NAN);
        set_key(&s->cache, 2, 0, 1), set_key(&s->cache, 2, every + 1, 2), set_key(&s->cache, 2, 2 * every + 1, 2);
    }
    s->heads = (struct sl_kv_heads){.kv = s->cache.kv, .n = HEADS};
    s->most = gpu_most_slots(s->cache.kv, HEADS);
    s->evicted = take(list_bytes), s->into = take(list_bytes), s->cosine = take(list_bytes);
    tier("reference")
        ->nearest(NULL, &s->heads, (struct sl_lists){s->keep[0], STRIDE}, (struct sl_counts){.host = s->kept},
                  (struct sl_lists){s->evicted, STRIDE}, (struct sl_lists){s->into, STRIDE},
                  (struct sl_vectors){s->cosine, STRIDE});
    s->gpu = gpu_heads_up(s->cache.kv, HEADS);
    s->gpu_keep = gpu_up(s->keep, sizeof s->keep);
    s->gpu_kept = gpu_up(s->kept, sizeof s->kept);
}

static void d2o_close(struct d2o *s) {
    free(s->evicted), free(s->into), free(s->cosine);
    gpu_free(s->gpu_keep), gpu_free(s->gpu_kept);
    gpu_heads_free(&s->gpu);
    cache_free(&s->cache);
}

static double cosine_of(const struct d2o *s, int h, uint32_t a, uint32_t b) {
    float x[512], y[512];
    double xy = 0, xx = 0, yy = 0;
    tier("reference")->read_rows(&s->cache.kv[h], a, a + 1, x, NULL);
    tier("reference")->read_rows(&s->cache.kv[h], b, b + 1, y, NULL);
    for (int i = 0; i < s->cache.d; i++) {
        xy += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

static const struct {
    enum sl_kv_format format;
    int d;
    uint32_t n_slots[HEADS], every;
} cases[] = {{SL_KV_F32, 24, {64, 65, 200, 300}, 3},
             {SL_KV_F16, 128, {0, 1, 63, 400}, 5},
             {SL_KV_BF16, 64, {1, 64, 1000, 65}, 9}};

static void test_nearest(void **state) {
    (void)state;
    FOR_ORDERS(order) {
        for (size_t i = 0; i < 3; i++) {
            struct d2o s;
            d2o_open(&s, cases[i].format, cases[i].d, cases[i].n_slots, cases[i].every);
            uint32_t *evicted = gpu_room(list_bytes), *into = gpu_room(list_bytes), *got = take(list_bytes);
            float *cosine = gpu_room(list_bytes);
            sl_gpu_nearest(queue, s.gpu.at, HEADS, s.most, s.gpu_keep, STRIDE, s.gpu_kept, evicted, STRIDE, into,
                           STRIDE, cosine, STRIDE);
            gpu_assert_equal(evicted, s.evicted, list_bytes, "evicted");
            gpu_assert_close(cosine, s.cosine, HEADS * STRIDE, 1e-6, "cosine");
            gpu_down(got, into, list_bytes);
            for (int n = 0; n < HEADS * STRIDE; n++) {
                double want = (double)s.cosine[n];
                if (got[n] != s.into[n] && fabs(cosine_of(&s, n / STRIDE, s.evicted[n], got[n]) - want) > 1e-6) {
                    fail_msg("into %u, not %u", got[n], s.into[n]);
                }
            }
            if (i == 0) { // of equal keys the first
                assert_int_equal(got[2 * STRIDE], cases[0].every + 1);
                assert_int_equal(got[3 * STRIDE], 1);     // a zero key
                assert_int_equal(got[3 * STRIDE + 1], 1); // no number
            }
            free(got);
            gpu_free(into);
            d2o_close(&s);
        }
    }
}

static void test_merge(void **state) {
    (void)state;
    FOR_ORDERS(order) {
        for (size_t i = 0; i < 3; i++) {
            struct d2o s;
            float threshold = i == 1 ? 0.25f : 0.0f, got_threshold;
            uint32_t n_merged, got_merged;
            d2o_open(&s, cases[i].format, cases[i].d, cases[i].n_slots, cases[i].every);
            void *evicted = gpu_up(s.evicted, list_bytes), *into = gpu_up(s.into, list_bytes);
            void *cosine = gpu_up(s.cosine, list_bytes), *work = gpu_room(sl_gpu_merge_work(HEADS));
            float *gpu_threshold = gpu_up(&threshold, sizeof threshold), *k[2], *v[2];
            uint32_t *gpu_merged = gpu_room(sizeof *gpu_merged);
            sl_gpu_merge(queue, s.gpu.at, HEADS, s.most, s.cache.d, s.gpu_kept, evicted, STRIDE, into, STRIDE, cosine,
                         STRIDE, 0.7f, work, gpu_threshold, gpu_merged);
            gpu_down(&got_threshold, gpu_threshold, sizeof got_threshold);
            gpu_down(&got_merged, gpu_merged, sizeof got_merged);
            tier("reference")
                ->merge(NULL, &s.heads, (struct sl_counts){.host = s.kept}, (struct sl_lists){s.evicted, STRIDE},
                        (struct sl_lists){s.into, STRIDE}, (struct sl_vectors){s.cosine, STRIDE}, 0.7f, &threshold,
                        &n_merged);
            assert_true(fabsf(got_threshold - threshold) <= 1e-6f);
            assert_int_equal(got_merged, n_merged);
            assert_true(n_merged > 30);
            size_t n = STRIDE * (size_t)s.cache.d;
            for (int h = 0; h < 2 * HEADS; h++) { // the reference's rows of all heads, then the GPU's in their place
                const struct sl_kv *kv = &s.cache.kv[h % HEADS];
                if (h == 0) {
                    for (int side = 0; side < 2; side++) {
                        k[side] = take(HEADS * n * sizeof **k), v[side] = take(HEADS * n * sizeof **v);
                    }
                } else if (h == HEADS) {
                    gpu_heads_down(&s.gpu);
                }
                tier("reference")
                    ->read_rows(kv, 0, kv->n_slots, k[h / HEADS] + (size_t)(h % HEADS) * n,
                                v[h / HEADS] + (size_t)(h % HEADS) * n);
            }
            for (size_t at = 0; at < HEADS * n; at++) { // a sum may round to the other neighbour
                double most = (cases[i].format == SL_KV_F32 ? 1e-6 : cases[i].format == SL_KV_F16 ? 1e-3 : 8e-3) * 4;
                assert_true(k[0][at] == k[1][at] || fabs((double)(k[0][at] - k[1][at])) < most || isnan(k[0][at]));
                assert_true(v[0][at] == v[1][at] || fabs((double)(v[0][at] - v[1][at])) < most || isnan(v[0][at]));
            }
            for (int side = 0; side < 2; side++) {
                free(k[side]), free(v[side]);
            }
            gpu_free(evicted), gpu_free(into), gpu_free(cosine), gpu_free(work);
            gpu_free(gpu_threshold), gpu_free(gpu_merged);
            d2o_close(&s);
        }
    }
}

// Nothing is evicted: the threshold stays, and nothing is merged.
static void test_merge_of_nothing(void **state) {
    (void)state;
    static const uint32_t n_slots[HEADS] = {0, 65, 0, 0};
    struct d2o s;
    float threshold = 0.5f, cosine = 1;
    uint32_t n_merged = 9;
    d2o_open(&s, SL_KV_F16, 64, n_slots, 2);
    void *gpu_threshold = gpu_up(&threshold, sizeof threshold), *gpu_merged = gpu_up(&n_merged, sizeof n_merged);
    void *list = gpu_up(&cosine, sizeof cosine), *work = gpu_room(sl_gpu_merge_work(HEADS));
    threshold = 0;
    sl_gpu_merge(queue, s.gpu.at, HEADS, s.most, 64, s.gpu_kept, list, 0, list, 0, list, 0, 0.7f, work, gpu_threshold,
                 gpu_merged);
    gpu_down(&threshold, gpu_threshold, sizeof threshold);
    gpu_down(&n_merged, gpu_merged, sizeof n_merged);
    assert_true(threshold == 0.5f && n_merged == 0);
    gpu_assert_pages(&s.gpu, s.cache.kv, "nothing to merge");
    gpu_free(gpu_threshold), gpu_free(gpu_merged), gpu_free(list), gpu_free(work);
    d2o_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_value_change),
        GPU_TEST(test_nearest),
        GPU_TEST(test_merge),
        GPU_TEST(test_merge_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
