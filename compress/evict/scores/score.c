// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how slots are ranked. One function per method; the table at the end says which recipe value means which.
 * Not here: the change of the output (value=...) and what is protected whatever its score (compress/evict/evict.c), how many
 *         stay (compress/plan/plan.c, compress/plan/budget.c).
 */
#include "compress/evict/scores/score.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"

// Random: score_j = a number in [0, 1) that depends on seed, layer, KV head and original position, and on nothing else:
// so no state, and the same slots go whatever the chunks.
static void read_random(const struct sl_score_input *in, float *scores) {
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        uint64_t place = ((uint64_t)in->layer << 54) ^ ((uint64_t)in->head << 40) ^ (uint64_t)in->positions[j];
        uint64_t z = sl_mix(sl_mix(in->recipe->seed * SL_GOLDEN + place * 0xd1342543de82ef95u + 1));
        scores[j] = (float)(z >> 40) * 0x1p-24f;
    }
}

// Recency: score_j = j. The newest stay; StreamingLLM is this with protected sinks and slot positions.
static void read_recency(const struct sl_score_input *in, float *scores) {
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        scores[j] = (float)j; // exact: prompts are shorter than 2^24 tokens
    }
}

static void read_plane_0(const struct sl_score_input *in, float *scores) {
    in->ops->read_state(in->kv, 0, scores);
}

// Accumulated attention (H2O): score_j = sum over all rows i so far of abar[i][j], over the cache as it was.
static void accumulate_aas(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend) {
    ops->fold(team, attend, 0, &(struct sl_fold){.sum = 0, .square = -1, .above = -1});
}

// Accumulated quantized attention (ScissorHands as RoCo's paper has it): score_j = number of rows i with
// abar[i][j] > 1 / (slots that i sees). Counts are small, so many are equal; of those the oldest is evicted.
static void accumulate_aqas(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend) {
    ops->fold(team, attend, 0, &(struct sl_fold){.sum = -1, .square = -1, .above = 0});
}

// Mean attention (RoCo): score_j = sum_i abar[i][j] / (queries that saw slot j, its own included). That number is not
// stored: every token since then was a query.
static void accumulate_mas(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend) {
    ops->fold(team, attend, 0, &(struct sl_fold){.sum = 0, .square = 1, .above = -1});
}

static double n_queries(const struct sl_score_input *in, uint32_t slot) {
    assert(in->positions[slot] < in->n_tokens);
    return (double)(in->n_tokens - in->positions[slot]);
}

static void read_mas(const struct sl_score_input *in, float *scores) {
    in->ops->read_state(in->kv, 0, scores);
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        scores[j] = (float)((double)scores[j] / n_queries(in, j));
    }
}

// sqrt(mean of squares - square of the mean), which rounding can make negative
void sl_score_deviation(const struct sl_score_input *in, float *deviations) {
    float *sums = in->work;
    in->ops->read_state(in->kv, 0, sums);
    in->ops->read_state(in->kv, 1, deviations);
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        double mean = (double)sums[j] / n_queries(in, j), square = (double)deviations[j] / n_queries(in, j);
        deviations[j] = (float)sqrt(fmax(square - mean * mean, 0));
    }
}

// Neighbours [j - K / 2, j + K / 2] of values[n]; beyond the edges there is 0 (avg, which always divides by K) or nothing
// (max).
static void pool_values(enum sl_pool pool, int kernel, const float *values, int64_t n, float *pooled) {
    for (int64_t j = 0; j < n; j++) {
        int64_t begin = j - kernel / 2, end = begin + kernel;
        begin = begin > 0 ? begin : 0;
        end = end < n ? end : n;
        float max = -INFINITY;
        double sum = 0;
        for (int64_t i = begin; i < end; i++) {
            max = values[i] > max ? values[i] : max;
            sum += (double)values[i];
        }
        pooled[j] = pool == SL_POOL_MAX ? max : (float)(sum / kernel);
    }
}

void sl_score_query_head(const struct sl_score_input *in, int query_head, float *weights) {
    const float *sums = in->sums + (size_t)query_head * in->stride;
    int64_t n = in->kv->n_slots;
    memcpy(weights, sums, (size_t)n * sizeof *weights);
    if (in->recipe->score == SL_SCORE_SNAPKV && in->recipe->pool != SL_POOL_NONE) {
        // As in the authors' code the window's own slots are neither pooled nor pooled with: scope=recent holds them.
        int64_t n_before = n > in->recipe->window ? n - in->recipe->window : 0;
        pool_values(in->recipe->pool, in->recipe->pool_kernel, sums, n_before, weights);
    }
}

// TOVA: score_j = abar[last row][j]. SnapKV: score_j = mean over the query heads of pool(sum over the window's rows).
static void read_rows(const struct sl_score_input *in, float *scores) {
    sl_score_query_head(in, 0, scores);
    for (int g = 1; g < in->group; g++) {
        sl_score_query_head(in, g, in->work);
        for (uint32_t j = 0; j < in->kv->n_slots; j++) {
            scores[j] += in->work[j];
        }
    }
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        scores[j] /= (float)in->group;
    }
}

// Causal importance (Locret): what a retaining head said about a token when it was read; it never changes.
static void accumulate_cis(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend) {
    (void)team;
    for (int h = 0; h < attend->n_kv_heads; h++) {
        const struct sl_kv *kv = &attend->kv[h];
        ops->write_state(kv, 0, kv->n_slots - (uint32_t)attend->m, kv->n_slots,
                         attend->importance + (size_t)h * (size_t)attend->m);
    }
}

// To add one: a value of enum sl_score, its functions above, a row here, and its word in compress/recipe/text.c.
static const struct sl_score_method methods[] = {
    [SL_SCORE_NONE] = {.name = "none"},
    [SL_SCORE_RANDOM] = {.name = "random", .wants_positions = true, .read = read_random},
    [SL_SCORE_RECENCY] = {.name = "recency", .read = read_recency},
    [SL_SCORE_AAS] = {.name = "aas",
                      .wants_lse = true,
                      .sums_attention = true,
                      .n_states = 1,
                      .accumulate = accumulate_aas,
                      .read = read_plane_0},
    [SL_SCORE_AQAS] = {.name = "aqas",
                       .wants_lse = true,
                       .newest_of_ties = true,
                       .n_states = 1,
                       .accumulate = accumulate_aqas,
                       .read = read_plane_0},
    [SL_SCORE_LTAS] = {.name = "ltas", .wants_lse = true, .rows = SL_ROWS_LAST, .read = read_rows},
    [SL_SCORE_MAS] = {.name = "mas",
                      .wants_lse = true,
                      .wants_positions = true,
                      .sums_attention = true,
                      .n_states = 2,
                      .accumulate = accumulate_mas,
                      .read = read_mas},
    [SL_SCORE_SNAPKV] = {.name = "snapkv", .wants_lse = true, .rows = SL_ROWS_WINDOW, .read = read_rows},
    [SL_SCORE_CIS] =
        {.name = "cis", .wants_importance = true, .n_states = 1, .accumulate = accumulate_cis, .read = read_plane_0},
};
_Static_assert(sizeof methods / sizeof methods[0] == SL_N_SCORES, "a row for every score");

const struct sl_score_method *sl_score_method(enum sl_score score) {
    assert(score >= 0 && score < SL_N_SCORES);
    return &methods[score];
}
