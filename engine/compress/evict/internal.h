// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that only the files of the compressor share.
 *
 *     compressor.c   life cycle, the layer's flow during prefill, the end of the prompt
 *     global.c       divides one budget over the heads of all layers (heads=global)
 *     evict.c        one eviction of one layer: scores, protection, budgets of heads, selection, compaction
 *     merge.c        merges evicted slots into kept ones (evicted=merge)
 *     pack.c         quantizes final pages
 *     estimate.c     estimates the error of eviction and quantization
 *     thin.c         evicts from an offloaded layer before its slots are shipped
 *     steps.c        decode
 */
#pragma once

#include "engine/compress/evict/compressor.h"
#include "engine/compress/evict/scores/score.h"
#include "engine/compress/recipe/recipe.h"

// Scratch of an eviction: a number or an entry per slot of every KV head. Members that a recipe does not need are
// empty.
struct sl_scratch {
    struct sl_device *device;
    void *block;                  // device memory that holds the vectors and lists below
    void *shared;                 // memory that holds what the host reads
    void *host;                   // memory that holds what the host decides
    size_t n_slots, stride;       // per head; 0 if nothing is ever evicted
    struct sl_vectors scores;     // slots with larger scores stay longer
    struct sl_vectors base;       // value=...: the scores before value=...; they break ties
    struct sl_vectors deviations; // scope=std
    struct sl_vectors work;
    struct sl_lists keep;      // slots that stay
    struct sl_nearest nearest; // evicted=merge
    uint32_t *decided;         // [n_kv_heads] number of slots that stay, if attention decides
    uint32_t *decided_here;    // the same, in memory that the host can read
    struct sl_merged {         // evicted=merge, in shared memory
        float threshold;
        uint32_t n;
    } * merged;
    uint32_t *kept;                    // [n_kv_heads] number of slots that stay otherwise
    uint32_t *n_spared;                // [n_kv_heads] scope=std
    struct sl_protection *protections; // [n_kv_heads]
    float *keys;                       // score=keydiff: of a page, in memory of the host
    float *shared_scores;              // score=keydiff: of a head, in shared memory
    void *of_queries;                  // memory that holds the members below
    int n_heads;                       // query heads; 0 until the first attention arrives
    struct sl_vectors sums;            // [n_heads] of ops->window_sums
    struct sl_vectors pooled;          // [n_heads] of ops->pool, if the score pools
};

// Sums of error estimates, in shared memory; NULL if estimates are off.
struct sl_estimator {
    struct sl_estimate_sums *layers; // [n_layers]
};

// State of offloaded layers under a budget; all NULL for other recipes. A batch is a chunk together with the
// undecided `recent` slots before it.
struct sl_thin {
    int64_t n_recent, n_batch;
    int64_t *n_read;                   // [n_layers] tokens that have been through the layer
    float *undecided;                  // [n_layers][recent][n_kv_heads] scores of undecided slots
    float *batch;                      // [n_batch][n_kv_heads] scores of those and of the chunk's slots
    struct sl_vectors scores;          // the same, after the decided slots of the first page: [SL_PAGE_SLOTS + n_batch]
    struct sl_lists keep;              // for the slots of `scores`
    uint32_t *kept;                    // [n_kv_heads]
    struct sl_protection *protections; // [n_kv_heads]
};

#define SL_PACK_PAGES 64 // pages of a head that are packed at once

struct sl_compressor {
    struct sl_plan plan;
    const struct sl_score_traits *score;
    const struct sl_score_method *method;
    bool repeating;   // sl_compressor_repeat()
    int folded_layer; // whose attention over the current chunk is in the scores already; -1: none
    const struct sl_ops *ops;
    struct sl_stream *stream;
    struct sl_compress_stats stats;
    struct sl_scratch scratch;
    struct sl_thin thin;
    struct sl_estimator estimator;
    struct sl_kv *kv;     // [n_kv_heads] of the current layer
    void **new_pages;     // [n_kv_heads][SL_PACK_PAGES] at most: packed pages of one round, as ops->quantize takes them
    int64_t *step_budget; // [n_layers][n_kv_heads] for layers that evict, during decode steps; else NULL
};

// Parameters of one eviction of one layer.
struct sl_eviction {
    struct sl_session *session;
    int layer;
    const struct sl_attend *attend; // the rows at hand; NULL at the end of the prompt (layers=d2o)
    int64_t n_tokens;               // read so far
    int64_t budget;                 // slots per head that stay, not counting the tail
    const int64_t *head_budgets;    // [n_kv_heads] instead of `budget`, or NULL
    const uint32_t *head_counts;    // [n_kv_heads] slots that stay in all, decided elsewhere (heads=global), or NULL
    int64_t stabilizers;            // newest slots that stay this time
    int64_t tail;                   // newest slots that stay, on top of the budget
};

// --- thin.c
enum sl_status sl_thin_create(struct sl_compressor *c, struct sl_error *err);
void sl_thin_destroy(struct sl_compressor *c);
/*
 * Evicts after a chunk that the layer has attended over: decides once about the slots that are newer than those
 * already decided and older than the newest `recent`. SL_ERR_PRECONDITION: the session does not hold those slots, or
 * this compressor did not read it from token 0 on; nothing has been evicted.
 */
enum sl_status sl_thin_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                             const struct sl_attend *attend, struct sl_error *err);

// --- scratch.c
enum sl_status sl_scratch_create(struct sl_compressor *c, size_t n_slots, struct sl_error *err);
void sl_scratch_destroy(struct sl_scratch *scratch);
// Computes the attention of every query head over the rows at hand, from first_row on, into scratch.sums. Allocates
// only on the first call. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_take_sums(struct sl_compressor *c, const struct sl_attend *attend, int first_row,
                            struct sl_error *err);
// Publishes the current pages of all heads of a layer; they stay in c->kv until the next call.
enum sl_status sl_layer_heads(struct sl_compressor *c, const struct sl_session *session, int layer,
                              struct sl_kv_heads *heads_out, struct sl_error *err);

// --- evict.c
// SL_ERR_PRECONDITION: pages are packed already, or heads are longer than the scratch. SL_ERR_EXHAUSTED: as
// sl_take_sums().
enum sl_status sl_evict_layer(struct sl_compressor *c, const struct sl_eviction *eviction, struct sl_error *err);

// Rejects heads that are longer than the scratch: SL_ERR_PRECONDITION.
enum sl_status sl_check_foreseen(const struct sl_compressor *c, int layer, const struct sl_kv_heads *heads,
                                 struct sl_error *err);

// Ranks the slots of a layer in scratch.scores, +inf for those that stay whatever their score: the first steps of
// sl_evict_layer(). Same statuses.
enum sl_status sl_rank_layer(struct sl_compressor *c, const struct sl_eviction *eviction, struct sl_kv_heads *heads_out,
                             struct sl_error *err);

// --- global.c

// Writes counts_out[n_layers][n_kv_heads]: the slots that every head of the layers that evict keeps when all of them
// compete for the whole budget (KVzip). Waits for the device. SL_ERR_EXHAUSTED: no memory for their scores.
enum sl_status sl_count_globally(struct sl_compressor *c, struct sl_session *session, uint32_t *counts_out,
                                 struct sl_error *err);

// --- estimate.c: nothing to do where estimates are not asked for
void sl_estimator_destroy(struct sl_compressor *c);
// Runs after the selection, while all slots are unchanged. Overwrites scratch.sums and scratch.work.
// SL_ERR_EXHAUSTED: as sl_take_sums().
enum sl_status sl_estimate_eviction(struct sl_compressor *c, const struct sl_eviction *e,
                                    const struct sl_kv_heads *heads, struct sl_counts kept, struct sl_error *err);
// Runs after ops->quantize() into c->new_pages, while the heads have both the old and the new pages.
void sl_estimate_pages(struct sl_compressor *c, int layer, const struct sl_kv_heads *heads, uint32_t n_pages);

// --- merge.c: after the selection, before the compaction
// Waits for the device: the session keeps the threshold.
enum sl_status sl_merge_evicted(struct sl_compressor *c, const struct sl_eviction *eviction,
                                const struct sl_kv_heads *heads, struct sl_counts kept, struct sl_error *err);

// --- pack.c
enum sl_status sl_pack_layer(struct sl_compressor *c, struct sl_session *session, int layer, struct sl_error *err);

// --- compressor.c
static inline bool sl_layer_evicts(const struct sl_compressor *c, int layer) {
    return sl_recipe_layer_evicts(&c->plan.recipe, layer); // plans are of resolved recipes
}
// Returns whether budgets depend on all layers, or scores on a second reading: then nothing is evicted before
// sl_compressor_end().
static inline bool sl_evicts_at_end(const struct sl_compressor *c) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    return sl_recipe_evicts(recipe) && (sl_recipe_uneven_layers(recipe) || sl_recipe_repeats(recipe));
}
static inline bool sl_value_per_query_head(const struct sl_recipe *recipe) {
    return recipe->value == SL_VALUE_CAOTE_HEADS || recipe->value == SL_VALUE_FASTCAOTE_HEADS;
}
