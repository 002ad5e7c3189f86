// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what each score computes: what it accumulates while tokens are read, and how it ranks slots. A file a score; what
 *          else is to be known of one is in engine/compress/recipe/scores.h.
 *
 * Vocabulary: abar[i][j]  attention of query i to slot j, mean over the query heads of a KV head
 *             rows at hand  the queries of the forward pass behind which slots are evicted (a chunk, or a step)
 */
#pragma once

#include "engine/compress/recipe/recipe.h"
#include "engine/tensor/ops.h"

// What ranking the heads of a layer may look at.
struct sl_score_input {
    const struct sl_ops *ops;
    struct sl_stream *stream;
    const struct sl_recipe *recipe;
    const struct sl_kv_heads *heads;
    int layer;
    int64_t n_tokens; // tokens read so far, the rows at hand included
    int64_t offset;   // of positions: slot 0 of `heads` is not the session's first
    int group;        // query heads of a KV head
    struct sl_vectors
        weights; // [n_heads] their attention over the rows that the score looks at, pooled if it pools; none
                 // where neither score nor value wants rows
};

struct sl_score_method {
    // Fold the rows at hand into the state of the slots; NULL when there is no state. Called for all rows ever read.
    void (*accumulate)(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_attend *attend);
    // Scores of all slots: the larger, the longer the slot stays. NULL: cannot evict.
    void (*read)(const struct sl_score_input *in, struct sl_vectors scores);
};

#define X(NAME, word, ...) extern const struct sl_score_method sl_score_##word;
SL_SCORE_MAP(X)
#undef X

// Never NULL for a score that is in the enum.
const struct sl_score_method *sl_score_method(enum sl_score score);

// scope=std: population standard deviation over the queries that saw slot j, of abar[.][j]; needs a score that sums_squares.
void sl_score_deviation(const struct sl_score_input *in, struct sl_vectors deviations);

// What several rank by: the slots' state, and the mean of `weights` over the query heads.
void sl_score_of_state(const struct sl_score_input *in, struct sl_vectors scores);
void sl_score_of_rows(const struct sl_score_input *in, struct sl_vectors scores);

static inline bool sl_score_pools(const struct sl_recipe *recipe) {
    return sl_score_get_traits(recipe->score)->is_pooled && recipe->pool != SL_POOL_NONE;
}
