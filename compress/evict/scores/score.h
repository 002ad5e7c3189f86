// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the score axis as a table: what each method accumulates while tokens are read, and how it ranks slots.
 *
 * Vocabulary: abar[i][j]  attention of query i to slot j, mean over the query heads of a KV head
 *             rows at hand  the queries of the forward pass behind which slots are evicted (a chunk, or a step)
 */
#ifndef SL_COMPRESS_EVICT_SCORES_SCORE_H
#define SL_COMPRESS_EVICT_SCORES_SCORE_H

#include "compress/recipe/recipe.h"
#include "tensor/ops.h"

// Which of the rows at hand a score looks at (through ops->window_sums) when slots are evicted.
enum sl_score_rows {
    SL_ROWS_NONE,
    SL_ROWS_LAST,   // the last one
    SL_ROWS_WINDOW, // the last `window` of the recipe
};

// What ranking one (layer, KV head) may look at.
struct sl_score_input {
    const struct sl_ops *ops;
    const struct sl_recipe *recipe;
    const struct sl_kv *kv;
    int layer, head;
    int64_t n_tokens;         // tokens read so far, the rows at hand included
    const int64_t *positions; // [n_slots] original positions; only where the method wants_positions
    int group;                // query heads of this KV head
    const float *sums;        // [group][stride] of ops->window_sums; NULL where neither score nor value wants rows
    size_t stride;
    float *work; // [n_slots], free to use
};

struct sl_score_method {
    const char *name;
    bool wants_lse;        // attend->lse, for ops->fold or ops->window_sums
    bool wants_importance; // attend->importance
    bool wants_positions;
    bool sums_attention; // plane 0 is sum_i abar[i][j]: what layers=d2o measures
    bool newest_of_ties; // of equal scores the newest slot stays; otherwise the oldest (the order of ops->select)
    int n_states;        // score planes that a page needs
    enum sl_score_rows rows;
    // Fold the rows at hand into the state of the slots; NULL when there is no state. Called for all rows ever read.
    void (*accumulate)(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend);
    // scores[kv->n_slots]: the larger, the longer the slot stays. NULL: cannot evict.
    void (*read)(const struct sl_score_input *in, float *scores);
};

// Never NULL for a score that is in the enum.
const struct sl_score_method *sl_score_method(enum sl_score score);

// scope=std: population standard deviation over the queries that saw slot j, of abar[.][j]; needs score=mas's planes.
void sl_score_deviation(const struct sl_score_input *in, float *deviations);

// Attention of one query head (of `group`) over the rows in `sums`; pooled if the score pools. Not normalized.
void sl_score_query_head(const struct sl_score_input *in, int query_head, float *weights);

#endif
