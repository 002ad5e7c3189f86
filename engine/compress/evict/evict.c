// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: evicts once from one layer.
 *
 *     rank      scores; value=...: the change of the attention output instead; heads=layer: the mean over heads
 *     protect   +inf for what scope protects. Runs after ranking, so that +inf never enters a normalization, and in
 *               scratch, so that it ends with the eviction
 *     count     how many slots each head keeps
 *     select    the best of each head
 *     then      estimates the lost attention, merges evicted slots, compacts pages
 *
 * Design: this file decides; every change to slots is an operation on all heads of the layer.
 */
#include <assert.h>
#include <inttypes.h>

#include "engine/compress/evict/internal.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t head_budget(const struct sl_eviction *e, int head) {
    return e->head_budgets != NULL ? e->head_budgets[head] : e->budget;
}

// Returns whether attention decides how many slots a head keeps.
static bool is_adaptive(const struct sl_compressor *c, const struct sl_eviction *e) {
    return c->plan.recipe.heads == SL_HEADS_ADAPTIVE && e->head_budgets == NULL;
}

// --- rank ------------------------------------------------------------------------------------------------------------

// Returns how many rows at hand the score looks at. A score without rows uses them only for value=...-heads: all of
// them.
static int n_rows(const struct sl_compressor *c, const struct sl_attend *attend) {
    switch (c->score->rows) {
    case SL_ROWS_LAST:
        return 1;
    case SL_ROWS_WINDOW:
        return c->plan.recipe.window < attend->m ? c->plan.recipe.window : attend->m;
    default:
        return attend->m;
    }
}

// Computes the attention of the query heads over the rows at hand.
static enum sl_status weigh(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads,
                            struct sl_score_input *in, struct sl_error *err) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    assert(e->attend != NULL); // sl_compressor_create() rejects recipes that would come here without it
    SL_TRY(sl_take_sums(c, e->attend, e->attend->m - n_rows(c, e->attend), err));
    in->group = e->attend->n_heads / heads->n;
    in->weights = c->scratch.sums;
    if (sl_score_pools(recipe)) {
        // As in SnapKV's code, the window's own slots are not pooled and do not enter any pool: scope=recent holds
        // them.
        in->weights = c->scratch.pooled;
        const struct sl_pooling pooling = {recipe->pool == SL_POOL_MAX, recipe->pool_kernel, recipe->window};
        c->ops->pool(c->stream, heads, in->group, c->scratch.sums, pooling, c->scratch.pooled);
    }
    return SL_OK;
}

static enum sl_status rank(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads,
                           struct sl_error *err) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    struct sl_scratch *s = &c->scratch;
    bool by_change = recipe->value != SL_VALUE_OFF, by_query_head = sl_value_per_query_head(recipe);
    struct sl_score_input in = {.ops = c->ops,
                                .stream = c->stream,
                                .recipe = recipe,
                                .heads = heads,
                                .layer = e->layer,
                                .n_tokens = e->n_tokens,
                                .keys = s->keys,
                                .shared = s->shared_scores};
    SL_TRY(sl_score_is_of_rows(c->score) || by_query_head ? weigh(c, e, heads, &in, err) : SL_OK);
    c->method->read(&in, by_change ? s->base : s->scores);
    if (by_change) {
        bool mean = recipe->value == SL_VALUE_FASTCAOTE || recipe->value == SL_VALUE_FASTCAOTE_HEADS;
        c->ops->value_change(c->stream, heads, by_query_head ? in.group : 1, by_query_head ? in.weights : s->base, mean,
                             s->scores);
    }
    if (recipe->std > 0) {
        sl_score_deviation(&in, s->deviations);
    }
    struct sl_vectors shared[] = {s->scores, s->base, s->deviations}; // heads=layer: all heads choose the same slots
    for (size_t i = 0; recipe->heads == SL_HEADS_LAYER && i < sizeof shared / sizeof shared[0]; i++) {
        if (shared[i].at != NULL) {
            c->ops->share(c->stream, heads, shared[i]);
        }
    }
    return SL_OK;
}

// --- protect ---------------------------------------------------------------------------------------------------------

// Protects large deviations as RoCo does: of n slots, only the k = max(n - r - sinks, n - budget) with the smallest
// deviation may be evicted, where r = std * budget. Sinks and recent count as the largest deviations.
static void spare_deviants(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    struct sl_scratch *s = &c->scratch;
    struct sl_counts spared = {.host = s->n_spared};
    for (int h = 0; h < heads->n; h++) {
        int64_t budget = head_budget(e, h), r = sl_recipe_std_slots(recipe, budget);
        s->n_spared[h] = (uint32_t)least(least(r + recipe->sinks, budget) + e->tail, heads->kv[h].n_slots);
        s->protections[h] = (struct sl_protection){recipe->sinks, sl_recipe_recent_slots(recipe, budget) + e->tail};
    }
    c->ops->protect(c->stream, heads, s->protections, s->deviations);
    c->ops->select(c->stream, heads, s->deviations, (struct sl_vectors){0}, false, spared, s->keep);
    c->ops->spare(c->stream, heads, s->keep, spared, s->scores);
}

static void protect(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    struct sl_scratch *s = &c->scratch;
    if (recipe->std > 0) {
        spare_deviants(c, e, heads);
    }
    for (int h = 0; h < heads->n; h++) {
        int64_t budget = head_budget(e, h), sinks = least(recipe->sinks, budget);
        int64_t recent = sl_recipe_recent_slots(recipe, budget);
        int64_t newest = recent > e->stabilizers ? recent : e->stabilizers;
        // Never protects more slots than stay; otherwise the newest protected slots would be evicted.
        s->protections[h] = (struct sl_protection){sinks, least(newest, budget - sinks) + e->tail};
    }
    c->ops->protect(c->stream, heads, s->protections, s->scores);
}

// --- count -----------------------------------------------------------------------------------------------------------

static struct sl_counts count(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads) {
    struct sl_scratch *s = &c->scratch;
    if (is_adaptive(c, e)) {
        struct sl_counts decided = {.device = s->decided};
        c->ops->budgets(c->stream, heads, s->scores, (uint32_t)(e->budget + e->tail), s->work, decided);
        return decided;
    }
    for (int h = 0; h < heads->n; h++) {
        int64_t stay = e->head_counts != NULL ? e->head_counts[h] : head_budget(e, h) + e->tail;
        s->kept[h] = (uint32_t)least(heads->kv[h].n_slots, stay);
    }
    return (struct sl_counts){.host = s->kept};
}

// --- the eviction ----------------------------------------------------------------------------------------------------

enum sl_status sl_check_foreseen(const struct sl_compressor *c, int layer, const struct sl_kv_heads *heads,
                                 struct sl_error *err) {
    for (int h = 0; h < heads->n; h++) {
        SL_FAIL_IF(heads->kv[h].n_slots > c->scratch.n_slots, err, SL_ERR_PRECONDITION,
                   "compressor: layer %d head %d holds %" PRIu32 " slots, the plan foresees at most %zu", layer, h,
                   heads->kv[h].n_slots, c->scratch.n_slots);
    }
    return SL_OK;
}

// Writes to *over_out whether a head is above its budget; rejects heads that cannot be evicted from.
static enum sl_status check_heads(const struct sl_compressor *c, const struct sl_eviction *e,
                                  const struct sl_kv_heads *heads, bool *over_out, struct sl_error *err) {
    bool adaptive = is_adaptive(c, e), over = false;
    int64_t room = 0;
    SL_TRY(sl_check_foreseen(c, e->layer, heads, err));
    for (int h = 0; h < heads->n; h++) {
        uint32_t n = heads->kv[h].n_slots;
        SL_FAIL_IF(c->plan.recipe.heads == SL_HEADS_LAYER && n != heads->kv[0].n_slots, err, SL_ERR_PRECONDITION,
                   "compressor: heads=layer, but heads 0 and %d of layer %d hold %" PRIu32 " and %" PRIu32
                   " slots: this session was made under another recipe",
                   h, e->layer, heads->kv[0].n_slots, n);
        int64_t budget = e->head_counts != NULL ? e->head_counts[h] : head_budget(e, h) + e->tail;
        over = over || (!adaptive && n > budget);
        room += budget - n;
    }
    over = over || (adaptive && room < 0);
    for (int h = 0; over && h < heads->n; h++) {
        SL_FAIL_IF(heads->kv[h].n_packed > 0, err, SL_ERR_PRECONDITION,
                   "compressor: layer %d is quantized already; nothing can be evicted from it", e->layer);
    }
    *over_out = over;
    return SL_OK;
}

// Updates the session's slot counts after pages have been compacted. If attention has decided the counts, the host
// waits for them: it frees pages by them, and plans count on that memory before the next layer.
static enum sl_status settle(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads,
                             struct sl_counts kept, struct sl_error *err) {
    const uint32_t *stays = kept.host;
    if (stays == NULL) {
        sl_stream_copy(c->stream, c->scratch.decided_here, kept.device, (size_t)heads->n * sizeof *kept.device);
        SL_TRY(sl_stream_wait(c->stream, err));
        stays = c->scratch.decided_here;
    }
    for (int h = 0; h < heads->n; h++) {
        uint32_t n = heads->kv[h].n_slots, stay = stays[h];
        if (stay < n) {
            sl_session_set_slots(e->session, e->layer, h, stay);
            c->stats.slots_evicted += n - stay;
        }
    }
    return SL_OK;
}

enum sl_status sl_rank_layer(struct sl_compressor *c, const struct sl_eviction *e, struct sl_kv_heads *heads_out,
                             struct sl_error *err) {
    bool over = false;
    SL_TRY(sl_layer_heads(c, e->session, e->layer, heads_out, err));
    SL_TRY(check_heads(c, e, heads_out, &over, err));
    SL_TRY(rank(c, e, heads_out, err));
    protect(c, e, heads_out);
    return SL_OK;
}

enum sl_status sl_evict_layer(struct sl_compressor *c, const struct sl_eviction *e, struct sl_error *err) {
    struct sl_scratch *s = &c->scratch;
    struct sl_kv_heads heads;
    bool over = false;
    enum sl_status status = sl_layer_heads(c, e->session, e->layer, &heads, err);
    SL_THEN(status, check_heads(c, e, &heads, &over, err));
    if (status == SL_OK && over) {
        status = rank(c, e, &heads, err);
    }
    if (status != SL_OK || !over) {
        return status;
    }
    protect(c, e, &heads);
    struct sl_counts kept = count(c, e, &heads);
    c->ops->select(c->stream, &heads, s->scores, s->base, c->score->newest_of_ties, kept, s->keep);
    SL_TRY(sl_estimate_eviction(c, e, &heads, kept, err));
    if (c->plan.recipe.evicted == SL_EVICTED_MERGE) {
        SL_TRY(sl_merge_evicted(c, e, &heads, kept, err));
    }
    c->ops->gather(c->stream, &heads, s->keep, kept);
    return settle(c, e, &heads, kept, err);
}
