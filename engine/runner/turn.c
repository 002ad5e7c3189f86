// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/turn.h"

// Returns whether a layer that should evict has been quantized. Exempt layers may be.
static bool is_packed(const struct sl_session *session, const struct sl_recipe *recipe) {
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads && !sl_layers_has(&recipe->exempt, l); h++) {
            if (session->layers[l].heads[h].n_packed > 0) {
                return true;
            }
        }
    }
    return false;
}

enum sl_status sl_turn_plan(const struct sl_recipe *recipe, const struct sl_model_config *model, int64_t end,
                            int rope_set, const struct sl_session *session, struct sl_plan *plan_out,
                            struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(model);
    SL_TRY(sl_plan_make_local(recipe, &geometry, end > 0 ? end : 1, rope_set, plan_out, err));
    if (session) {
        struct sl_session_stats stats;
        sl_session_get_stats(session, &stats);
        // Answers are on top of the budget until the next eviction.
        int64_t most = stats.n_slots_max + end - session->n_tokens;
        plan_out->max_slots = most > plan_out->max_slots ? most : plan_out->max_slots;
        if (is_packed(session, recipe) || sl_recipe_repeats(recipe)) {
            plan_out->recipe.budget = (struct sl_amount){0};
        }
    }
    return SL_OK;
}
