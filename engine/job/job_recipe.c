// SPDX-License-Identifier: Apache-2.0
#include "engine/job/job_recipe.h"

#include <string.h>

// Checks the recipe against sliding windows, which are ranges of original positions and are attended to in full.
static enum sl_status check_windows(const struct sl_recipe *recipe, const struct sl_model_config *model,
                                    struct sl_error *err) {
    SL_FAIL_IF(model->window > 0 && recipe->positions == SL_POSITION_SLOT, err, SL_ERR_INVALID,
               "recipe: positions=slot, but this model's sliding windows go by original positions; use "
               "positions=original");
    for (int l = 0; model->window > 0 && l < model->n_layers; l++) {
        SL_FAIL_IF(sl_layers_has(&recipe->offload, l) && (model->window_layers[l / 64] >> (l % 64) & 1) != 0, err,
                   SL_ERR_INVALID,
                   "recipe: place=offload fetches slots of layer %d from everywhere, but this model's layer has "
                   "a sliding window of %lld; leave it resident",
                   l, (long long)model->window);
    }
    return SL_OK;
}

enum sl_status sl_job_recipe(const char *text, const struct sl_model_config *model, struct sl_recipe *recipe_out,
                             struct sl_error *err) {
    struct sl_recipe recipe;
    SL_TRY(sl_recipe_parse(text, &recipe, err));
    SL_FAIL_IF(sl_score_get_traits(recipe.score)->wants_importance && model->retaining_hidden == 0, err,
               SL_ERR_PRECONDITION,
               "recipe: score=%s comes from retaining heads, and this model has none: put "
               "retaining_heads.safetensors beside it (`sluice train-heads` makes it, "
               "tools/convert_retaining_heads.py converts a published one)",
               sl_score_get_traits(recipe.score)->name);
    struct sl_layers dense;
    _Static_assert(sizeof dense.bits == sizeof model->dense_layers, "one bit a layer, both ways");
    memcpy(dense.bits, model->dense_layers, sizeof dense.bits);
    SL_TRY(sl_recipe_resolve(&recipe, model->has_profile ? &dense : NULL, model->n_layers, err));
    SL_TRY(check_windows(&recipe, model, err));
    *recipe_out = recipe;
    return SL_OK;
}

const char *sl_job_default_recipe(const struct sl_model_config *model) {
    struct sl_page_layout layout;
    bool fits = sl_page_layout_init(&layout, SL_KV_INT8, model->head_dim, 0, false) == SL_OK;
    return fits ? "full,format=int8" : "full";
}

static bool same_layout(const struct sl_page_layout *a, const struct sl_page_layout *b) {
    return a->format == b->format && a->n_states == b->n_states && a->has_positions == b->has_positions;
}

enum sl_status sl_job_check_session(const struct sl_plan *plan, const struct sl_session *session,
                                    struct sl_error *err) {
    SL_FAIL_IF(session->positions != plan->recipe.positions, err, SL_ERR_PEER_CORRUPT,
               "the capsule's keys are not rotated as its recipe says");
    SL_FAIL_IF(session->rope_set != plan->rope_set, err, SL_ERR_PEER_CORRUPT,
               "the capsule's keys are rotated for another length of context");
    for (int layer = 0; layer < plan->geometry.n_layers; layer++) {
        SL_FAIL_IF(!same_layout(&session->layers[layer].work, &plan->work[layer]) ||
                       !same_layout(&session->layers[layer].packed, &plan->packed[layer]),
                   err, SL_ERR_PEER_CORRUPT, "the capsule's layer %d is not laid out as its recipe says", layer);
        SL_FAIL_IF(session->layers[layer].offloaded != sl_plan_is_offloaded(plan, layer), err, SL_ERR_PEER_CORRUPT,
                   "the capsule's layer %d is %s, and its recipe says otherwise", layer,
                   session->layers[layer].offloaded ? "offloaded" : "resident");
    }
    return SL_OK;
}
