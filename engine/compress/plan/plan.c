// SPDX-License-Identifier: Apache-2.0
// Purpose: recipe + model + prompt length -> layouts and budgets, and the sizes that follow (sizes.c).
#include <inttypes.h>
#include <string.h>

#include "engine/compress/plan/budget.h"
#include "engine/compress/plan/internal.h"

// --- the model ---------------------------------------------------------------------------------------------------

static enum sl_status check_model(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                  int64_t n_prompt, struct sl_error *err) {
    SL_FAIL_IF(geometry->n_layers < 1 || geometry->n_layers > SL_MAX_LAYERS || geometry->n_kv_heads < 1 ||
                   geometry->n_kv_heads > SL_MAX_HEADS,
               err, SL_ERR_INVALID, "plan: %d layers of %d KV heads; at most %d layers of %d heads are possible",
               geometry->n_layers, geometry->n_kv_heads, SL_MAX_LAYERS, SL_MAX_HEADS);
    SL_FAIL_IF(n_prompt < 1 || n_prompt > SL_RECIPE_MAX_SLOTS, err, SL_ERR_INVALID,
               "plan: a prompt of %" PRId64 " tokens; 1 to %lld are possible", n_prompt,
               (long long)SL_RECIPE_MAX_SLOTS);
    SL_FAIL_IF(recipe->channels > geometry->head_dim, err, SL_ERR_INVALID,
               "recipe: channels=%d, but keys of this model have %d; use channels=%d or fewer", recipe->channels,
               geometry->head_dim, geometry->head_dim);
    return sl_recipe_check_layers(recipe, geometry->n_layers, err);
}

// Chooses the layouts of layers. A quantized layer reads tokens in f16 and is packed once the prompt has been read;
// kvstores pack an offloaded one. Layers that evict nothing need neither scores nor positions.
static enum sl_status make_layouts(struct sl_plan *plan, struct sl_error *err) {
    int n_states = sl_score_get_traits(plan->recipe.score)->n_states;
    int d = plan->geometry.head_dim;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        bool evicts = sl_recipe_layer_evicts(&plan->recipe, l);
        enum sl_kv_format format = sl_recipe_layer_format(&plan->recipe, l);
        bool quantized = sl_kv_format_is_quantized(format);
        enum sl_status status =
            sl_page_layout_init(&plan->work[l], quantized ? SL_KV_F16 : format, d, evicts ? n_states : 0, evicts);
        if (status == SL_OK) {
            // Packed slots are never evicted, so they carry no score.
            status = quantized ? sl_page_layout_init(&plan->packed[l], format, d, 0, evicts) : SL_OK;
        }
        SL_FAIL_IF(status != SL_OK, err, status,
                   "recipe: format=%s cannot hold head_dim %d (a multiple of 8%s is needed)", sl_kv_format_name(format),
                   d, quantized ? ", and of 32 when above 64," : "");
        if (!quantized || sl_plan_is_offloaded(plan, l)) {
            plan->packed[l] = plan->work[l];
        }
    }
    return SL_OK;
}

// --- budgets -----------------------------------------------------------------------------------------------------

/*
 * Returns the smallest budget such that it and every larger one leave a slot to choose beside what scope protects; at
 * most `most`. Above `enough` this always holds: all ratios together protect no more than their share of the budget.
 */
static int64_t least_budget(const struct sl_recipe *recipe, int64_t most) {
    double ratio = (recipe->recent.slots > 0 ? 0 : recipe->recent.ratio) + recipe->std;
    double enough = (double)(recipe->sinks + larger(recipe->recent.slots, recipe->stabilizers) + 1) / (1 - ratio);
    if (enough >= (double)most) {
        enough = (double)most;
    }
    int64_t least = (int64_t)enough;
    while (least > 1 && least - 1 > sl_recipe_protected_slots(recipe, least - 1)) {
        least--;
    }
    while (least < most && least <= sl_recipe_protected_slots(recipe, least)) {
        least++;
    }
    return least;
}

/*
 * Sets the mean budget, and the sum over layers. With when=step eviction continues at decode, so a budget above the
 * prompt is meaningful: a number of slots, and the minimum that a ratio needs to leave a choice. Without steps no
 * head can hold more than the prompt without its tail.
 */
static void set_budget(struct sl_plan *plan, int64_t *most_out) {
    const struct sl_recipe *recipe = &plan->recipe;
    int64_t body = sl_plan_body_tokens(plan), n_layers = sl_plan_n_evicting(plan), most = body;
    bool steps = recipe->when & SL_WHEN_STEP;
    if (recipe->budget.slots > 0) {
        most = steps ? larger(body, recipe->budget.slots) : body;
        plan->budget_slots = smaller(recipe->budget.slots, most);
        plan->least_slots = least_budget(recipe, plan->budget_slots);
        plan->total_budget = plan->budget_slots * n_layers;
    } else {
        plan->least_slots = least_budget(recipe, steps ? SL_RECIPE_MAX_SLOTS : body);
        most = larger(body, plan->least_slots);
        double all = recipe->budget.ratio * (double)plan->n_prompt;
        plan->budget_slots = smaller(larger((int64_t)all, plan->least_slots), most);
        bool shared = sl_recipe_uneven_layers(recipe); // remainders of rounding go to some layers
        plan->total_budget = shared ? (int64_t)(all * (double)n_layers) : plan->budget_slots * n_layers;
        plan->total_budget = larger(plan->total_budget, plan->least_slots * n_layers);
        plan->total_budget = smaller(plan->total_budget, most * n_layers);
    }
    plan->recent_slots = smaller(sl_recipe_recent_slots(recipe, plan->budget_slots), plan->budget_slots);
    bool open = most > body || (steps && recipe->budget.slots > 0);
    *most_out = open ? plan->total_budget - plan->least_slots * (n_layers - 1) : body;
}

// Gives every offloaded layer the same budget; other layers keep everything.
static void set_thinned(struct sl_plan *plan) {
    plan->least_slots = plan->recipe.sinks + plan->recipe.recent.slots + 1;
    plan->budget_slots = sl_plan_offloaded_slots(plan, plan->n_prompt);
    plan->recent_slots = sl_plan_undecided_slots(plan, plan->n_prompt);
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        if (sl_recipe_layer_thins(&plan->recipe, l)) {
            plan->layer_budget[l] = plan->budget_slots;
            plan->total_budget += plan->budget_slots;
        }
    }
}

static void set_budgets(struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    int n_layers = plan->geometry.n_layers, n = sl_plan_n_evicting(plan);
    plan->budget_slots = plan->n_prompt;
    for (int l = 0; l < n_layers; l++) {
        plan->layer_budget[l] = plan->n_prompt;
    }
    if (sl_recipe_thins(recipe)) {
        set_thinned(plan);
        return;
    }
    if (!sl_recipe_evicts(recipe)) {
        return;
    }
    int64_t most, shares[SL_MAX_LAYERS];
    if (recipe->tail >= plan->n_prompt) { // the prompt is no longer than the tail: all of it stays
        int64_t asked = recipe->budget.slots > 0 ? recipe->budget.slots : least_budget(recipe, SL_RECIPE_MAX_SLOTS);
        plan->budget_slots = (recipe->when & SL_WHEN_STEP) ? larger(plan->n_prompt, asked) : plan->n_prompt;
        plan->least_slots = plan->budget_slots;
        plan->total_budget = plan->budget_slots * n;
        plan->recent_slots = smaller(sl_recipe_recent_slots(recipe, plan->budget_slots), plan->budget_slots);
        for (int l = 0; l < n_layers; l++) {
            plan->layer_budget[l] = sl_recipe_layer_evicts(recipe, l) ? plan->budget_slots : plan->n_prompt;
        }
        return;
    }
    plan->tail_slots = recipe->tail;
    set_budget(plan, &most);
    for (int l = 0; l < n; l++) {
        shares[l] = plan->budget_slots;
    }
    if (recipe->layers == SL_LAYERS_PYRAMID) {
        sl_budget_pyramid(plan->total_budget, n, plan->least_slots, most, shares);
    } else if (sl_recipe_uneven_layers(recipe)) {
        int64_t others = sl_recipe_counts_globally(recipe) ? 0 : plan->least_slots * (n - 1);
        for (int l = 0; l < n; l++) {
            shares[l] = smaller(most, plan->total_budget - others);
        }
    }
    for (int l = 0, i = 0; l < n_layers; l++) {
        if (sl_recipe_layer_evicts(recipe, l)) {
            plan->layer_budget[l] = shares[i++];
        }
    }
}

// --- the plan ----------------------------------------------------------------------------------------------------

static enum sl_status make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                           int rope_set, bool keeps_offloaded, struct sl_plan *plan, struct sl_error *err) {
    SL_FAIL_IF(!sl_recipe_is_resolved(recipe), err, SL_ERR_PRECONDITION,
               "plan: the recipe names dense, sparse or last layers: sl_recipe_resolve() must say which they are");
    const struct sl_recipe known = *recipe; // the caller's may be a part of *plan
    const struct sl_kv_geometry shape = *geometry;
    memset(plan, 0, sizeof *plan);
    plan->recipe = known;
    plan->geometry = shape;
    plan->keeps_offloaded = keeps_offloaded;
    plan->n_prompt = n_prompt;
    plan->rope_set = rope_set;
    SL_TRY(check_model(&known, &shape, n_prompt, err));
    SL_TRY(make_layouts(plan, err));
    set_budgets(plan);
    for (int l = 0; l < shape.n_layers; l++) {
        plan->max_slots = larger(plan->max_slots, sl_plan_at_work_slots(plan, l));
    }
    plan->capsule_bytes = sl_plan_capsule_bytes(plan);
    plan->prefill_peak_bytes = sl_plan_prefill_peak_bytes(plan);
    return SL_OK;
}

enum sl_status sl_plan_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                            int rope_set, struct sl_plan *plan_out, struct sl_error *err) {
    return make(recipe, geometry, n_prompt, rope_set, false, plan_out, err);
}

enum sl_status sl_plan_make_local(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                  int64_t n_prompt, int rope_set, struct sl_plan *plan_out, struct sl_error *err) {
    return make(recipe, geometry, n_prompt, rope_set, true, plan_out, err);
}

enum sl_status sl_plan_create_session(const struct sl_plan *plan, int64_t extra_slots, struct sl_arena *arena,
                                      struct sl_session **session_out, struct sl_error *err) {
    struct sl_session_config config = {
        .geometry = plan->geometry,
        .positions = plan->recipe.positions,
        .max_slots = plan->max_slots + extra_slots,
        .work = plan->work,
        .packed = plan->packed,
    };
    SL_TRY(sl_session_create(&config, arena, session_out, err));
    (*session_out)->rope_set = plan->rope_set;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        (*session_out)->layers[l].offloaded = sl_plan_is_offloaded(plan, l);
    }
    return SL_OK;
}
