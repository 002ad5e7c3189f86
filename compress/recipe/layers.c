// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recipes and the layers of a model: which layers "dense", "sparse", "last" and open ends are, and what fits or
 *          not layer by layer.
 *
 * Design: checks that look at single layers are made twice with the same code: when a recipe is parsed, for the layers
 *         that it names (the model must have those), and when the number of layers is known, for all.
 */
#include <string.h>

#include "compress/recipe/internal.h"

bool sl_layers_any(const struct sl_layers *layers) {
    for (size_t i = 0; i < sizeof layers->bits / sizeof layers->bits[0]; i++) {
        if (layers->bits[i] != 0) {
            return true;
        }
    }
    return false;
}

static int last_of(const struct sl_layers *layers) {
    int l = SL_MAX_LAYERS - 1;
    while (l >= 0 && !sl_layers_has(layers, l)) {
        l--;
    }
    return l;
}

static int larger(int a, int b) {
    return a > b ? a : b;
}

static int last_in_format(const struct sl_recipe *recipe) {
    int last = -1;
    for (int i = 0; i < recipe->n_ranges; i++) {
        last = larger(last, recipe->ranges[i].to < 0 ? recipe->ranges[i].from : recipe->ranges[i].to);
    }
    return last;
}

int sl_recipe_last_named_layer(const struct sl_recipe *recipe) {
    int last = larger(last_in_format(recipe), last_of(&recipe->exempt));
    return larger(last, larger(last_of(&recipe->offload), recipe->offload_from));
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

static bool layer_is_offloaded(const struct sl_recipe *recipe, int layer) {
    return sl_layers_has(&recipe->offload, layer) || (recipe->offload_from >= 0 && layer >= recipe->offload_from);
}

// Stores keep rows of all offloaded layers alike. Unresolved, the dense layers are not known: nothing can be said yet.
static enum sl_status check_offloaded_formats(const struct sl_recipe *recipe, int n_layers, struct sl_error *err) {
    int first = -1;
    for (int l = 0; l < n_layers && !recipe->dense_auto; l++) {
        if (!layer_is_offloaded(recipe, l)) {
            continue;
        }
        enum sl_kv_format format = sl_recipe_layer_format(recipe, l);
        if (sl_kv_format_is_quantized(format) && format != SL_KV_INT8) {
            return sl_fail(
                err, SL_ERR_INVALID,
                "recipe: place=offload keeps no rows in %s, the format of layer %d; keep offloaded layers in "
                "f16, bf16, f32 or int8",
                sl_kv_format_name(format), l);
        }
        if (sl_kv_format_is_quantized(format) && sl_recipe_evicts(recipe)) {
            return sl_fail(
                err, SL_ERR_INVALID,
                "recipe: format=%s of layer %d, which place=offload thins to its budget: what comes back while "
                "the prompt is read would not be what was shipped; use f16, bf16 or f32 there",
                sl_kv_format_name(format), l);
        }
        first = first < 0 ? l : first;
        if (format != sl_recipe_layer_format(recipe, first)) {
            return sl_fail(
                err, SL_ERR_INVALID,
                "recipe: place=offload keeps all layers in one format, and layer %d is %s, layer %d %s; give "
                "offloaded layers the same",
                first, sl_kv_format_name(sl_recipe_layer_format(recipe, first)), l, sl_kv_format_name(format));
        }
    }
    return SL_OK;
}

enum sl_status sl_recipe_check_layers(const struct sl_recipe *recipe, int n_layers, struct sl_error *err) {
    const struct {
        const char *axis;
        int last;
    } named[] = {{"format", last_in_format(recipe)},
                 {"exempt", last_of(&recipe->exempt)},
                 {"place", larger(last_of(&recipe->offload), recipe->offload_from)}};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (named[i].last >= n_layers) {
            return sl_fail(err, SL_ERR_INVALID, "recipe: %s names layer %d, but the model has layers 0 to %d",
                           named[i].axis, named[i].last, n_layers - 1);
        }
    }
    for (int l = 0; l < n_layers; l++) {
        // Unresolved, the dense layers are not known: what they are can only be said of the others.
        enum sl_kv_format format = sl_recipe_layer_format(recipe, l);
        bool quantized = sl_kv_format_is_quantized(format) && !recipe->dense_auto;
        bool exempt = sl_layers_has(&recipe->exempt, l) || (recipe->exempt_last && l == n_layers - 1);
        if (quantized && (recipe->when & SL_WHEN_STEP) && !exempt) {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: when=step evicts from pages during decode, and layer %d is %s: packed pages cannot "
                           "be compacted; use format=f16 (or bf16, f32), exempt that layer, or drop step",
                           l, sl_kv_format_name(format));
        }
    }
    return check_offloaded_formats(recipe, n_layers, err);
}

// --- resolve -----------------------------------------------------------------------------------------------------

static bool is_dense(const struct sl_layers *dense, int layer) {
    return layer == 0 || (dense != NULL && sl_layers_has(dense, layer));
}

// The dense layers as format ranges behind all others.
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
        if (recipe->n_ranges == SL_MAX_FORMAT_RANGES) {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: format=.../dense: the model's dense layers make more than %d ranges; name layers "
                           "instead",
                           SL_MAX_FORMAT_RANGES);
        }
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
        if (recipe->offload_auto ? !is_dense(dense, l) : layer_is_offloaded(recipe, l)) {
            sl_layers_add(&recipe->offload, l);
        }
    }
    recipe->offload_auto = false;
    recipe->offload_from = -1;
    if (!sl_layers_any(&recipe->offload)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: place=offload/sparse: all %d layers of the model are dense, none is left to offload; "
                       "use place=resident, or name layers",
                       n_layers);
    }
    return SL_OK;
}

enum sl_status sl_recipe_resolve(struct sl_recipe *recipe, const struct sl_layers *dense, int n_layers,
                                 struct sl_error *err) {
    if (n_layers < 1 || n_layers > SL_MAX_LAYERS) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: a model of %d layers; 1 to %d are possible", n_layers,
                       SL_MAX_LAYERS);
    }
    struct sl_recipe resolved = *recipe;
    enum sl_status status = SL_OK;
    if (resolved.dense_auto) {
        status = resolve_format(&resolved, dense, n_layers, err);
    }
    if (status == SL_OK) {
        status = resolve_place(&resolved, dense, n_layers, err);
    }
    if (status == SL_OK && resolved.exempt_last) {
        sl_layers_add(&resolved.exempt, n_layers - 1);
        resolved.exempt_last = false;
    }
    if (status == SL_OK) {
        status = sl_recipe_check(&resolved, err);
    }
    if (status == SL_OK) {
        status = sl_recipe_check_layers(&resolved, n_layers, err);
    }
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
