// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of the compressor share and nobody else needs.
 *
 *     compressor.c   life cycle, the layer's flow during prefill, the end of the prompt
 *     evict.c        one eviction of one layer: scores, protection, budgets of heads, selection, compaction
 *     merge.c        what is evicted goes into what stays (evicted=merge)
 *     pack.c         final pages are quantized
 *     estimate.c     what eviction and quantization cost, when asked for
 *     thin.c         what is evicted of an offloaded layer before its slots are shipped
 *     steps.c        decode
 */
#ifndef SL_COMPRESS_EVICT_INTERNAL_H
#define SL_COMPRESS_EVICT_INTERNAL_H

#include "compress/evict/compressor.h"
#include "compress/evict/scores/score.h"
#include "compress/recipe/recipe.h"

// Arrays [n_kv_heads][stride], so that heads can be worked on in parallel and compared with each other. What a recipe
// does not need is NULL.
struct sl_scratch {
    size_t stride;       // slots per head; 0 when nothing is ever evicted
    float *scores;       // the larger, the longer the slot stays
    float *base;         // value=...: the scores behind the changes, which decide between equal ones
    float *deviations;   // scope=std
    float *weights;      // value=...-heads: the attention of one query head
    float *work;         // of one head; together also of sl_budget_adaptive()
    float *cosine;       // evicted=merge, with `evicted` and `nearest`
    int64_t *positions;  // scores that look at them
    uint32_t *keep;      // slots that stay, ascending
    uint32_t *evicted;   // the others, ascending
    uint32_t *nearest;   // of each of those, the slot among `keep` that is most like it
    uint32_t *kept;      // [n_kv_heads] how many slots stay
    uint32_t *merged;    // [n_kv_heads] evicted=merge: how many of `evicted` are merged
    const float **heads; // [n_kv_heads] of sl_budget_adaptive()
    uint32_t *n_slots;   // [n_kv_heads]
    float *sums;         // [n_heads][stride] of ops->window_sums; taken when the number of query heads is known
    int n_heads;         // of `sums`
    size_t sums_stride;  // of `sums`
};

// Sums of error estimates; all NULL: not asked for.
struct sl_estimator {
    struct sl_estimate_sums *layers; // [n_layers]
    double *lost;                    // [n_kv_heads] of one eviction
    struct sl_page_error *pages;     // [n_kv_heads] of one round of packing
    float *rows;                     // [team][4][SL_PAGE_SLOTS][head_dim]
};

// Offloaded layers under a budget. Arrays [n_layers][n_kv_heads][...] and [n_kv_heads][...]; all NULL for other recipes.
struct sl_thin {
    int64_t *n_read;  // [n_layers] tokens that have been through the layer
    float *undecided; // [n_layers][n_kv_heads][recent] scores of slots that have not been chosen from yet
    float *scores;    // [n_kv_heads][recent + chunk] of those, and of the chunk's
    uint32_t *keep;   // [n_kv_heads][SL_PAGE_SLOTS + recent + chunk]
    int64_t n_recent, n_batch;
};

struct sl_compressor {
    struct sl_plan plan;
    const struct sl_score_traits *score;
    const struct sl_score_method *method;
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_compress_stats stats;
    struct sl_scratch scratch;
    struct sl_thin thin;
    struct sl_estimator estimator;
    void **new_pages;     // [n_kv_heads]: packed pages of one round, NULL where a head has none to pack
    int64_t *step_budget; // [n_layers][n_kv_heads] while stepping, of layers that evict; else NULL
};

// One eviction of one layer.
struct sl_eviction {
    struct sl_session *session;
    int layer;
    const struct sl_attend *attend; // the rows at hand; NULL at the end of the prompt (layers=d2o)
    int64_t n_tokens;               // read so far
    int64_t budget;                 // slots per head that stay, beside the tail
    const int64_t *head_budgets;    // [n_kv_heads] instead of `budget`, or NULL
    int64_t stabilizers;            // newest slots that stay this time
    int64_t tail;                   // newest slots that stay, on top of the budget
};

// --- thin.c
enum sl_status sl_thin_create(struct sl_compressor *c, struct sl_error *err);
void sl_thin_destroy(struct sl_thin *thin);
/*
 * Behind a chunk that the layer has attended over: choose once among the slots that are newer than those chosen before and
 * older than the newest `recent`. SL_ERR_PRECONDITION: the session does not hold those, or was not read from token 0 on by
 * this compressor; nothing has been evicted.
 */
enum sl_status sl_thin_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                             const struct sl_attend *attend, struct sl_error *err);

// --- evict.c
enum sl_status sl_scratch_create(struct sl_compressor *c, size_t n_slots, struct sl_error *err);
void sl_scratch_destroy(struct sl_scratch *scratch);
// SL_ERR_PRECONDITION: pages are packed already, or heads are longer than the scratch. SL_ERR_EXHAUSTED: `sums`.
enum sl_status sl_evict_layer(struct sl_compressor *c, const struct sl_eviction *eviction, struct sl_error *err);

// Attention of every query head over the rows at hand from first_row on, into scratch.sums. Nothing is allocated after
// the first time. SL_ERR_EXHAUSTED.
enum sl_status sl_take_sums(struct sl_compressor *c, const struct sl_attend *attend, int first_row,
                            struct sl_error *err);

// --- estimate.c: nothing to do where estimates are not asked for
void sl_estimator_destroy(struct sl_estimator *estimator);
// Behind the selection, while all slots are as they were. Overwrites scratch.sums and scratch.work. SL_ERR_EXHAUSTED:
// `sums`, which nothing has allocated yet.
enum sl_status sl_estimate_eviction(struct sl_compressor *c, const struct sl_eviction *e, struct sl_error *err);
// `page` of one head has just become packed_page; by any member of the team. Then, behind the round, by one thread:
void sl_estimate_page(struct sl_compressor *c, const struct sl_layer *layer, int64_t head, void *page,
                      void *packed_page, int member);
void sl_estimate_pages(struct sl_compressor *c, int layer);

// --- merge.c: behind the selection, before the compaction
void sl_merge_evicted(struct sl_compressor *c, const struct sl_eviction *eviction);

// --- pack.c
enum sl_status sl_pack_layer(struct sl_compressor *c, struct sl_session *session, int layer, struct sl_error *err);

// --- compressor.c
static inline bool sl_layer_evicts(const struct sl_compressor *c, int layer) {
    return sl_recipe_layer_evicts(&c->plan.recipe, layer); // plans are of resolved recipes
}
// Budgets follow from the attention of all layers: nothing is evicted before sl_compressor_end().
static inline bool sl_budgets_at_end(const struct sl_compressor *c) {
    return sl_recipe_evicts(&c->plan.recipe) && sl_recipe_splits_by_attention(&c->plan.recipe);
}
static inline bool sl_value_per_query_head(const struct sl_recipe *recipe) {
    return recipe->value == SL_VALUE_CAOTE_HEADS || recipe->value == SL_VALUE_FASTCAOTE_HEADS;
}

#endif
