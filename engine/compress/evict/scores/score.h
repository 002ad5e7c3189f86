// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the interface of scores: how each accumulates attention while tokens are read, and how it ranks slots.
 *          score.c is the table; their other properties are in engine/compress/recipe/scores.h.
 *
 * Vocabulary: abar[i][j]  attention of query i to slot j, mean over the query heads of a KV head
 *             rows at hand  the queries of the forward pass after which slots are evicted (a chunk's, or a step's)
 */
#pragma once

#include "engine/compress/recipe/recipe.h"
#include "engine/tensor/ops.h"

// The inputs for ranking the heads of a layer.
struct sl_score_input {
    const struct sl_ops *ops;
    struct sl_stream *stream;
    const struct sl_recipe *recipe;
    const struct sl_kv_heads *heads;
    int layer;
    int64_t n_tokens; // tokens read so far, the rows at hand included
    int64_t offset;   // position of slot 0 of `heads`, if it is not the session's first slot
    int group;        // query heads of a KV head
    // [n_heads] attention of each over the rows that the score uses, pooled if it pools; empty if neither score nor
    // value needs rows
    struct sl_vectors weights;
    float *keys;   // keydiff: memory of the host for the keys of a page
    float *shared; // keydiff: shared memory for the scores of a head
};

struct sl_score_method {
    // The state of the slots is attention of all rows that are read, in these planes; NULL: it is not.
    const struct sl_fold *fold;
    // Writes the state of the slots of the rows at hand; NULL: nothing is written. Called for all rows that are read.
    void (*write)(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_attend *attend);
    // Writes the scores of all slots; slots with larger scores stay longer. NULL: the score cannot evict.
    void (*read)(const struct sl_score_input *in, struct sl_vectors scores);
};

// Adds the rows at hand to the state of the slots, or writes it, where the score has one.
void sl_score_accumulate(const struct sl_score_method *method, const struct sl_ops *ops, struct sl_stream *stream,
                         const struct sl_attend *attend);

// Returns the methods of a score; never NULL for a value of the enum.
const struct sl_score_method *sl_score_method(enum sl_score score);

// scope=std: writes the population standard deviation of abar[.][j] over the queries that saw slot j; the score must
// have sums_squares.
void sl_score_deviation(const struct sl_score_input *in, struct sl_vectors deviations);

void sl_score_read_keydiff(const struct sl_score_input *in, struct sl_vectors scores);

static inline bool sl_score_pools(const struct sl_recipe *recipe) {
    return sl_score_get_traits(recipe->score)->is_pooled && recipe->pool != SL_POOL_NONE;
}
