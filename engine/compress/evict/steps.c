// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decode under a recipe that evicts after every step (when=step).
 *
 * Design: during steps a head holds its step budget: the plan's budget for its layer plus the tail. If attention has
 *         decided (layers=d2o, heads=adaptive), it is the number of slots when the first step began. The newest slots
 *         are those that steps appended, so scope=recent moves with them; stabilizers and tail belong to the prompt.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/compress/evict/internal.h"

static bool evicts_at_steps(const struct sl_compressor *c) {
    return sl_recipe_evicts(&c->plan.recipe) && (c->plan.recipe.when & SL_WHEN_STEP) != 0;
}

struct sl_compressor_wants sl_compressor_wants(const struct sl_compressor *c, bool stepping) {
    bool evicts = stepping ? evicts_at_steps(c) : sl_recipe_evicts(&c->plan.recipe);
    return (struct sl_compressor_wants){
        .lse = evicts && ((sl_score_is_attention(c->score) && (c->repeating || !sl_score_repeats(c->score))) ||
                          sl_value_per_query_head(&c->plan.recipe) || c->estimator.layers != NULL),
        .importance = evicts && c->score->wants_importance,
    };
}

bool sl_compressor_steps(const struct sl_compressor *c) {
    return evicts_at_steps(c);
}

// Returns the most slots that head h of a layer may hold between steps.
static int64_t step_budget(const struct sl_compressor *c, const struct sl_session *session, int64_t n_prompt, int layer,
                           int h) {
    const struct sl_plan *plan = &c->plan;
    if (!sl_evicts_at_end(c) && plan->recipe.heads != SL_HEADS_ADAPTIVE) {
        return plan->layer_budget[layer] + plan->tail_slots;
    }
    int64_t held = session->layers[layer].heads[h].n_slots, least = plan->least_slots;
    if (held == n_prompt && least < plan->budget_slots + plan->tail_slots) {
        least = plan->budget_slots + plan->tail_slots; // nothing was evicted: a short prompt has not filled its budget
    }
    return held > least ? held : least;
}

static enum sl_status begin_evicting(struct sl_compressor *c, struct sl_session *session, int64_t n_prompt,
                                     struct sl_error *err) {
    size_t n_heads = (size_t)session->geometry.n_kv_heads, n_layers = (size_t)session->geometry.n_layers;
    free(c->step_budget);
    c->step_budget = calloc(n_layers * n_heads, sizeof *c->step_budget);
    SL_FAIL_IF(c->step_budget == NULL, err, SL_ERR_EXHAUSTED,
               "compressor: no memory for the budgets of %zu layers of %zu heads", n_layers, n_heads);
    int64_t most = 0;
    for (size_t l = 0; l < n_layers; l++) {
        for (size_t h = 0; sl_layer_evicts(c, (int)l) && h < n_heads; h++) {
            int64_t budget = step_budget(c, session, n_prompt, (int)l, (int)h),
                    held = session->layers[l].heads[h].n_slots;
            c->step_budget[l * n_heads + h] = budget;
            most = budget > most ? budget : most;
            most = held > most ? held : most;
        }
    }
    most = most < session->max_slots ? most : session->max_slots; // budgets may exceed the most slots ever held
    size_t n_slots = (size_t)most + SL_PAGE_SLOTS; // plus the rows of a step; sl_compressor_step() grows it
    return n_slots > c->scratch.n_slots ? sl_scratch_create(c, n_slots, err) : SL_OK;
}

enum sl_status sl_compressor_begin_steps(struct sl_compressor *c, struct sl_session *session, int64_t n_prompt,
                                         struct sl_error *err) {
    assert(session->geometry.n_kv_heads == c->plan.geometry.n_kv_heads);
    assert(session->geometry.n_layers == c->plan.geometry.n_layers);
    return evicts_at_steps(c) ? begin_evicting(c, session, n_prompt, err) : SL_OK;
}

static enum sl_status step_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                                 const struct sl_attend *attend, struct sl_error *err) {
    size_t n_heads = (size_t)session->geometry.n_kv_heads, n_slots = 0;
    for (size_t h = 0; h < n_heads; h++) {
        const struct sl_head *head = &session->layers[layer].heads[h];
        n_slots = head->n_slots > n_slots ? head->n_slots : n_slots;
    }
    if (n_slots > c->scratch.n_slots) {
        SL_TRY(sl_scratch_create(c, n_slots + SL_PAGE_SLOTS, err));
    }
    sl_score_accumulate(c->method, c->ops, c->stream, attend);
    struct sl_eviction eviction = {
        .session = session,
        .layer = layer,
        .attend = attend,
        .n_tokens = session->n_tokens + attend->m,
        .head_budgets = c->step_budget + (size_t)layer * n_heads,
    };
    return sl_evict_layer(c, &eviction, err);
}

enum sl_status sl_compressor_step(struct sl_compressor *c, struct sl_session *session, int layer,
                                  const struct sl_attend *attend, struct sl_error *err) {
    assert(layer >= 0 && layer < c->plan.geometry.n_layers);
    if (!evicts_at_steps(c) || !sl_layer_evicts(c, layer)) {
        return SL_OK;
    }
    assert(!sl_compressor_wants(c, true).lse || attend->lse != NULL);
    assert(!sl_compressor_wants(c, true).importance || attend->importance != NULL);
    SL_FAIL_IF(c->step_budget == NULL, err, SL_ERR_PRECONDITION,
               "compressor: a step before sl_compressor_begin_steps()");
    int64_t begin_ns = sl_now_ns();
    enum sl_status status = step_layer(c, session, layer, attend, err);
    c->stats.ns += sl_now_ns() - begin_ns;
    return status;
}
