// SPDX-License-Identifier: Apache-2.0
// Purpose: resolves "dense", "sparse", "last" and open ends of a recipe into layers of a model.
#include "engine/compress/recipe/internal.h"

static bool is_dense(const struct sl_layers *dense, int layer) {
    return layer == 0 || (dense != NULL && sl_layers_has(dense, layer));
}

// Appends the dense layers as format ranges after all others.
static enum sl_status resolve_format(struct sl_recipe *recipe, const struct sl_layers *dense, int n_layers,
                                     struct sl_error *err) {
    for (int l = 0; l < n_layers; l++) {
        if (!is_dense(dense, l)) {
            continue;
        }
        int from = l;
        while (l + 1 < n_layers && is_dense(dense, l + 1)) {
            l++;
        }
        SL_FAIL_IF(recipe->n_ranges == SL_MAX_FORMAT_RANGES, err, SL_ERR_INVALID,
                   "recipe: format=.../dense: the model's dense layers make more than %d ranges; name layers "
                   "instead",
                   SL_MAX_FORMAT_RANGES);
        int i = recipe->n_ranges++;
        recipe->ranges[i].from = from;
        recipe->ranges[i].to = l;
        recipe->ranges[i].format = recipe->dense_format;
    }
    recipe->dense_auto = false;
    recipe->dense_format = (enum sl_kv_format)0;
    return SL_OK;
}

static enum sl_status resolve_place(struct sl_recipe *recipe, const struct sl_layers *dense, int n_layers,
                                    struct sl_error *err) {
    if (!sl_recipe_offloads(recipe)) {
        return SL_OK;
    }
    if (recipe->offload_from >= n_layers) {
        return sl_recipe_check_layers(recipe, n_layers, err);
    }
    for (int l = 0; l < n_layers; l++) {
        if (recipe->offload_auto ? !is_dense(dense, l) : sl_recipe_layer_is_offloaded(recipe, l)) {
            sl_layers_add(&recipe->offload, l);
        }
    }
    recipe->offload_auto = false;
    recipe->offload_from = -1;
    SL_FAIL_IF(!sl_layers_any(&recipe->offload), err, SL_ERR_INVALID,
               "recipe: place=offload/sparse: all %d layers of the model are dense, none is left to offload; "
               "use place=resident, or name layers",
               n_layers);
    return SL_OK;
}

enum sl_status sl_recipe_resolve(struct sl_recipe *recipe, const struct sl_layers *dense, int n_layers,
                                 struct sl_error *err) {
    SL_FAIL_IF(n_layers < 1 || n_layers > SL_MAX_LAYERS, err, SL_ERR_INVALID,
               "recipe: a model of %d layers; 1 to %d are possible", n_layers, SL_MAX_LAYERS);
    struct sl_recipe resolved = *recipe;
    enum sl_status status = SL_OK;
    if (resolved.dense_auto) {
        status = resolve_format(&resolved, dense, n_layers, err);
    }
    SL_THEN(status, resolve_place(&resolved, dense, n_layers, err));
    if (status == SL_OK && resolved.exempt_last) {
        sl_layers_add(&resolved.exempt, n_layers - 1);
        resolved.exempt_last = false;
    }
    SL_THEN(status, sl_recipe_check(&resolved, err));
    SL_THEN(status, sl_recipe_check_layers(&resolved, n_layers, err));
    bool evicts = !sl_recipe_evicts(&resolved) || sl_recipe_thins(&resolved); // some layer is offloaded
    for (int l = 0; status == SL_OK && l < n_layers; l++) {
        evicts = evicts || sl_recipe_layer_evicts(&resolved, l);
    }
    if (status == SL_OK && !evicts) {
        status = sl_fail(err, SL_ERR_INVALID,
                         "recipe: exempt names all %d layers of the model: budget has none to evict from; exempt fewer "
                         "layers, or budget=off",
                         n_layers);
    }
    if (status == SL_OK) {
        *recipe = resolved;
    }
    return status;
}
