// SPDX-License-Identifier: Apache-2.0
// Purpose: scores that look at the rows at hand: their attention by query head, and the mean over those.
#include <math.h>
#include <string.h>

#include "compress/evict/scores/score.h"

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
    if (sl_score_get_traits(in->recipe->score)->is_pooled && in->recipe->pool != SL_POOL_NONE) {
        // As in SnapKV's code the window's own slots are neither pooled nor pooled with: scope=recent holds them.
        int64_t n_before = n > in->recipe->window ? n - in->recipe->window : 0;
        pool_values(in->recipe->pool, in->recipe->pool_kernel, sums, n_before, weights);
    }
}

void sl_score_of_rows(const struct sl_score_input *in, float *scores) {
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
