// SPDX-License-Identifier: Apache-2.0
// Purpose: derives layouts, budgets and sizes from a recipe, a model and a prompt.
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
 * The layouts, budgets and sizes that follow from a recipe, a model and a prompt. Admission, session creation and the
 * size of a grant all use it, so they cannot disagree. SL_ERR_INVALID of sl_plan_make(): more layers, heads or tokens
 * than are possible, a layer beyond the model, more channels than keys have, a head_dim that the format cannot group.
 *
 * In a cluster kvstores hold the slots of offloaded layers. A capsule has none of them. Prefill holds the newest
 * (sl_plan_held_slots()); decode holds sinks, recent slots, generated slots, and the rows that it has fetched. A job
 * in one process (sl_plan_make_local()) keeps all of them in its session, as for any layer.
 */
struct sl_plan {
    struct sl_recipe recipe; // resolved
    struct sl_kv_geometry geometry;
    bool keeps_offloaded; // made for a job in one process
    int64_t n_prompt;     // tokens that prefill will read
    int rope_set;         // of the session (engine/model/model.h: sl_model_rope_set())
    // Mean per (layer, KV head) that evicts, without the tail; n_prompt if nothing is evicted. With when=step it may
    // exceed n_prompt: decode fills those slots.
    int64_t budget_slots;
    int64_t recent_slots; // protected newest slots of budget_slots; sl_recipe_recent_slots(): of another budget
    int64_t tail_slots;   // on top of every budget; 0 if the prompt is no longer than the tail: nothing is evicted then
    int64_t least_slots;  // the smallest budget of a layer that leaves something to choose beside what scope protects
    // Per (layer, KV head), without the tail. Exact for uniform and pyramid. If attention decides (layers=d2o), it is
    // the most that a layer can get, the same for all layers that evict; n_prompt for exempt layers. heads=adaptive
    // moves slots between heads of a layer.
    int64_t layer_budget[SL_MAX_LAYERS];
    // Sum over evicting layers of the slots that they keep per head. sl_budget_divide(total_budget, weights, n,
    // least_slots, layer_budget[l], ...) over the n layers that evict is always possible.
    int64_t total_budget;
    int64_t max_slots;                         // per head during prefill, in any layer
    size_t capsule_bytes;                      // upper bound of the body
    size_t prefill_peak_bytes;                 // upper bound of arena use during prefill, tiles read back included
    struct sl_page_layout work[SL_MAX_LAYERS]; // layouts for sl_session_config
    struct sl_page_layout packed[SL_MAX_LAYERS];
};
// Makes a plan. The recipe must be resolved (SL_ERR_PRECONDITION). After a failure *plan_out is undefined.
enum sl_status sl_plan_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                            int rope_set, struct sl_plan *plan_out, struct sl_error *err);

// Makes a plan for a job in one process, which has no kvstores. The result differs only if the recipe offloads.
enum sl_status sl_plan_make_local(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                  int64_t n_prompt, int rope_set, struct sl_plan *plan_out, struct sl_error *err);

// Returns true if kvstores hold the layer's slots.
static inline bool sl_plan_is_offloaded(const struct sl_plan *plan, int layer) {
    return !plan->keeps_offloaded && sl_layers_has(&plan->recipe.offload, layer);
}

// Returns the most slots per head that one layer holds after prefill, and at any time during n_new more tokens
// (when=step holds the budget and the token that is being read). For an offloaded layer: the slots that decode holds.
int64_t sl_plan_layer_slots(const struct sl_plan *plan, int layer, int64_t n_new);

// Returns the token count of the prompt after which prefill must end a chunk, in addition to multiples of
// chunk_tokens: where the tail begins; n_prompt if there is no tail.
int64_t sl_plan_body_tokens(const struct sl_plan *plan);

// Returns how many tokens prefill reads: those of the prompt, and once more those that the recipe repeats.
static inline int64_t sl_plan_read_tokens(const struct sl_plan *plan) {
    int64_t n = plan->n_prompt, sinks = plan->recipe.sinks < n ? plan->recipe.sinks : n;
    return n + (sl_recipe_repeats(&plan->recipe) ? n - sinks : 0);
}

// Returns true when the layer has evicted slots after the first n_tokens of the body, which end a chunk and are not
// the whole body. Until then the state does not depend on the budget.
bool sl_plan_evicts_within(const struct sl_plan *plan, int layer, int64_t n_tokens);
// Returns true when the state after these n_tokens can be cut to any earlier chunk: no layer has evicted, and no slot
// has a score that later tokens changed.
bool sl_plan_can_truncate(const struct sl_plan *plan, int64_t n_tokens);

// Returns the bytes that a decode worker needs for the capsule, hot caches and n_new more tokens: admission counts
// these. In one process they include the key indexes of offloaded layers.
size_t sl_plan_decode_bytes(const struct sl_plan *plan, int64_t n_new);

// Returns the bytes that n_new more tokens take beside a session that exists, before they are packed.
size_t sl_plan_turn_bytes(const struct sl_plan *plan, int64_t n_new);

// Creates an empty session for this plan, with room for extra_slots more per head than prefill needs (tokens decoded
// in the same session).
enum sl_status sl_plan_create_session(const struct sl_plan *plan, int64_t extra_slots, struct sl_arena *arena,
                                      struct sl_session **session_out, struct sl_error *err);

// --- of recipes that offload: 0 for others -------------------------------------------------------------------------

// Returns the slots per head of an offloaded layer, wherever they are stored, after the prompt's first n_tokens: all
// of them, or those that its budget keeps. Does not depend on how the prompt is cut into chunks, and never grows by
// more than n_tokens does.
int64_t sl_plan_offloaded_slots(const struct sl_plan *plan, int64_t n_tokens);
// Returns how many of those are the newest, undecided ones: they may be evicted when more tokens are read.
int64_t sl_plan_undecided_slots(const struct sl_plan *plan, int64_t n_tokens);

// Prefill ships offloaded layers in segments that end at multiples of SL_KV_SEGMENT_TOKENS slots
// (net/offload/prefill/offload.h), a divisor of SL_ATTEND_SPLIT, and continues to read while up to
// SL_KV_SEGMENTS_QUEUED segments are in flight.
#define SL_KV_SEGMENT_TOKENS  512
#define SL_KV_SEGMENTS_QUEUED 2
// Returns the most slots per head of an offloaded layer that prefill holds: the current split (SL_ATTEND_SPLIT), the
// segments in flight to kvstores, and the chunk that is being read.
int64_t sl_plan_held_slots(const struct sl_plan *plan);
// Returns the slots of the prompt that decode holds per head of an offloaded layer: sinks and recent ones.
int64_t sl_plan_resident_slots(const struct sl_plan *plan);
// sl_plan_row_places() returns the rows that decode caches per head of an offloaded layer: topk + keep, but no more
// than the prompt has. sl_plan_hot_cache_bytes() returns the bytes of all of them, in whole pages of their layer's
// working layout; in one process it counts sinks and recent slots once more.
int64_t sl_plan_row_places(const struct sl_plan *plan);
size_t sl_plan_hot_cache_bytes(const struct sl_plan *plan);

// Returns the bytes that kvstores hold for all offloaded layers, one replica: pages, key indexes, and if rows are
// packed the in-flight segments as they were shipped.
size_t sl_plan_remote_kv_bytes(const struct sl_plan *plan);
// Returns the bytes of the pages that prefill ships to kvstores, once for every replica, if the stores hold nothing
// of the prompt yet.
size_t sl_plan_offloaded_bytes(const struct sl_plan *plan);

// Returns the bytes of offloaded layers that prefill has in flight: segments that wait for their ships, and the two
// tiles of a read-back. Long prompts, and prompts whose prefix stores hold, read back. A device with its own memory
// has these bytes in host memory, too.
#define SL_KV_SEGMENTS_HELD                                                                                            \
    (SL_KV_SEGMENTS_QUEUED + 2) // plus the end of a prompt: a segment of full pages, and the partial page
size_t sl_plan_travelling_bytes(const struct sl_plan *plan, bool is_stored);

// Returns the formats in which kvstores keep rows, and in which they search, the same for all offloaded layers: the
// working format, int8, or int1 (for search alone). The recipe must offload.
enum sl_kv_format sl_plan_row_format(const struct sl_plan *plan);
enum sl_kv_format sl_plan_scan_format(const struct sl_plan *plan);
/*
 * Returns the fingerprint under which stored segments of a prompt are shared: by model or, if resident layers are quantized,
 * by model and recipe. A prompt may be read on from quantized pages (a stored prefix, a conversation's next turn), which gives
 * other bits than reading all of it. A recipe that does not quantize must not get such segments.
 */
uint64_t sl_plan_segments_fingerprint(const struct sl_plan *plan, uint64_t model_fingerprint);
// Returns of how many tokens a stored beginning must be a multiple for prefill to read on after it: whole pages, or whole
// splits if rows are kept in another format than they are read in. The recipe must offload.
int64_t sl_plan_offloaded_unit(const struct sl_plan *plan);
