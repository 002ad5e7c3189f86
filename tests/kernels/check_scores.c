// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds scores of slots (what pages keep, and what is made of that, of attention and of nothing) to the formulas of
 *          engine/tensor/ops.h, in every tier and with any team.
 *
 * Design: a few heads of unlike length, the first pages of some of them packed without their state. Everything is computed
 *         again slot by slot from what was put in.
 */
#include "tests/kernels/kv_fixture.h"
#include "tests/stream.h"

enum { HEADS = 3, D = 8, STATES = 2, GROUP = 4, STRIDE = 8192 };
static uint32_t n_slots[HEADS] = {8000, 130, 7001}, n_packed[HEADS] = {3, 0, 100}; // fewer where it is emulated

struct scene {
    struct cache cache;
    struct sl_kv_heads heads;
    float *state[STATES]; // [HEADS][STRIDE] what was put in
};

static void scene_open(struct scene *s) {
    cache_fill(&s->cache, tier("reference"), SL_KV_F16, SL_KV_INT8, HEADS, D, STATES, n_slots, n_packed);
    s->heads = (struct sl_kv_heads){.kv = s->cache.kv, .n = HEADS};
    for (int plane = 0; plane < STATES; plane++) {
        s->state[plane] = random_floats(HEADS * STRIDE, 5 + (uint64_t)plane);
        for (int h = 0; h < HEADS; h++) {
            for (uint32_t j = n_packed[h] * SL_PAGE_SLOTS; j < n_slots[h]; j++) {
                float *x = &s->state[plane][h * STRIDE + (int)j];
                *x = plane == 0 ? fabsf(*x) : *x * *x;
                sl_page_state(&s->cache.work, s->cache.pages[h][j / 64], plane)[j % 64] = *x;
            }
            for (uint32_t j = 0; j < n_packed[h] * SL_PAGE_SLOTS; j++) {
                s->state[plane][h * STRIDE + (int)j] = 0; // dropped
            }
        }
    }
}

static void scene_close(struct scene *s) {
    free(s->state[0]);
    free(s->state[1]);
    cache_free(&s->cache);
}

static struct sl_vectors vectors(int n) {
    return (struct sl_vectors){take((size_t)n * STRIDE * sizeof(float)), STRIDE};
}

#define FOR_SLOTS(h, j)                                                                                                \
    for (int h = 0; h < HEADS; h++)                                                                                    \
        for (uint32_t j = 0; j < n_slots[h]; j++)

// A check of one tier, alone and in a team.
struct check {
    void (*fn)(const struct sl_ops *ops, struct sl_stream *stream);
};

static void run_check(void **state) {
    const struct check *check = *state;
    struct sl_stream *stream;
    stream = test_stream_open(3);
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int i = 0; i < (is_device(*name) ? 3 : 2); i++) { // which takes another order of threads each time
            check->fn(tier(*name), i == 1 ? stream : NULL);
        }
    }
    test_stream_close(&stream);
}

static void state_is_what_pages_keep(const struct sl_ops *ops, struct sl_stream *stream) {
    enum { M = 100 };
    struct scene s;
    scene_open(&s);
    struct sl_vectors out = vectors(HEADS);
    float *values = random_floats(M * HEADS, 9);
    ops->write_state(stream, &s.heads, 1, M, values);
    ops->write_state(stream, &s.heads, 0, 0, values);
    for (int plane = 0; plane < STATES; plane++) {
        ops->read_state(stream, &s.heads, plane, out);
        FOR_SLOTS(h, j) {
            bool written = plane == 1 && j >= n_slots[h] - M;
            float want =
                written ? values[(j - (n_slots[h] - M)) * HEADS + (uint32_t)h] : s.state[plane][h * STRIDE + (int)j];
            assert_true(out.at[h * STRIDE + (int)j] == want);
        }
    }
    ops->spread(stream, values, HEADS, M, out);
    for (int h = 0; h < HEADS; h++) {
        for (int r = 0; r < M; r++) {
            assert_true(out.at[h * STRIDE + r] == values[r * HEADS + h]);
        }
    }
    free(out.at);
    free(values);
    scene_close(&s);
}

static void mean_state_is_the_mean_and_the_deviation_over_queries(const struct sl_ops *ops, struct sl_stream *stream) {
    const int64_t n_tokens = 30000;
    struct scene s;
    scene_open(&s);
    struct sl_vectors mean = vectors(HEADS), deviation = vectors(HEADS), alone = vectors(HEADS);
    ops->mean_state(stream, &s.heads, n_tokens, mean, deviation);
    FOR_SLOTS(h, j) {
        double n = (double)(n_tokens - position_of(j)), m = (double)s.state[0][h * STRIDE + (int)j] / n;
        double v = (double)s.state[1][h * STRIDE + (int)j] / n - m * m;
        assert_true(mean.at[h * STRIDE + (int)j] == (float)m);
        assert_true(deviation.at[h * STRIDE + (int)j] == (float)sqrt(v > 0 ? v : 0));
    }
    ops->mean_state(stream, &s.heads, n_tokens, alone, (struct sl_vectors){0});
    ops->mean_state(stream, &s.heads, n_tokens, (struct sl_vectors){0}, mean);
    FOR_SLOTS(h, j) {
        double n = (double)(n_tokens - position_of(j));
        assert_true(alone.at[h * STRIDE + (int)j] == (float)((double)s.state[0][h * STRIDE + (int)j] / n));
        assert_true(mean.at[h * STRIDE + (int)j] == deviation.at[h * STRIDE + (int)j]);
    }
    free(mean.at), free(deviation.at), free(alone.at);
    scene_close(&s);
}

static void variance_is_unbiased(const struct sl_ops *ops, struct sl_stream *stream) {
    struct scene s;
    scene_open(&s);
    double got[HEADS];
    ops->variance(stream, &s.heads, 0, got);
    for (int h = 0; h < HEADS; h++) { // by sums of powers: another way to the same number
        double n = n_slots[h], sum = 0, squares = 0;
        for (uint32_t j = 0; j < n_slots[h]; j++) {
            double x = (double)s.state[0][h * STRIDE + (int)j];
            sum += x;
            squares += x * x;
        }
        double want = (squares - sum * sum / n) / (n - 1);
        assert_true(fabs(got[h] - want) <= 1e-9 * want);
    }
    scene_close(&s);

    static const float by_hand[][8] = {{2, 4, 4, 4, 5, 5, 7, 9}, {5}, {0}, {16777214, 16777215, 16777216}};
    static const uint32_t counts[] = {8, 1, 0, 3}, none[4];
    static const double expected[] = {32.0 / 7, 0, 0, 1}; // sums are not f32
    struct cache c;
    double variances[4];
    cache_fill(&c, ops, SL_KV_F32, SL_KV_F32, 4, D, 1, counts, none);
    for (int h = 0; h < 4; h++) {
        for (uint32_t j = 0; j < counts[h]; j++) {
            sl_page_state(&c.work, c.pages[h][0], 0)[j] = by_hand[h][j];
        }
    }
    const struct sl_kv_heads heads = {.kv = c.kv, .n = 4};
    ops->variance(stream, &heads, 0, variances);
    for (int h = 0; h < 4; h++) {
        assert_true(variances[h] == expected[h]);
    }
    cache_free(&c);
}

// --- attention of query heads ----------------------------------------------------------------------------------------

static void pool_is_its_definition(const struct sl_ops *ops, struct sl_stream *stream) {
    static const struct sl_pooling cases[] = {{false, 7, 32}, {true, 7, 32},    {false, 1, 0},
                                              {true, 4, 100}, {false, 13, 131}, {true, 5, 9000}};
    struct scene s;
    scene_open(&s);
    struct sl_vectors x = {random_floats(HEADS * GROUP * STRIDE, 3), STRIDE}, out = vectors(HEADS * GROUP);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int kernel = cases[i].kernel;
        ops->pool(stream, &s.heads, GROUP, x, cases[i], out);
        for (int row = 0; row < HEADS * GROUP; row++) {
            const float *in = x.at + (size_t)row * STRIDE;
            int64_t n = n_slots[row / GROUP], before = n > cases[i].window ? n - cases[i].window : 0;
            for (int64_t j = 0; j < n; j++) {
                double sum = 0, most = -INFINITY;
                for (int64_t k = j - kernel / 2; k < j - kernel / 2 + kernel; k++) {
                    double v = k >= 0 && k < before ? (double)in[k] : 0;
                    most = k >= 0 && k < before && v > most ? v : most;
                    sum += v;
                }
                double want = j >= before ? (double)in[j] : cases[i].max ? most : sum / kernel;
                assert_true(fabs((double)out.at[(size_t)row * STRIDE + (size_t)j] - want) <= 1e-6);
            }
        }
    }
    free(x.at), free(out.at);
    scene_close(&s);
}

static void mean_group_is_the_mean_over_query_heads(const struct sl_ops *ops, struct sl_stream *stream) {
    struct scene s;
    scene_open(&s);
    struct sl_vectors x = {random_floats(HEADS * GROUP * STRIDE, 3), STRIDE}, out = vectors(HEADS);
    for (int group = 1; group <= GROUP; group++) {
        ops->mean_group(stream, &s.heads, group, x, out);
        FOR_SLOTS(h, j) {
            double sum = 0;
            for (int g = 0; g < group; g++) {
                sum += (double)x.at[(size_t)(h * group + g) * STRIDE + j];
            }
            double got = (double)out.at[h * STRIDE + (int)j];
            assert_true(fabs(got - sum / group) <= 1e-6);
            assert_true(group > 1 || got == sum);
        }
    }
    free(x.at), free(out.at);
    scene_close(&s);
}

// --- of no attention, of all heads -----------------------------------------------------------------------------------

static void recency_counts(const struct sl_ops *ops, struct sl_stream *stream) {
    struct scene s;
    scene_open(&s);
    struct sl_vectors out = vectors(HEADS);
    ops->recency(stream, &s.heads, out);
    FOR_SLOTS(h, j) {
        assert_true(out.at[h * STRIDE + (int)j] == (float)j);
    }
    free(out.at);
    scene_close(&s);
}

static void chance_is_a_function_of_the_place(const struct sl_ops *ops, struct sl_stream *stream) {
    struct scene s;
    scene_open(&s);
    struct sl_vectors out = vectors(HEADS), other = vectors(HEADS);
    ops->chance(stream, &s.heads, 42, 5, 0, out);
    double sum = 0, squares = 0, n = 0;
    FOR_SLOTS(h, j) {
        double x = (double)out.at[h * STRIDE + (int)j];
        assert_true(x >= 0 && x < 1);
        sum += x, squares += x * x, n++;
    }
    assert_true(fabs(sum / n - 0.5) < 0.01 && fabs(squares / n - 1.0 / 3) < 0.01);
    ops->chance(stream, &s.heads, 42, 5, 3, other); // positions are 3 j + 1: the next slot's
    FOR_SLOTS(h, j) {
        assert_true(j + 1 == n_slots[h] || other.at[h * STRIDE + (int)j] == out.at[h * STRIDE + (int)j + 1]);
    }
    uint32_t n_same[3] = {0};
    ops->chance(stream, &s.heads, 43, 5, 0, other);
    FOR_SLOTS(h, j) {
        n_same[0] += other.at[h * STRIDE + (int)j] == out.at[h * STRIDE + (int)j];
        n_same[1] += j < n_slots[1] && out.at[j] == out.at[STRIDE + j];
    }
    ops->chance(stream, &s.heads, 42, 6, 0, other);
    FOR_SLOTS(h, j) {
        n_same[2] += other.at[h * STRIDE + (int)j] == out.at[h * STRIDE + (int)j];
    }
    assert_true(n_same[0] < 3 && n_same[1] < 3 && n_same[2] < 3); // other seeds, heads and layers
    tier("reference")->chance(NULL, &s.heads, 42, 5, 0, other);   // all tiers have the same
    FOR_SLOTS(h, j) {
        assert_true(out.at[h * STRIDE + (int)j] == other.at[h * STRIDE + (int)j]);
    }
    free(out.at), free(other.at);
    scene_close(&s);
}

static void share_gives_all_heads_their_mean(const struct sl_ops *ops, struct sl_stream *stream) {
    enum { N = 8000 };
    struct sl_kv kv[HEADS] = {{.n_slots = N}, {.n_slots = N}, {.n_slots = N}};
    const struct sl_kv_heads heads = {.kv = kv, .n = HEADS};
    float *was = random_floats(HEADS * STRIDE, 3);
    struct sl_vectors x = vectors(HEADS);
    memcpy(x.at, was, HEADS * STRIDE * sizeof *was);
    ops->share(stream, &heads, x);
    for (int j = 0; j < N; j++) {
        double sum = (double)was[j] + (double)was[STRIDE + j] + (double)was[2 * STRIDE + j];
        for (int h = 0; h < HEADS; h++) {
            assert_true(x.at[h * STRIDE + j] == (float)(sum / HEADS));
        }
    }
    free(was), free(x.at);
}

#define CHECK(name)                                                                                                    \
    {                                                                                                                  \
#name, run_check, NULL, NULL, &(struct check) {                                                                \
            name                                                                                                       \
        }                                                                                                              \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        CHECK(state_is_what_pages_keep),
        CHECK(mean_state_is_the_mean_and_the_deviation_over_queries),
        CHECK(variance_is_unbiased),
        CHECK(pool_is_its_definition),
        CHECK(mean_group_is_the_mean_over_query_heads),
        CHECK(recency_counts),
        CHECK(chance_is_a_function_of_the_place),
        CHECK(share_gives_all_heads_their_mean),
    };
    if (is_emulated(tested()[0])) {
        n_slots[0] = 4000, n_slots[2] = 2001, n_packed[2] = 8;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
