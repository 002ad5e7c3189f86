// SPDX-License-Identifier: Apache-2.0
// Purpose: properties of recipes apart from their text: defaults, and values derived from a recipe alone.
#include "engine/compress/recipe/recipe.h"

#include <string.h>

#include "engine/compress/recipe/internal.h"

const struct sl_recipe sl_recipe_default = {
    .window = 32,
    .pool = SL_POOL_MAX,
    .pool_kernel = 7,
    .merge_beta = 0.5,
    .format = SL_KV_F16,
    .offload_from = -1,
    .keep = SL_RECIPE_KEEP_TOPK,
    .replicas = 1,
    .chunk_tokens = 512,
};

// --- budgets -----------------------------------------------------------------------------------------------------

// The text is in upper or lower case, and has no spaces around '='.
bool sl_recipe_names_budget(const char *text) {
    return strcasestr(text, "budget=") != NULL;
}

int64_t sl_recipe_recent_slots(const struct sl_recipe *recipe, int64_t budget_slots) {
    return recipe->recent.slots > 0 ? recipe->recent.slots : (int64_t)(recipe->recent.ratio * (double)budget_slots);
}

int64_t sl_recipe_std_slots(const struct sl_recipe *recipe, int64_t budget_slots) {
    return (int64_t)(recipe->std * (double)budget_slots);
}

int64_t sl_recipe_protected_slots(const struct sl_recipe *recipe, int64_t budget_slots) {
    int64_t newest = sl_recipe_recent_slots(recipe, budget_slots);
    newest = newest > recipe->stabilizers ? newest : recipe->stabilizers; // both are the newest slots
    return recipe->sinks + newest + sl_recipe_std_slots(recipe, budget_slots);
}

int sl_recipe_observed_rows(const struct sl_recipe *recipe) {
    return sl_score_get_traits(recipe->score)->rows == SL_ROWS_WINDOW ? recipe->window : 1;
}

// --- layers ------------------------------------------------------------------------------------------------------

bool sl_layers_any(const struct sl_layers *layers) {
    for (size_t i = 0; i < sizeof layers->bits / sizeof layers->bits[0]; i++) {
        if (layers->bits[i] != 0) {
            return true;
        }
    }
    return false;
}

bool sl_recipe_offloads(const struct sl_recipe *recipe) {
    return recipe->offload_auto || recipe->offload_from >= 0 || sl_layers_any(&recipe->offload);
}

enum sl_kv_format sl_recipe_layer_format(const struct sl_recipe *recipe, int layer) {
    enum sl_kv_format format = recipe->format;
    for (int i = 0; i < recipe->n_ranges; i++) { // later ranges override earlier ones
        if (layer >= recipe->ranges[i].from && (recipe->ranges[i].to < 0 || layer <= recipe->ranges[i].to)) {
            format = recipe->ranges[i].format;
        }
    }
    return format;
}

bool sl_recipe_layer_evicts(const struct sl_recipe *recipe, int layer) {
    return sl_recipe_evicts(recipe) && !sl_recipe_offloads(recipe) && !sl_layers_has(&recipe->exempt, layer);
}

bool sl_recipe_layer_thins(const struct sl_recipe *recipe, int layer) {
    return sl_recipe_thins(recipe) && sl_layers_has(&recipe->offload, layer);
}

bool sl_recipe_layer_is_offloaded(const struct sl_recipe *recipe, int layer) {
    return sl_layers_has(&recipe->offload, layer) || (recipe->offload_from >= 0 && layer >= recipe->offload_from);
}
