// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what each score computes: what it accumulates while tokens are read, and how it ranks slots. A file a score; what
 *          else is to be known of one is in compress/recipe/scores.h.
 *
 * Vocabulary: abar[i][j]  attention of query i to slot j, mean over the query heads of a KV head
 *             rows at hand  the queries of the forward pass behind which slots are evicted (a chunk, or a step)
 */
#ifndef SL_COMPRESS_EVICT_SCORES_SCORE_H
#define SL_COMPRESS_EVICT_SCORES_SCORE_H

#include "compress/recipe/recipe.h"
#include "tensor/ops.h"

// What ranking one (layer, KV head) may look at.
struct sl_score_input {
    const struct sl_ops *ops;
    const struct sl_recipe *recipe;
    const struct sl_kv *kv;
    int layer, head;
    int64_t n_tokens;         // tokens read so far, the rows at hand included
    const int64_t *positions; // [n_slots] original positions; only where the score wants_positions
    int group;                // query heads of this KV head
    const float *sums;        // [group][stride] of ops->window_sums; NULL where neither score nor value wants rows
    size_t stride;
    float *work; // [n_slots], free to use
};

struct sl_score_method {
    // Fold the rows at hand into the state of the slots; NULL when there is no state. Called for all rows ever read.
    void (*accumulate)(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend);
    // scores[kv->n_slots]: the larger, the longer the slot stays. NULL: cannot evict.
    void (*read)(const struct sl_score_input *in, float *scores);
};

#define X(NAME, word, ...) extern const struct sl_score_method sl_score_##word;
SL_SCORE_MAP(X)
#undef X

// Never NULL for a score that is in the enum.
const struct sl_score_method *sl_score_method(enum sl_score score);

// scope=std: population standard deviation over the queries that saw slot j, of abar[.][j]; needs a score that sums_squares.
void sl_score_deviation(const struct sl_score_input *in, float *deviations);

// Attention of one query head (of `group`) over the rows in `sums`; pooled if the score pools. Not normalized.
void sl_score_query_head(const struct sl_score_input *in, int query_head, float *weights);
// The mean of that over the query heads: what scores that are of rows rank by.
void sl_score_of_rows(const struct sl_score_input *in, float *scores);

#endif
