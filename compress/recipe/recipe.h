// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the declarative description of how a session's KV is compressed; five papers as points of one space.
 *
 * Text form: comma-separated words, each a preset's name or axis=value; later words override earlier ones:
 *     full | h2o,budget=1024 | streamingllm,budget=0.25,format=int4 |
 *     score=aas,scope=sinks:4+recent:0.5,budget=512,when=chunk
 *
 *   axis       values
 *   score      none random recency aas aqas ltas mas snapkv cis
 *   value      off caote fastcaote caote-heads fastcaote-heads ("-heads": every query head's own weights, root of the
 *              summed squares; otherwise the group's mean weights)
 *   scope      '+'-joined: sinks:N recent:N|RATIO std:RATIO stabilizers:N tail:N
 *   window     N: rows that snapkv observes (default 32)
 *   pool       none, max:K, avg:K: over neighbouring slots of snapkv's sums (default max:7)
 *   seed       N: of score=random
 *   budget     off, slots (an integer >= 1) or a ratio of the prompt (0 < r < 1)
 *   layers     uniform d2o d2o-raw d2o-minmax pyramid
 *   exempt     none, or '+'-joined layers N, ranges N-M and "last": these layers evict nothing
 *   heads      uniform adaptive layer ("layer": all heads of a layer keep the same slots)
 *   when       '+'-joined: chunk end step
 *   evicted    drop, merge or merge:BETA (weight of the newest mean similarity in the threshold; default 0.5)
 *   format     f32 f16 bf16 int8 int4 int2 int1, or per layer: f16/0-1:int4/2-:int2, f16/dense:int2
 *   bits       1 2 4 8: short for format=f16/dense:intB
 *   place      resident, offload/LAYERS, offload/sparse
 *   retrieve   near: the stores search with the query; pull: decode fetches channels of all slots and searches
 *   ahead      0 1: of retrieve=near; 1 asks a layer earlier, with the query that is predicted there
 *   topk       N: slots that a step finds per KV head of an offloaded layer
 *   keep       N, 0 too: rows that decode keeps per KV head beside those of the step, so as not to fetch them again; 0: a
 *              step keeps none of the step before, either
 *   channels   N: critical channels per KV head of an offloaded layer
 *   scan       stored int8 int1: format of the keys that are searched; stored: the format of the layer
 *   replicas   1 2: stores that hold each part of the offloaded layers
 *   positions  original slot
 *   chunk      prompt tokens per forward pass of prefill (a multiple of 64)
 *
 * A preset sets every axis but format, bits, seed and chunk, named in its text or not; locret also sets chunk, and
 * tailorkv format.
 *
 * "format=A/FROM-TO:B" gives layers FROM..TO (either may be left out) format B and all others format A; of ranges that
 * overlap the last one counts. "dense" are layer 0 and the layers that the model's profile names (`sluice profile`) and
 * "sparse" the others: sl_recipe_resolve() turns both into layers. "dense" comes after all ranges.
 *
 * LAYERS are joined by '+': N, N-M, and N- for the last one of place. A recipe that offloads without naming them has
 * retrieve=near, ahead=0, topk=128, as much to keep, channels=8, scan=stored and replicas=1; place=resident drops them.
 * Offloaded layers have one format, f32, f16, bf16 or int8. when=chunk includes the end. A budget beside place=offload is
 * a ratio, of the offloaded layers alone: what they do not keep is never shipped (score=cis or random, when=chunk).
 *
 * A ratio in scope is a share of the budget. Where a ratio of a short prompt would not be above what scope protects,
 * the budget is one slot above it. The tail (the newest N prompt tokens) stays on top of the budget.
 *
 * What there is not is refused by name, with what there is; impossible combinations are refused with the axis and the
 * reason when the recipe is parsed (or fitted to a model), before any work.
 */
#ifndef SL_COMPRESS_RECIPE_RECIPE_H
#define SL_COMPRESS_RECIPE_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kvcache/session.h"

// The numbers are never stored; the text is.
enum sl_score {
    SL_SCORE_NONE,
    SL_SCORE_RANDOM,
    SL_SCORE_RECENCY,
    SL_SCORE_AAS,
    SL_SCORE_AQAS,
    SL_SCORE_LTAS,
    SL_SCORE_MAS,
    SL_SCORE_SNAPKV,
    SL_SCORE_CIS,
    SL_N_SCORES
};
enum sl_value { SL_VALUE_OFF, SL_VALUE_CAOTE, SL_VALUE_FASTCAOTE, SL_VALUE_CAOTE_HEADS, SL_VALUE_FASTCAOTE_HEADS };
enum sl_pool { SL_POOL_NONE, SL_POOL_MAX, SL_POOL_AVG };
enum sl_split_layers {
    SL_LAYERS_UNIFORM,
    SL_LAYERS_D2O,        // softmax of minus the heads' min-max variances, as the authors' code has it
    SL_LAYERS_D2O_RAW,    // softmax of minus the variance, as the paper has it
    SL_LAYERS_D2O_MINMAX, // softmax of minus the layers' min-max variance
    SL_LAYERS_PYRAMID
};
enum sl_split_heads { SL_HEADS_UNIFORM, SL_HEADS_ADAPTIVE, SL_HEADS_LAYER };
enum sl_when { SL_WHEN_CHUNK = 1, SL_WHEN_END = 2, SL_WHEN_STEP = 4 };
enum sl_evicted { SL_EVICTED_DROP, SL_EVICTED_MERGE };
enum sl_retrieve { SL_RETRIEVE_PULL, SL_RETRIEVE_NEAR };
enum sl_scan { SL_SCAN_STORED, SL_SCAN_INT8, SL_SCAN_INT1 };

// A number of slots, or a share of something else.
struct sl_amount {
    int64_t slots;
    double ratio; // used when slots is 0 and ratio is not
};

// A set of layers.
struct sl_layers {
    uint64_t bits[SL_MAX_LAYERS / 64];
};
static inline bool sl_layers_has(const struct sl_layers *layers, int layer) {
    return layers->bits[layer / 64] >> (layer % 64) & 1;
}
static inline void sl_layers_add(struct sl_layers *layers, int layer) {
    layers->bits[layer / 64] |= 1ull << (layer % 64);
}

#define SL_MAX_FORMAT_RANGES 16

struct sl_recipe {
    enum sl_score score;
    enum sl_value value;
    int64_t sinks;           // scope: the first slots
    struct sl_amount recent; // scope: the newest slots; a ratio is of the budget
    double std;              // scope: share of the budget that the largest deviations of attention protect
    int64_t stabilizers;     // scope: the newest slots at every eviction but the prompt's last
    int64_t tail;            // scope: the newest prompt tokens, on top of the budget
    int window, pool_kernel;
    enum sl_pool pool;
    uint64_t seed;
    struct sl_amount budget; // slots per (layer, KV head); both 0: nothing is evicted
    enum sl_split_layers layers;
    struct sl_layers exempt;
    bool exempt_last;
    enum sl_split_heads heads;
    unsigned when; // enum sl_when, or-ed
    enum sl_evicted evicted;
    double merge_beta;        // evicted=merge: threshold_t = (1 - beta) * threshold_{t-1} + beta * mean similarity
    enum sl_kv_format format; // of layers that no range names
    struct {
        int from, to; // inclusive; to < 0: the last layer
        enum sl_kv_format format;
    } ranges[SL_MAX_FORMAT_RANGES];
    int n_ranges;
    bool dense_auto; // format names the dense layers: dense_format, until resolved
    enum sl_kv_format dense_format;
    struct sl_layers offload; // place=offload/...
    int offload_from;         // place=offload/N-: this layer and all behind it; -1: none
    bool offload_auto;        // place=offload/sparse, until resolved
    int64_t topk;             // 0: nothing is offloaded, and all below is at its default
    int channels;
    enum sl_retrieve retrieve;
    int ahead;         // retrieve=near: 0 asks with the query, 1 with the one that the layer before predicts
    int64_t keep;      // rows that decode keeps per KV head of an offloaded layer beside those of the step; default -1
    enum sl_scan scan; // of what the store scans
    int replicas;      // stores that hold each share: 1 or 2
    enum sl_position_mode positions;
    int chunk_tokens;
};

// "full,..." Defaults: score none, no budget, format f16, positions original, chunk 512.
enum sl_status sl_recipe_parse(const char *text, struct sl_recipe *recipe_out, struct sl_error *err);

// Put layers in place of format=.../dense, place=offload/sparse, place=offload/N- and exempt=last. `dense`: the model's
// profile, NULL when it has none; layer 0 always counts as dense. SL_ERR_INVALID: what results does not fit together, or
// names layers that the model has not. Idempotent.
enum sl_status sl_recipe_resolve(struct sl_recipe *recipe, const struct sl_layers *dense, int n_layers,
                                 struct sl_error *err);

// True when the score comes from retaining heads: the model must have them (model/model.h).
static inline bool sl_recipe_needs_retaining_heads(const struct sl_recipe *recipe) {
    return recipe->score == SL_SCORE_CIS;
}
bool sl_recipe_offloads(const struct sl_recipe *recipe); // any layer

// Canonical text: parses to an equal recipe, and names the preset that evicts alike, if there is one. Returns buf.
#define SL_RECIPE_TEXT_BYTES 2048
char *sl_recipe_format(const struct sl_recipe *recipe, char *buf, size_t buf_bytes);

// Equal recipes have equal fingerprints on every machine. What changes no capsule does not count: chunk_tokens where
// nothing is evicted, and how decode finds what is offloaded (which layers are does count: capsules are without them).
uint64_t sl_recipe_fingerprint(const struct sl_recipe *recipe);

static inline bool sl_recipe_evicts(const struct sl_recipe *recipe) {
    return recipe->budget.slots > 0 || recipe->budget.ratio > 0;
}

// A budget and place=offload together: the budget is of the offloaded layers, which are thinned before their slots are
// shipped (compress/thin.c), and resident layers keep everything.
static inline bool sl_recipe_thins(const struct sl_recipe *recipe) {
    return sl_recipe_evicts(recipe) && sl_recipe_offloads(recipe);
}

// One line for --help and docs: name and canonical text of each preset; the last has a NULL name.
struct sl_preset {
    const char *name, *text, *summary;
};
const struct sl_preset *sl_recipe_presets(void);

/*
 * What to take where only so much may be shipped: by falling share of the full cache in f16, each a recipe that lost
 * as few answers of models/demo as any that ships at most that and leaves nothing at stores (docs/quality.md), to within the noise;
 * of two such, the one that needs no retaining heads.
 * The last has a NULL recipe.
 */
struct sl_recommendation {
    double share;
    const char *recipe;
    bool needs_heads; // retaining heads, beside the model
};
const struct sl_recommendation *sl_recipe_recommendations(void);

// The recommendation for at most `share`; NULL: none ships so little.
const struct sl_recommendation *sl_recipe_recommend(double share);

/*
 * A recipe together with a model and a prompt: what follows from the three, in numbers. Admission, session creation and
 * the size of a grant all come from here, so they cannot disagree. SL_ERR_INVALID: budget not above what the scope
 * protects, a layer range beyond the model, a head_dim that the format cannot group.
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
    int rope_set;         // of the session; 0 unless who makes the plan sets it (sl_model_rope_set())
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
                            struct sl_plan *plan_out, struct sl_error *err);

// For jobs in one process, which have no kvstores. Differs where the recipe offloads.
enum sl_status sl_plan_make_local(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                  int64_t n_prompt, struct sl_plan *plan_out, struct sl_error *err);

// Whether kvstores hold the layer's slots.
static inline bool sl_plan_is_offloaded(const struct sl_plan *plan, int layer) {
    return !plan->keeps_offloaded && sl_layers_has(&plan->recipe.offload, layer);
}

// Slots per head that one layer holds at most after prefill, and at any time of n_new tokens more (when=step holds the
// budget, and the token that is being read). Of an offloaded layer: what decode holds.
int64_t sl_plan_layer_slots(const struct sl_plan *plan, int layer, int64_t n_new);

// Bytes that a decode worker needs for the capsule, row caches and n_new tokens more: what admission counts. In one
// process also for the scan copies of what is offloaded.
size_t sl_plan_decode_bytes(const struct sl_plan *plan, int64_t n_new);

// --- of recipes that offload: 0 for others -------------------------------------------------------------------------

// Slots per head of an offloaded layer, wherever they are, when the prompt's first n_tokens have been read: all of them, or
// what its budget leaves of them. No function of how the prompt is cut into chunks, and for n_tokens more it never grows by
// more than that.
int64_t sl_plan_offloaded_slots(const struct sl_plan *plan, int64_t n_tokens);
// Of those, the newest that have not been chosen from yet: they may be evicted when more tokens are read.
int64_t sl_plan_undecided_slots(const struct sl_plan *plan, int64_t n_tokens);

// Prefill ships offloaded layers in stretches that end at multiples of SL_STRETCH_TOKENS slots (service/offload.h), a divisor
// of SL_ATTEND_SPLIT, and reads on while so many of them are on their way.
#define SL_STRETCH_TOKENS   512
#define SL_STRETCHES_QUEUED 2
// Slots per head of an offloaded layer that prefill holds at most: the split at hand (SL_ATTEND_SPLIT), the stretches that
// are on their way to kvstores, and the chunk that is being read.
int64_t sl_plan_held_slots(const struct sl_plan *plan);
// Slots of the prompt that decode holds per head of an offloaded layer: sinks and recent ones.
int64_t sl_plan_resident_slots(const struct sl_plan *plan);
// Rows that decode caches per head of an offloaded layer, topk + keep but no more than the prompt has, and the bytes of
// all of them, in whole pages of their layer's working layout; in one process beside sinks and recent slots once more.
int64_t sl_plan_row_places(const struct sl_plan *plan);
size_t sl_plan_row_cache_bytes(const struct sl_plan *plan);

// Bytes that kvstores hold of all offloaded layers, one replica: pages, scan copies, and where rows are packed the
// stretches on their way as they were shipped.
size_t sl_plan_annex_bytes(const struct sl_plan *plan);
// Bytes of the pages that prefill ships to kvstores, once for every replica, where these have nothing of the prompt yet.
size_t sl_plan_offloaded_bytes(const struct sl_plan *plan);

// The formats in which kvstores keep rows and what they search, the same for all offloaded layers: the working format,
// int8, or int1 (of what is searched). The recipe must offload.
enum sl_kv_format sl_plan_row_format(const struct sl_plan *plan);
enum sl_kv_format sl_plan_scan_format(const struct sl_plan *plan);

#endif
