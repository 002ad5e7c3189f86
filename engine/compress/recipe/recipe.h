// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the declarative description of how a session's KV is compressed. Five papers are points of one space.
 *
 * Text form: comma-separated words, each a preset's name or axis=value; later words override earlier ones:
 *     full | h2o,budget=1024 | streamingllm,budget=0.25,format=int4 |
 *     score=aas,scope=sinks:4+recent:0.5,budget=512,when=chunk
 * axes.c has a row for every axis; `sluice recipes --grammar` shows them, docs/RECIPES.md groups them.
 *
 * A preset sets every axis except format, bits, seed and chunk, also axes that its text does not name. locret also
 * sets chunk, and tailorkv sets format.
 *
 * "format=A/FROM-TO:B" gives layers FROM..TO (either may be left out) format B and all others format A; if ranges
 * overlap, the last one counts. "dense" are layer 0 and the layers that the model's profile names (`sluice profile`);
 * "sparse" are the others. sl_recipe_resolve() turns both into layers. "dense" comes after all ranges.
 *
 * LAYERS are joined by '+': N, N-M, and N- for an open end (place only). A recipe that offloads has these defaults:
 * retrieve=near, ahead=0, topk=128, keep=topk, channels=8, scan=stored and replicas=1. place=resident resets them.
 * Offloaded layers have one format: f32, f16, bf16 or int8. when=chunk includes the end. A budget beside
 * place=offload is a ratio and applies to the offloaded layers alone: slots that they do not keep are never shipped
 * (score=cis or random, when=chunk).
 *
 * A ratio in scope is a share of the budget. If a ratio of a short prompt is not above what scope protects, the
 * budget is one slot above it. The tail (the newest N prompt tokens) stays on top of the budget.
 *
 * Unknown names are rejected with the list of known ones. Impossible combinations are rejected with the axis and the
 * reason when the recipe is parsed (or fitted to a model), before any work.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/compress/recipe/scores.h"
#include "engine/kvcache/session.h"

// Only the text is stored, never these numbers.
enum sl_value { SL_VALUE_OFF, SL_VALUE_CAOTE, SL_VALUE_FASTCAOTE, SL_VALUE_CAOTE_HEADS, SL_VALUE_FASTCAOTE_HEADS };
enum sl_pool { SL_POOL_NONE, SL_POOL_MAX, SL_POOL_AVG };
enum sl_split_layers {
    SL_LAYERS_UNIFORM,
    SL_LAYERS_D2O,        // softmax of minus the heads' min-max variances, as in the authors' code
    SL_LAYERS_D2O_RAW,    // softmax of minus the variance, as in the paper
    SL_LAYERS_D2O_MINMAX, // softmax of minus the layers' min-max variance
    SL_LAYERS_PYRAMID
};
enum sl_split_heads { SL_HEADS_UNIFORM, SL_HEADS_ADAPTIVE, SL_HEADS_LAYER, SL_HEADS_GLOBAL, SL_HEADS_PAGES };
enum sl_when { SL_WHEN_CHUNK = 1, SL_WHEN_END = 2, SL_WHEN_STEP = 4 };
enum sl_evicted { SL_EVICTED_DROP, SL_EVICTED_MERGE };
enum sl_retrieve { SL_RETRIEVE_NEAR, SL_RETRIEVE_PULL };
enum sl_scan { SL_SCAN_STORED, SL_SCAN_INT8, SL_SCAN_INT1 };

// A number of slots, or a share of something else.
struct sl_amount {
    int64_t slots;
    double ratio; // used if slots is 0 and ratio is not
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

#define SL_RECIPE_MAX_SLOTS  (1LL << 24) // recency uses a slot index as a score: it must be exact as f32
#define SL_MAX_FORMAT_RANGES 16
struct sl_format_range {
    int from, to; // inclusive; to < 0: the last layer
    enum sl_kv_format format;
};

// Members of one axis must be adjacent (axes.c).
struct sl_recipe {
    enum sl_score score;
    enum sl_value value;
    int64_t sinks;           // scope: the first slots
    struct sl_amount recent; // scope: the newest slots; a ratio is of the budget
    double std;              // scope: share of the budget that is protected for the largest deviations of attention
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
    enum sl_kv_format format; // for layers that no range names
    struct sl_format_range ranges[SL_MAX_FORMAT_RANGES];
    int n_ranges;
    bool dense_auto; // format names the dense layers (dense_format); false once resolved
    enum sl_kv_format dense_format;
    struct sl_layers offload; // place=offload/...
    int offload_from;         // place=offload/N-: this layer and all later ones; -1: none
    bool offload_auto;        // place=offload/sparse; false once resolved
    int64_t topk;             // 0: nothing is offloaded, and all members below have their default
    int channels;
    enum sl_retrieve retrieve;
    int ahead;         // retrieve=near: 0 asks with the layer's query, 1 with the one predicted from the previous layer
    int64_t keep;      // rows that decode keeps per KV head of an offloaded layer beside those of the step; default -1
    enum sl_scan scan; // format that the store scans
    int replicas;      // stores that hold each share: 1 or 2
    enum sl_position_mode positions;
    int chunk_tokens;
};

// Parses "full,...". Defaults: score none, no budget, format f16, positions original, chunk 512.
enum sl_status sl_recipe_parse(const char *text, struct sl_recipe *recipe_out, struct sl_error *err);

// Replaces format=.../dense, place=offload/sparse, place=offload/N- and exempt=last by layers. `dense`: the model's
// profile, NULL if it has none; layer 0 always counts as dense. SL_ERR_INVALID: the result does not fit together, or
// names layers that the model does not have. Idempotent.
enum sl_status sl_recipe_resolve(struct sl_recipe *recipe, const struct sl_layers *dense, int n_layers,
                                 struct sl_error *err);

// Checks a recipe that is already resolved: the model has the layers that it names, and the axes fit layer by layer.
enum sl_status sl_recipe_check_layers(const struct sl_recipe *recipe, int n_layers, struct sl_error *err);
static inline bool sl_recipe_is_resolved(const struct sl_recipe *recipe) {
    return !recipe->dense_auto && !recipe->offload_auto && recipe->offload_from < 0 && !recipe->exempt_last;
}

// Writes canonical text: it parses to an equal recipe, and names the preset that evicts in the same way, if there is
// one. Returns buf.
#define SL_RECIPE_TEXT_BYTES 2048
char *sl_recipe_format(const struct sl_recipe *recipe, char *buf, size_t buf_bytes);

// Returns the fingerprint. Equal recipes have equal fingerprints on every machine. Axes that change no capsule do not
// count: chunk_tokens if nothing is evicted, and how decode finds offloaded slots. The choice of offloaded layers
// does count: capsules do not contain them.
uint64_t sl_recipe_fingerprint(const struct sl_recipe *recipe);

// --- what follows from a recipe alone ------------------------------------------------------------------------------

static inline bool sl_recipe_evicts(const struct sl_recipe *recipe) {
    return recipe->budget.slots > 0 || recipe->budget.ratio > 0;
}
bool sl_recipe_names_budget(const char *text);           // text parses; true if it names a budget itself
bool sl_recipe_offloads(const struct sl_recipe *recipe); // true if any layer is offloaded

// Returns true if the recipe has both a budget and place=offload. The budget then applies to the offloaded layers,
// which are thinned before their slots are shipped (engine/compress/evict/thin.c); resident layers keep everything.
static inline bool sl_recipe_thins(const struct sl_recipe *recipe) {
    return sl_recipe_evicts(recipe) && sl_recipe_offloads(recipe);
}

// Returns true if budgets of layers depend on the attention that all layers gave (D2O).
static inline bool sl_recipe_splits_by_attention(const struct sl_recipe *recipe) {
    return recipe->layers >= SL_LAYERS_D2O && recipe->layers <= SL_LAYERS_D2O_MINMAX;
}

// Returns true if the heads of all layers compete for one sum of slots.
static inline bool sl_recipe_counts_globally(const struct sl_recipe *recipe) {
    return recipe->heads == SL_HEADS_GLOBAL || recipe->heads == SL_HEADS_PAGES;
}

// Return true if scores or attention decide how many slots each layer, and each head of a layer, keeps.
static inline bool sl_recipe_uneven_layers(const struct sl_recipe *recipe) {
    return sl_recipe_splits_by_attention(recipe) || sl_recipe_counts_globally(recipe);
}
static inline bool sl_recipe_uneven_heads(const struct sl_recipe *recipe) {
    return recipe->heads == SL_HEADS_ADAPTIVE || sl_recipe_counts_globally(recipe);
}

// Returns true if the prompt is read a second time before anything is evicted.
static inline bool sl_recipe_repeats(const struct sl_recipe *recipe) {
    return sl_recipe_evicts(recipe) && sl_score_repeats(sl_score_get_traits(recipe->score));
}

// Returns how many of the newest rows the score uses when it decides: 1 unless it has a window.
int sl_recipe_observed_rows(const struct sl_recipe *recipe);

// sl_recipe_recent_slots(): the newest slots that scope=recent protects if `budget_slots` may stay.
// sl_recipe_std_slots(): the slots that scope=std protects.
int64_t sl_recipe_recent_slots(const struct sl_recipe *recipe, int64_t budget_slots);
int64_t sl_recipe_std_slots(const struct sl_recipe *recipe, int64_t budget_slots);
// Returns all slots that scope protects of a budget, at the eviction that protects the most.
int64_t sl_recipe_protected_slots(const struct sl_recipe *recipe, int64_t budget_slots);

bool sl_layers_any(const struct sl_layers *layers);
// Per-layer properties. A layer evicts by its session's budget, or it is offloaded and thinned. The last two
// functions need a resolved recipe.
enum sl_kv_format sl_recipe_layer_format(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_is_offloaded(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_evicts(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_thins(const struct sl_recipe *recipe, int layer);

// --- tables --------------------------------------------------------------------------------------------------------

// An axis in words, for help and docs: the form of its values, and its default ("": none).
struct sl_axis_help {
    const char *name, *help;
    char values[160], usual[24];
};
// Returns false if there are no more than `index` axes.
bool sl_recipe_axis_help(int index, struct sl_axis_help *help_out);

// One line for --help and docs: name and canonical text of each preset; the last has a NULL name.
struct sl_preset {
    const char *name, *text, *summary;
};
const struct sl_preset *sl_recipe_presets(void);

/*
 * Recommendations by shipped share of the full f16 cache, in falling order: recipes that ship at most that share, leave
 * nothing at stores, and lost as few answers as any such recipe, within the noise. One table is for a question in the
 * prompt (models/demo), the other for questions that come later (docs/quality.md). Of two equal recipes a table has the
 * one that needs no retaining heads. The last has a NULL recipe.
 */
struct sl_recommendation {
    double share;
    const char *recipe;
    bool needs_heads; // the model needs retaining heads
};
const struct sl_recommendation *sl_recipe_recommendations(bool later);
// Returns whether questions that come after the prompt was compressed find what the recipe kept: it evicts nothing,
// or by what the prompt's repetition attends to, or by what retaining heads expect (docs/quality.md).
bool sl_recipe_serves_later(const struct sl_recipe *recipe);
// Returns whether documents may have it: it serves later questions, does not thin what it offloads, and reading a question
// evicts nothing again from pages that other questions share. Quantized pages are never evicted from (engine/runner/turn.h).
bool sl_recipe_keeps_documents(const struct sl_recipe *recipe);
#define SL_CAUTION_BYTES 320
// Writes what a recommendation asks of the prompt, the model or prefill, and of the text's length where it failed; "" if nothing.
void sl_recommendation_needs(const struct sl_recommendation *recommendation, char needs_out[SL_CAUTION_BYTES]);

// Points of 100 that a recipe lost to the full cache, with a 95% interval, if questions came later (docs/quality/later.csv).
struct sl_loss {
    const char *recipe;
    int tokens; // of the texts; 0: nothing is lost at any length
    const char *model;
    double points, low, high;
};
// Returns the loss of a recommended recipe, however written, at the shortest measured length that is no shorter than the
// text, else at the longest; NULL: not measured.
const struct sl_loss *sl_recipe_loss(const char *recipe, int64_t n_tokens);
#define SL_LOSS_BYTES 48
void sl_loss_format(const struct sl_loss *loss, char text_out[SL_LOSS_BYTES]); // "0" if nothing is lost
// Writes a sentence if the text is longer than the recipe was measured to hold at: it has lost at most 5 points. "" if not,
// or if the recipe was never measured.
void sl_recipe_caution(const char *recipe, int64_t n_tokens, char caution_out[SL_CAUTION_BYTES]);
// Returns the recommendation for at most `share`; NULL if no recipe ships so little.
const struct sl_recommendation *sl_recipe_recommend(double share, bool later);
