// SPDX-License-Identifier: Apache-2.0
// Purpose: a recipe together with a model and a prompt: what follows from the three, in numbers.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/page.h"
#include "engine/kvcache/session.h"

/*
 * A recipe together with a model and a prompt: what follows from the three, in numbers. Admission, session creation and
 * the size of a grant all come from here, so they cannot disagree. SL_ERR_INVALID: more layers, heads or tokens than are
 * possible, a layer beyond the model, more channels than keys have, a head_dim that the format cannot group.
 *
 * In a cluster the slots of offloaded layers are in kvstores: a capsule has none of them, prefill holds the newest
 * (sl_plan_held_slots()), decode sinks, recent slots, what is generated, and rows that it has fetched. A job in one
 * process (sl_plan_make_local()) keeps all of them in its session, like those of any layer.
 */
struct sl_plan {
    struct sl_recipe recipe; // resolved
    struct sl_kv_geometry geometry;
    bool keeps_offloaded; // made for a job in one process
    int64_t n_prompt;     // tokens that prefill will read
    int rope_set;         // of the session (engine/model/model.h: sl_model_rope_set())
    // Mean per (layer, KV head) that evicts, the tail not counted; n_prompt when nothing is evicted. Recipes with
    // when=step may have more than n_prompt: slots that decode will fill.
    int64_t budget_slots;
    int64_t recent_slots; // protected, newest, of budget_slots; sl_recipe_recent_slots() for another layer's budget
    int64_t tail_slots;   // on top of every budget; 0 where the prompt is not longer than it: nothing is evicted then
    int64_t least_slots;  // the smallest budget of a layer that leaves something to choose beside what scope protects
    // Per (layer, KV head), the tail not counted. Exact for uniform and pyramid; where attention decides (layers=d2o)
    // the most that a layer can get, the same for all that evict; n_prompt for exempt layers. heads=adaptive moves
    // slots between heads of a layer.
    int64_t layer_budget[SL_MAX_LAYERS];
    // Sum over layers that evict of what they keep per head. sl_budget_divide(total_budget, weights, n, least_slots,
    // layer_budget[l], ...) over the n layers that evict is always possible.
    int64_t total_budget;
    int64_t max_slots;                         // per head during prefill, in any layer
    size_t capsule_bytes;                      // upper bound of the body
    size_t prefill_peak_bytes;                 // upper bound of arena use during prefill, tiles read back included
    struct sl_page_layout work[SL_MAX_LAYERS]; // layouts for sl_session_config
    struct sl_page_layout packed[SL_MAX_LAYERS];
};
// The recipe must be resolved (SL_ERR_PRECONDITION).
enum sl_status sl_plan_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                            int rope_set, struct sl_plan *plan_out, struct sl_error *err);

// For jobs in one process, which have no kvstores. Differs where the recipe offloads.
enum sl_status sl_plan_make_local(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                  int64_t n_prompt, int rope_set, struct sl_plan *plan_out, struct sl_error *err);

// Whether kvstores hold the layer's slots.
static inline bool sl_plan_is_offloaded(const struct sl_plan *plan, int layer) {
    return !plan->keeps_offloaded && sl_layers_has(&plan->recipe.offload, layer);
}

// Slots per head that one layer holds at most after prefill, and at any time of n_new tokens more (when=step holds the
// budget, and the token that is being read). Of an offloaded layer: what decode holds.
int64_t sl_plan_layer_slots(const struct sl_plan *plan, int layer, int64_t n_new);

// Where prefill must end a chunk beside multiples of chunk_tokens: behind token n of the prompt (the beginning of the
// tail); n_prompt when there is none.
int64_t sl_plan_body_tokens(const struct sl_plan *plan);

// Returns true when the layer has evicted slots after the first n_tokens of the body, which end a chunk and are not all
// of it. Until then the state does not depend on the budget.
bool sl_plan_evicts_within(const struct sl_plan *plan, int layer, int64_t n_tokens);
// Returns true when the state after these n_tokens can be cut to any chunk before: no layer has evicted, and no slot has
// a score that later tokens changed.
bool sl_plan_can_truncate(const struct sl_plan *plan, int64_t n_tokens);

// Bytes that a decode worker needs for the capsule, hot caches and n_new tokens more: what admission counts. In one
// process also for the key indexes of what is offloaded.
size_t sl_plan_decode_bytes(const struct sl_plan *plan, int64_t n_new);

// An empty session for this plan; room for extra_slots more per head than prefill needs (tokens decoded in the same
// place).
enum sl_status sl_plan_create_session(const struct sl_plan *plan, int64_t extra_slots, struct sl_arena *arena,
                                      struct sl_session **session_out, struct sl_error *err);

// --- of recipes that offload: 0 for others -------------------------------------------------------------------------

// Slots per head of an offloaded layer, wherever they are, when the prompt's first n_tokens have been read: all of them, or
// what its budget leaves of them. No function of how the prompt is cut into chunks, and for n_tokens more it never grows by
// more than that.
int64_t sl_plan_offloaded_slots(const struct sl_plan *plan, int64_t n_tokens);
// Of those, the newest that have not been chosen from yet: they may be evicted when more tokens are read.
int64_t sl_plan_undecided_slots(const struct sl_plan *plan, int64_t n_tokens);

// Prefill ships offloaded layers in segments that end at multiples of SL_KV_SEGMENT_TOKENS slots (net/offload/prefill/offload.h), a divisor
// of SL_ATTEND_SPLIT, and reads on while so many of them are on their way.
#define SL_KV_SEGMENT_TOKENS  512
#define SL_KV_SEGMENTS_QUEUED 2
// Slots per head of an offloaded layer that prefill holds at most: the split at hand (SL_ATTEND_SPLIT), the segments that
// are on their way to kvstores, and the chunk that is being read.
int64_t sl_plan_held_slots(const struct sl_plan *plan);
// Slots of the prompt that decode holds per head of an offloaded layer: sinks and recent ones.
int64_t sl_plan_resident_slots(const struct sl_plan *plan);
// Rows that decode caches per head of an offloaded layer, topk + keep but no more than the prompt has, and the bytes of
// all of them, in whole pages of their layer's working layout; in one process beside sinks and recent slots once more.
int64_t sl_plan_row_places(const struct sl_plan *plan);
size_t sl_plan_hot_cache_bytes(const struct sl_plan *plan);

// Bytes that kvstores hold of all offloaded layers, one replica: pages, key indexes, and where rows are packed the
// segments on their way as they were shipped.
size_t sl_plan_annex_bytes(const struct sl_plan *plan);
// Bytes of the pages that prefill ships to kvstores, once for every replica, where these have nothing of the prompt yet.
size_t sl_plan_offloaded_bytes(const struct sl_plan *plan);

// Bytes of what prefill has on its way of offloaded layers: segments that wait for their ships, and where it reads back two tiles: of
// long prompts, and of those of which stores have the beginning. A device with memory of its own has them in the host's, too.
#define SL_KV_SEGMENTS_HELD                                                                                            \
    (SL_KV_SEGMENTS_QUEUED + 2) // the end of a prompt: a segment of full pages, and the partial page
size_t sl_plan_travelling_bytes(const struct sl_plan *plan, bool is_stored);

// The formats in which kvstores keep rows and what they search, the same for all offloaded layers: the working format,
// int8, or int1 (of what is searched). The recipe must offload.
enum sl_kv_format sl_plan_row_format(const struct sl_plan *plan);
enum sl_kv_format sl_plan_scan_format(const struct sl_plan *plan);
