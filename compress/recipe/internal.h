// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of compress/ share about recipes and nobody else needs.
 *
 *     recipe.c   defaults, bounds of every field, fingerprint
 *     check.c    which axes fit each other
 *     layers.c   layers of a model in place of "dense", "sparse", "last" and open ends
 *     names.c    the named values of every axis
 *     axes.c     reading one axis
 *     text.c     reading a recipe; write.c writes it
 *     presets.c  presets
 */
#ifndef SL_COMPRESS_RECIPE_INTERNAL_H
#define SL_COMPRESS_RECIPE_INTERNAL_H

#include "compress/recipe/recipe.h"

#define SL_RECIPE_DEFAULT_CHUNK    512
#define SL_RECIPE_MAX_CHUNK        8192
#define SL_RECIPE_MAX_SLOTS        (1LL << 24) // a slot index is a score (recency): it must be exact as f32
#define SL_RECIPE_DEFAULT_WINDOW   32
#define SL_RECIPE_DEFAULT_POOL     7
#define SL_RECIPE_MAX_POOL         63
#define SL_RECIPE_DEFAULT_BETA     0.5
#define SL_RECIPE_DEFAULT_TOPK     128
#define SL_RECIPE_DEFAULT_CHANNELS 8
#define SL_RECIPE_MAX_CHANNELS     512         // the largest head_dim that a page can have
#define SL_RECIPE_KEEP_TOPK        (-1)        // keep has not been named
#define SL_RECIPE_MAX_ROWS         (1LL << 20) // topk + keep: SL_NEAR_MAX_PLACES
#define SL_RECIPE_MAX_REPLICAS     2

// A named value of an axis; a list of them ends with a NULL name.
struct sl_axis_value {
    const char *name;
    enum { SL_NO_ARGUMENT, SL_ARGUMENT, SL_MAYBE_ARGUMENT } argument; // of "name:argument" or "name/argument"
    int number; // the axis' enum, or whatever its reader understands
};

enum sl_scope { SL_SCOPE_SINKS, SL_SCOPE_RECENT, SL_SCOPE_STD, SL_SCOPE_STABILIZERS, SL_SCOPE_TAIL };

extern const struct sl_axis_value sl_names_score[], sl_names_value[], sl_names_scope[], sl_names_pool[],
    sl_names_layers[], sl_names_heads[], sl_names_when[], sl_names_evicted[], sl_names_place[], sl_names_retrieve[],
    sl_names_scan[], sl_names_positions[];
struct sl_axis {
    const char *name;
    const struct sl_axis_value *values; // NULL: parse() reads the whole text
    bool joined;                        // several values joined by '+'
    void (*clear)(struct sl_recipe *recipe);
    // `argument` is what follows "name:" or "name/", or NULL. NULL function: the only value is what happens anyway.
    enum sl_status (*apply)(struct sl_recipe *recipe, const struct sl_axis_value *value, const char *argument,
                            struct sl_error *err);
    enum sl_status (*parse)(struct sl_recipe *recipe, const char *text, struct sl_error *err);
};
extern const struct sl_axis sl_recipe_axes[]; // ends with a NULL name

// "?" when the number has no name.
const char *sl_axis_value_name(const struct sl_axis_value *values, int number);

struct sl_recipe sl_recipe_defaults(void);
// Everything about offloaded layers but which they are, back to its default.
void sl_recipe_forget_retrieval(struct sl_recipe *recipe);

// Do the axes fit each other? Whatever can be said without a model and a prompt; plan.c does the rest.
enum sl_status sl_recipe_check(const struct sl_recipe *recipe, struct sl_error *err);
// Every field alone. The grammar can only make such recipes; this is for recipes that a program put together.
enum sl_status sl_recipe_check_fields(const struct sl_recipe *recipe, struct sl_error *err);
// What needs the number of layers: names beyond the model, and what fits or not layer by layer.
enum sl_status sl_recipe_check_layers(const struct sl_recipe *recipe, int n_layers, struct sl_error *err);

// The newest slots that scope=recent protects when `budget_slots` may stay; and those of scope=std.
int64_t sl_recipe_recent_slots(const struct sl_recipe *recipe, int64_t budget_slots);
int64_t sl_recipe_std_slots(const struct sl_recipe *recipe, int64_t budget_slots);
// All that scope protects of a budget at the eviction that protects the most.
int64_t sl_recipe_protected_slots(const struct sl_recipe *recipe, int64_t budget_slots);

bool sl_layers_any(const struct sl_layers *layers);
// Of a resolved recipe. A layer evicts as its session's budget says, or it is offloaded and thinned (compress/evict/thin.c).
enum sl_kv_format sl_recipe_layer_format(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_evicts(const struct sl_recipe *recipe, int layer);
bool sl_recipe_layer_thins(const struct sl_recipe *recipe, int layer);

// The last layer that the recipe names, -1 when it names none: the model has at least that one.
int sl_recipe_last_named_layer(const struct sl_recipe *recipe);

static inline bool sl_recipe_splits_by_attention(const struct sl_recipe *recipe) {
    return recipe->layers >= SL_LAYERS_D2O && recipe->layers <= SL_LAYERS_D2O_MINMAX;
}

// every_axis: also write the axes that have their default value.
char *sl_recipe_write(const struct sl_recipe *recipe, bool every_axis, char *buf, size_t buf_bytes);

#endif
