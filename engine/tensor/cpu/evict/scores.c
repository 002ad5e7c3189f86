// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: scores of slots in plain C, for every tier: those that pages store, and those computed from them and from
 *          attention. Each operation is a function of one head; the formulas are in engine/tensor/ops.h.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/evict/fills.h"

struct call {
    const struct sl_kv_heads *heads;
    struct sl_vectors x, out, deviation;
    const float *values;
    double *sums;
    int plane, m, n, group, layer;
    int64_t n_tokens, offset;
    uint64_t seed;
    struct sl_pooling pooling;
};

// --- stored scores ---------------------------------------------------------------------------------------------------

static float state_of(const struct sl_kv *kv, int plane, uint32_t slot) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    // Packed slots may have dropped their score: selection does not use them any more.
    return plane < layout->n_states
               ? sl_page_state(layout, kv->pages[slot / SL_PAGE_SLOTS], plane)[slot % SL_PAGE_SLOTS]
               : 0.0f;
}

static int64_t position_of(const struct sl_kv *kv, uint32_t slot) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    if (!layout->has_positions) {
        return slot;
    }
    return sl_page_positions(layout, kv->pages[slot / SL_PAGE_SLOTS])[slot % SL_PAGE_SLOTS];
}

static void read_head(const void *arg, int h) {
    const struct call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    float *out = sl_vector(c->out, h);
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        out[j] = state_of(kv, c->plane, j);
    }
}

static void read_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, struct sl_vectors out) {
    const struct call call = {.heads = heads, .plane = plane, .out = out};
    sl_each_head(stream, heads->n, sl_heads_slots(heads), read_head, &call);
}

static void write_head(const void *arg, int h) {
    const struct call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    uint32_t first = kv->n_slots - (uint32_t)c->m;
    assert(c->m == 0 || first / SL_PAGE_SLOTS >= kv->n_packed);
    assert((uint32_t)c->m <= kv->n_slots && c->plane < kv->work->n_states);
    for (uint32_t r = 0; r < (uint32_t)c->m; r++) {
        void *page = kv->pages[(first + r) / SL_PAGE_SLOTS];
        sl_page_state(kv->work, page, c->plane)[(first + r) % SL_PAGE_SLOTS] =
            c->values[r * (uint32_t)c->heads->n + (uint32_t)h];
    }
}

static void write_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, int m,
                        const float *values) {
    const struct call call = {.heads = heads, .plane = plane, .m = m, .values = values};
    sl_each_head(stream, heads->n, (size_t)m * (size_t)heads->n, write_head, &call);
}

static void spread_head(const void *arg, int h) {
    const struct call *c = arg;
    float *out = sl_vector(c->out, h);
    for (int r = 0; r < c->m; r++) {
        out[r] = c->values[(size_t)r * (size_t)c->n + (size_t)h];
    }
}

static void spread(struct sl_stream *stream, const float *values, int n, int m, struct sl_vectors out) {
    const struct call call = {.values = values, .n = n, .m = m, .out = out};
    sl_each_head(stream, n, (size_t)m * (size_t)n, spread_head, &call);
}

static void mean_head(const void *arg, int h) {
    const struct call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    float *out = c->out.at != NULL ? sl_vector(c->out, h) : NULL;
    float *deviation = c->deviation.at != NULL ? sl_vector(c->deviation, h) : NULL;
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        assert(position_of(kv, j) < c->n_tokens);
        double n_queries = (double)(c->n_tokens - position_of(kv, j)), mean = (double)state_of(kv, 0, j) / n_queries;
        if (out != NULL) {
            out[j] = (float)mean;
        }
        if (deviation != NULL) { // rounding can make the difference negative
            double square = (double)state_of(kv, 1, j) / n_queries;
            deviation[j] = (float)sqrt(fmax(square - mean * mean, 0));
        }
    }
}

static void mean_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int64_t n_tokens,
                       struct sl_vectors mean_out, struct sl_vectors deviation_out) {
    const struct call call = {.heads = heads, .n_tokens = n_tokens, .out = mean_out, .deviation = deviation_out};
    sl_each_head(stream, heads->n, sl_heads_slots(heads), mean_head, &call);
}

static void variance_head(const void *arg, int h) {
    const struct call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    uint32_t n = kv->n_slots;
    double sum = 0, squares = 0;
    for (uint32_t j = 0; j < n; j++) {
        sum += (double)state_of(kv, c->plane, j);
    }
    double mean = sum / n;
    for (uint32_t j = 0; j < n; j++) {
        squares += ((double)state_of(kv, c->plane, j) - mean) * ((double)state_of(kv, c->plane, j) - mean);
    }
    c->sums[h] = n < 2 ? 0 : squares / (n - 1);
}

static void variance(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, double *out) {
    const struct call call = {.heads = heads, .plane = plane, .sums = out};
    sl_each_head(stream, heads->n, sl_heads_slots(heads), variance_head, &call);
}

// --- attention of query heads ----------------------------------------------------------------------------------------

// row: a query head
static void pool_head(const void *arg, int row) {
    const struct call *c = arg;
    const float *x = sl_vector(c->x, row);
    float *out = sl_vector(c->out, row);
    int kernel = c->pooling.kernel;
    int64_t n = c->heads->kv[row / c->group].n_slots, n_before = n > c->pooling.window ? n - c->pooling.window : 0;
    for (int64_t j = 0; j < n_before; j++) {
        int64_t begin = j - kernel / 2, end = begin + kernel;
        begin = begin > 0 ? begin : 0;
        end = end < n_before ? end : n_before;
        float max = -INFINITY;
        double sum = 0;
        for (int64_t i = begin; i < end; i++) {
            max = x[i] > max ? x[i] : max;
            sum += (double)x[i];
        }
        out[j] = c->pooling.max ? max : (float)(sum / kernel);
    }
    memcpy(out + n_before, x + n_before, (size_t)(n - n_before) * sizeof *out);
}

static void pool(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                 struct sl_pooling pooling, struct sl_vectors out) {
    const struct call call = {.heads = heads, .group = group, .x = x, .pooling = pooling, .out = out};
    size_t work = sl_heads_slots(heads) * (size_t)(group * pooling.kernel);
    sl_each_head(stream, heads->n * group, work, pool_head, &call);
}

static void mean_group_head(const void *arg, int h) {
    const struct call *c = arg;
    uint32_t n = c->heads->kv[h].n_slots;
    float *out = sl_vector(c->out, h);
    memcpy(out, sl_vector(c->x, h * c->group), n * sizeof *out);
    for (int g = 1; g < c->group; g++) {
        const float *x = sl_vector(c->x, h * c->group + g);
        for (uint32_t j = 0; j < n; j++) {
            out[j] += x[j];
        }
    }
    for (uint32_t j = 0; j < n; j++) {
        out[j] /= (float)c->group;
    }
}

static void mean_group(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                       struct sl_vectors out) {
    const struct call call = {.heads = heads, .group = group, .x = x, .out = out};
    sl_each_head(stream, heads->n, sl_heads_slots(heads) * (size_t)group, mean_group_head, &call);
}

// --- scores without attention ----------------------------------------------------------------------------------------

static void recency_head(const void *arg, int h) {
    const struct call *c = arg;
    float *out = sl_vector(c->out, h);
    for (uint32_t j = 0; j < c->heads->kv[h].n_slots; j++) {
        out[j] = (float)j; // exact: prompts are shorter than 2^24 tokens
    }
}

static void recency(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors out) {
    const struct call call = {.heads = heads, .out = out};
    sl_each_head(stream, heads->n, sl_heads_slots(heads), recency_head, &call);
}

static void chance_head(const void *arg, int h) {
    const struct call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    float *out = sl_vector(c->out, h);
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        uint64_t position = (uint64_t)(position_of(kv, j) + c->offset);
        uint64_t place = ((uint64_t)c->layer << 54) ^ ((uint64_t)h << 40) ^ position;
        uint64_t z = sl_mix(sl_mix(c->seed * SL_GOLDEN + place * 0xd1342543de82ef95u + 1));
        out[j] = (float)(z >> 40) * 0x1p-24f;
    }
}

static void chance(struct sl_stream *stream, const struct sl_kv_heads *heads, uint64_t seed, int layer, int64_t offset,
                   struct sl_vectors out) {
    const struct call call = {.heads = heads, .seed = seed, .layer = layer, .offset = offset, .out = out};
    sl_each_head(stream, heads->n, sl_heads_slots(heads), chance_head, &call);
}

// --- scores over all heads -------------------------------------------------------------------------------------------

// A task is a slot.
static void share_slots(void *arg, int64_t begin, int64_t end, int) {
    const struct call *c = arg;
    int n = c->heads->n;
    for (int64_t j = begin; j < end; j++) {
        double sum = 0;
        for (int h = 0; h < n; h++) {
            sum += (double)sl_vector(c->out, h)[j];
        }
        for (int h = 0; h < n; h++) {
            sl_vector(c->out, h)[j] = (float)(sum / n);
        }
    }
}

static void share(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors x_inout) {
    enum { GRAIN = 4096 };
    struct call call = {.heads = heads, .out = x_inout};
    for (int h = 1; h < heads->n; h++) {
        assert(heads->kv[h].n_slots == heads->kv[0].n_slots);
    }
    sl_stream_run(stream, heads->kv[0].n_slots, GRAIN, share_slots, &call);
}

void sl_ref_scores_fill(struct sl_ops *ops) {
    ops->read_state = read_state;
    ops->write_state = write_state;
    ops->spread = spread;
    ops->mean_state = mean_state;
    ops->variance = variance;
    ops->pool = pool;
    ops->mean_group = mean_group;
    ops->recency = recency;
    ops->chance = chance;
    ops->share = share;
}
