// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the declarative description of how a session's KV is compressed; five papers as points of one space.
 *
 * Text form: comma-separated words, each a preset's name or axis=value; later words override earlier ones:
 *     full | h2o,budget=1024 | streamingllm,budget=0.25,format=int4 |
 *     score=aas,scope=sinks:4+recent:0.5,budget=512,when=chunk
 * axes.c has a row for every axis; `sluice recipes --grammar` and docs/RECIPES.md show them.
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
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/compress/recipe/scores.h"
#include "engine/kvcache/session.h"

// The numbers are never stored; the text is.
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
enum sl_retrieve { SL_RETRIEVE_NEAR, SL_RETRIEVE_PULL };
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

#define SL_RECIPE_MAX_SLOTS  (1LL << 24) // a slot index is a score (recency): it must be exact as f32
#define SL_MAX_FORMAT_RANGES 16
struct sl_format_range {
    int from, to; // inclusive; to < 0: the last layer
    enum sl_kv_format format;
};

// Members of one axis are next to each other (axes.c).
struct sl_recipe {
    enum sl_score score;
    enum sl_value value;
    int64_t sinks;           // scope: the first slots
    struct sl_amount recent; // scope: the newest slots; a ratio is of the budget
    double std;              // scope: share of the budget that the largest deviations of attention protect
    int64_t stabilizers;     // scope: the newest slots at every eviction but the prompt's last
    int64_t tail;            // scope: the newest prompt tokens, on top of the budget
    int window;
    enum sl_pool pool;
    int pool_kernel;
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
    struct sl_format_range ranges[SL_MAX_FORMAT_RANGES];
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

// Part of that, for who is given a resolved recipe: the layers that it names are of the model, and fit layer by layer.
enum sl_status sl_recipe_check_layers(const struct sl_recipe *recipe, int n_layers, struct sl_error *err);
static inline bool sl_recipe_is_resolved(const struct sl_recipe *recipe) {
    return !recipe->dense_auto && !recipe->offload_auto && recipe->offload_from < 0 && !recipe->exempt_last;
}

// Canonical text: parses to an equal recipe, and names the preset that evicts alike, if there is one. Returns buf.
#define SL_RECIPE_TEXT_BYTES 2048
char *sl_recipe_format(const struct sl_recipe *recipe, char *buf, size_t buf_bytes);

// Equal recipes have equal fingerprints on every machine. What changes no capsule does not count: chunk_tokens where
// nothing is evicted, and how decode finds what is offloaded (which layers are does count: capsules are without them).
uint64_t sl_recipe_fingerprint(const struct sl_recipe *recipe);

// --- what follows from a recipe alone ------------------------------------------------------------------------------

static inline bool sl_recipe_evicts(const struct sl_recipe *recipe) {
    return recipe->budget.slots > 0 || recipe->budget.ratio > 0;
}
bool sl_recipe_names_budget(const char *text);           // of a text that parses: itself, beside what a preset has
bool sl_recipe_offloads(const struct sl_recipe *recipe); // any layer

// A budget and place=offload together: the budget is of the offloaded layers, which are thinned before their slots are
// shipped (engine/compress/evict/thin.c), and resident layers keep everything.
static inline bool sl_recipe_thins(const struct sl_recipe *recipe) {
    return sl_recipe_evicts(recipe) && sl_recipe_offloads(recipe);
}

// Budgets of layers are known when the attention of all of them is.
static inline bool sl_recipe_splits_by_attention(const struct sl_recipe *recipe) {
    return recipe->layers >= SL_LAYERS_D2O && recipe->layers <= SL_LAYERS_D2O_MINMAX;
}

// How many of the newest rows the score looks at when it decides: 1 unless it has a window.
int sl_recipe_observed_rows(const struct sl_recipe *recipe);

// The newest slots that scope=recent protects when `budget_slots` may stay; and those of scope=std.
int64_t sl_recipe_recent_slots(const struct sl_recipe *recipe, int64_t budget_slots);
int64_t sl_recipe_std_slots(const struct sl_recipe *recipe, int64_t budget_slots);
// All that scope protects of a budget at the eviction that protects the most.
int64_t sl_recipe_protected_slots(const struct sl_recipe *recipe, int64_t budget_slots);

bool sl_layers_any(const struct sl_layers *layers);
// A layer evicts as its session's budget says, or it is offloaded and thinned. Of a resolved recipe, the last two.
enum sl_kv_format sl_recipe_layer_format(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_is_offloaded(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_evicts(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_thins(const struct sl_recipe *recipe, int layer);

// --- tables --------------------------------------------------------------------------------------------------------

// An axis in words, for help and docs: what its values look like, and which is meant where none is named ("" : none).
struct sl_axis_help {
    const char *name, *help;
    char values[160], usual[24];
};
// False: there are no more than `index`.
bool sl_recipe_axis_help(int index, struct sl_axis_help *help_out);

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
