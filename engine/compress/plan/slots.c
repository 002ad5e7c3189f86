// SPDX-License-Identifier: Apache-2.0
// Purpose: how many slots a head of a layer holds: between two chunks, during a chunk, at decode.
#include <math.h>

#include "engine/compress/plan/internal.h"
#include "engine/tensor/ops.h"

// Returns how many layers evict.
int sl_plan_n_evicting(const struct sl_plan *plan) {
    int n = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        n += sl_recipe_layer_evicts(&plan->recipe, l);
    }
    return n;
}

int64_t sl_plan_body_tokens(const struct sl_plan *plan) {
    return plan->n_prompt - plan->tail_slots;
}

// Returns the most prompt slots, without the tail, that one head of a layer keeps. heads=adaptive: all slots that the
// layer's other heads need not keep.
static int64_t kept_slots(const struct sl_plan *plan, int layer) {
    int64_t body = sl_plan_body_tokens(plan), budget = plan->layer_budget[layer];
    if (!sl_recipe_layer_evicts(&plan->recipe, layer)) {
        return budget; // budget of a thinned layer; otherwise the whole prompt
    }
    if (plan->recipe.heads == SL_HEADS_ADAPTIVE) {
        // Each of the other heads keeps at least a fifth of the budget (ops->budgets), which may include the tail.
        int64_t others = plan->geometry.n_kv_heads - 1;
        budget += others * (budget - larger((budget + plan->tail_slots) / 5 - plan->tail_slots, 0));
    } else if (sl_recipe_counts_globally(&plan->recipe)) {
        budget *= plan->geometry.n_kv_heads;
        budget = plan->recipe.heads == SL_HEADS_PAGES ? (int64_t)sl_pages_for(budget) * SL_PAGE_SLOTS : budget;
    }
    return smaller(budget, body);
}

static int64_t tail_of(const struct sl_plan *plan, int layer) {
    return sl_recipe_layer_evicts(&plan->recipe, layer) ? plan->tail_slots : 0;
}

int64_t sl_plan_offloaded_slots(const struct sl_plan *plan, int64_t n_tokens) {
    const struct sl_recipe *recipe = &plan->recipe;
    if (!sl_recipe_thins(recipe)) {
        return n_tokens;
    }
    // As everywhere, a budget includes what scope protects; a ratio below that is raised to one slot above it.
    int64_t share = (int64_t)ceil(recipe->budget.ratio * (double)n_tokens);
    return smaller(n_tokens, larger(share, recipe->sinks + recipe->recent.slots + 1));
}

int64_t sl_plan_undecided_slots(const struct sl_plan *plan, int64_t n_tokens) {
    return sl_recipe_thins(&plan->recipe) ? smaller(n_tokens, plan->recipe.recent.slots) : 0;
}

int64_t sl_plan_held_slots(const struct sl_plan *plan) {
    int64_t undecided = sl_plan_undecided_slots(plan, plan->n_prompt), chunk = plan->recipe.chunk_tokens;
    return sl_recipe_offloads(&plan->recipe)
               ? smaller(plan->n_prompt,
                         SL_ATTEND_SPLIT + SL_KV_SEGMENTS_QUEUED * SL_KV_SEGMENT_TOKENS + chunk + undecided)
               : 0;
}

int64_t sl_plan_resident_slots(const struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    return sl_recipe_offloads(recipe) ? smaller(plan->n_prompt, recipe->sinks + recipe->recent.slots) : 0;
}

int64_t sl_plan_row_places(const struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    return sl_recipe_offloads(recipe)
               ? smaller(sl_plan_offloaded_slots(plan, plan->n_prompt), recipe->topk + recipe->keep)
               : 0;
}

int64_t sl_plan_layer_slots(const struct sl_plan *plan, int layer, int64_t n_new) {
    if (sl_plan_is_offloaded(plan, layer)) {
        return sl_plan_resident_slots(plan) + n_new;
    }
    int64_t slots = kept_slots(plan, layer) + tail_of(plan, layer) + n_new;
    if (sl_recipe_layer_evicts(&plan->recipe, layer) && (plan->recipe.when & SL_WHEN_STEP)) {
        // The layer attends to the token that is being read before it evicts anything.
        slots = smaller(slots, plan->layer_budget[layer] + plan->tail_slots + (n_new > 0));
    }
    return slots;
}

bool sl_plan_evicts_within(const struct sl_plan *plan, int layer, int64_t n_tokens) {
    bool at_chunks = plan->recipe.when & SL_WHEN_CHUNK;
    return at_chunks && sl_recipe_layer_evicts(&plan->recipe, layer) && n_tokens > plan->layer_budget[layer];
}

bool sl_plan_can_truncate(const struct sl_plan *plan, int64_t n_tokens) {
    bool can = !sl_recipe_thins(&plan->recipe) &&
               (!sl_recipe_evicts(&plan->recipe) || sl_score_get_traits(plan->recipe.score)->n_states == 0);
    for (int l = 0; can && l < plan->geometry.n_layers; l++) {
        can = !sl_plan_evicts_within(plan, l, n_tokens);
    }
    return can;
}

int64_t sl_plan_between_slots(const struct sl_plan *plan, int layer) {
    if (sl_plan_is_offloaded(plan, layer)) {
        return sl_plan_held_slots(plan);
    }
    bool evicts = sl_recipe_layer_evicts(&plan->recipe, layer) || sl_recipe_layer_thins(&plan->recipe, layer);
    bool at_chunks = evicts && (plan->recipe.when & SL_WHEN_CHUNK);
    int64_t repeated = sl_recipe_repeats(&plan->recipe) ? plan->recipe.chunk_tokens : 0; // rows of the second reading
    return at_chunks ? sl_plan_layer_slots(plan, layer, 0) : plan->n_prompt + repeated;
}

int64_t sl_plan_at_work_slots(const struct sl_plan *plan, int layer) {
    int64_t between = sl_plan_between_slots(plan, layer);
    if (between >= plan->n_prompt || sl_plan_is_offloaded(plan, layer)) {
        return between;
    }
    int64_t body = smaller(sl_plan_body_tokens(plan), kept_slots(plan, layer) + plan->recipe.chunk_tokens);
    return larger(body, between); // the tail stays whole: a chunk of it adds nothing on top
}
