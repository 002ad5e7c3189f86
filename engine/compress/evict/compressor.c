// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: applies a recipe to one layer of a session.
 *
 *     accumulate   every chunk   adds the chunk's attention to the score state of the slots that it attended to; with
 *                                the attention itself, where the device can
 *     evict        when=chunk    after every chunk of the prompt's body
 *                  when=end      after the body's last chunk; layers=d2o, heads=global: when all layers have read the
 *                                prompt; score=reconstruct: when it has been read a second time
 *     thin         every chunk   evicts from offloaded layers with a budget (thin.c)
 *     pack         last chunk    quantizes full pages; the last, partial page stays as it is
 *
 * The body is the prompt without its tail (scope=tail). Chunks of the tail are appended and never evicted from.
 *
 * Invariants: attention of a chunk is computed before anything of its layer is evicted; a layer is packed only after
 *             its last eviction. Only ops touch pages.
 */
#include "engine/compress/evict/compressor.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/compress/evict/internal.h"
#include "engine/compress/plan/budget.h"

// --- life cycle -----------------------------------------------------------------------------------------------------

// Rejects plans that cannot be executed.
static enum sl_status check_recipe(const struct sl_compressor *c, struct sl_error *err) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    if (!sl_recipe_evicts(recipe)) {
        return SL_OK;
    }
    SL_FAIL_IF(c->method->read == NULL, err, SL_ERR_INVALID, "compressor: score=%s cannot choose what to evict",
               c->score->name);
    SL_FAIL_IF(recipe->std > 0 && !c->score->sums_squares, err, SL_ERR_INVALID,
               "compressor: scope=std needs score=mas, which keeps squares of attention");
    SL_FAIL_IF(sl_recipe_splits_by_attention(recipe) && !c->score->sums_attention, err, SL_ERR_INVALID,
               "compressor: layers=d2o measures accumulated attention; it needs score=aas or score=mas");
    SL_FAIL_IF(sl_evicts_at_end(c) && (sl_value_per_query_head(recipe) || sl_score_is_of_rows(c->score)), err,
               SL_ERR_INVALID,
               "compressor: the recipe evicts when no query is at hand, and its score or value looks at queries");
    return SL_OK;
}

enum sl_status sl_compressor_create(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_stream *stream,
                                    struct sl_compressor **compressor_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_compressor, c, err, "compressor: out of memory");
    c->plan = *plan;
    c->score = sl_score_get_traits(plan->recipe.score);
    c->method = sl_score_method(plan->recipe.score);
    c->folded_layer = -1;
    c->ops = ops;
    c->stream = stream;
    c->kv = calloc((size_t)plan->geometry.n_kv_heads, sizeof *c->kv);
    c->new_pages = calloc((size_t)plan->geometry.n_kv_heads * SL_PACK_PAGES, sizeof *c->new_pages);
    enum sl_status status = c->kv != NULL && c->new_pages != NULL
                                ? check_recipe(c, err)
                                : sl_fail(err, SL_ERR_EXHAUSTED, "compressor: out of memory");
    if (status == SL_OK && sl_recipe_evicts(&plan->recipe)) {
        status = sl_recipe_thins(&plan->recipe) ? sl_thin_create(c, err)
                                                : sl_scratch_create(c, (size_t)plan->max_slots, err);
    }
    SL_TRY_OR(status, sl_compressor_destroy(&c));
    *compressor_out = c;
    return SL_OK;
}

void sl_compressor_destroy(struct sl_compressor **compressor) {
    struct sl_compressor *c = *compressor;
    if (c == NULL) {
        return;
    }
    (void)sl_stream_wait(c->stream,
                         NULL); // queued work may use what is freed; a failed device reports its failure again
    sl_scratch_destroy(&c->scratch);
    sl_thin_destroy(c);
    sl_estimator_destroy(c);
    free(c->step_budget);
    free(c->kv);
    free(c->new_pages);
    free(c);
    *compressor = NULL;
}

void sl_compressor_get_stats(const struct sl_compressor *compressor, struct sl_compress_stats *stats_out) {
    *stats_out = compressor->stats;
}

// --- the layer ------------------------------------------------------------------------------------------------------

static enum sl_status check_unpacked(const struct sl_session *session, int layer, struct sl_error *err) {
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        SL_FAIL_IF(session->layers[layer].heads[h].n_packed > 0, err, SL_ERR_PRECONDITION,
                   "compressor: layer %d is quantized already; nothing can be evicted from it, so this session "
                   "cannot read more under an evicting recipe",
                   layer);
    }
    return SL_OK;
}

// Returns whether the layers that evict do so after the chunk of tokens [begin, end).
static bool evicts_after(const struct sl_compressor *c, int64_t begin, int64_t end, bool last) {
    int64_t body = sl_plan_body_tokens(&c->plan);
    unsigned when = end == body || last ? SL_WHEN_CHUNK | SL_WHEN_END : SL_WHEN_CHUNK;
    bool in_tail = begin >= body && body < c->plan.n_prompt;
    return !in_tail && !sl_evicts_at_end(c) && (c->plan.recipe.when & when) != 0;
}

bool sl_compressor_reads_attention(const struct sl_compressor *c, int layer, int64_t begin, int64_t end, bool last) {
    return sl_layer_evicts(c, layer) && sl_compressor_wants(c, false).lse &&
           (c->method->fold != NULL || evicts_after(c, begin, end, last));
}

// Accumulates the attention of one chunk, then evicts.
static enum sl_status evict_behind_chunk(struct sl_compressor *c, struct sl_session *session, int layer,
                                         const struct sl_attend *attend, bool last, struct sl_error *err) {
    int64_t begin = session->n_tokens, end = begin + attend->m, body = sl_plan_body_tokens(&c->plan);
    bool folded = c->folded_layer == layer;
    c->folded_layer = -1; // also where this call fails
    SL_FAIL_IF(begin < body && end > body && body < c->plan.n_prompt, err, SL_ERR_PRECONDITION,
               "compressor: a chunk of tokens %" PRId64 " to %" PRId64
               " runs into the prompt's tail, which begins at token %" PRId64,
               begin, end - 1, body);
    SL_TRY(check_unpacked(session, layer, err));
    // Accumulates in the tail, too: steps, sl_compressor_end() or the next turn of a conversation evict from it.
    if (!folded && (c->repeating || !sl_score_repeats(c->score))) {
        sl_score_accumulate(c->method, c->ops, c->stream, attend);
    }
    if (!evicts_after(c, begin, end, last)) {
        return SL_OK;
    }
    struct sl_eviction eviction = {
        .session = session,
        .layer = layer,
        .attend = attend,
        .n_tokens = end,
        .budget = c->plan.layer_budget[layer],
        .stabilizers = end == body || last ? 0 : c->plan.recipe.stabilizers,
    };
    return sl_evict_layer(c, &eviction, err);
}

void sl_compressor_repeat(struct sl_compressor *c) {
    assert(sl_recipe_repeats(&c->plan.recipe));
    c->repeating = true;
}

bool sl_compressor_attend(struct sl_compressor *c, int layer, const struct sl_attend *attend) {
    if (!sl_layer_evicts(c, layer) || c->method->fold == NULL || c->ops->attend_fold == NULL ||
        (sl_score_repeats(c->score) && !c->repeating)) {
        return false;
    }
    c->ops->attend_fold(c->stream, attend, c->method->fold);
    c->folded_layer = layer;
    return true;
}

enum sl_status sl_compressor_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                                   const struct sl_attend *attend, bool last, bool *final_out, struct sl_error *err) {
    assert(layer >= 0 && layer < c->plan.geometry.n_layers);
    assert(session->geometry.n_kv_heads == c->plan.geometry.n_kv_heads);
    assert(!sl_compressor_wants(c, false).lse || attend->lse != NULL);
    assert(!sl_compressor_wants(c, false).importance || attend->importance != NULL);
    int64_t begin_ns = sl_now_ns();
    bool evicts = sl_layer_evicts(c, layer);
    *final_out = last && !(evicts && sl_evicts_at_end(c)) && !sl_recipe_repeats(&c->plan.recipe);
    enum sl_status status = evicts ? evict_behind_chunk(c, session, layer, attend, last, err) : SL_OK;
    if (sl_recipe_layer_thins(&c->plan.recipe, layer)) {
        status = sl_thin_layer(c, session, layer, attend, err);
    }
    if (status == SL_OK && *final_out) {
        status = sl_pack_layer(c, session, layer, err);
    }
    c->stats.ns += sl_now_ns() - begin_ns;
    return status;
}

enum sl_status sl_compressor_finish_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                                          struct sl_error *err) {
    assert(layer >= 0 && layer < c->plan.geometry.n_layers);
    assert(session->geometry.n_kv_heads == c->plan.geometry.n_kv_heads);
    int64_t begin_ns = sl_now_ns();
    enum sl_status status = sl_pack_layer(c, session, layer, err);
    c->stats.ns += sl_now_ns() - begin_ns;
    return status;
}

// --- the end of the prompt -----------------------------------------------------------------------------------------

// Measures the variance of the accumulated attention of the layers that evict, and counts them. Queues every layer
// before the host waits.
static enum sl_status measure_variances(struct sl_compressor *c, const struct sl_session *session, double *variances,
                                        int *n_out, struct sl_error *err) {
    *n_out = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        if (sl_layer_evicts(c, l)) {
            struct sl_kv_heads heads;
            SL_TRY(sl_layer_heads(c, session, l, &heads, err));
            SL_TRY(sl_check_foreseen(c, l, &heads, err));
            c->ops->variance(c->stream, &heads, 0, variances + (*n_out)++ * heads.n);
        }
    }
    return sl_stream_wait(c->stream, err);
}

// Divides the budget over the layers that evict, by these variances; other layers keep 0 here.
static enum sl_status divide_budgets(struct sl_compressor *c, const struct sl_session *session, int64_t *budgets,
                                     struct sl_error *err) {
    int n_layers = session->geometry.n_layers, n_heads = session->geometry.n_kv_heads, n = 0, first = 0;
    size_t n_variances = (size_t)n_layers * (size_t)n_heads;
    struct sl_device *device = c->stream->device;
    double *variances = sl_device_alloc(device, SL_MEMORY_SHARED, (n_variances + (size_t)n_layers) * sizeof *variances);
    SL_FAIL_IF(variances == NULL, err, SL_ERR_EXHAUSTED, "compressor: no memory for the budgets of %d layers",
               n_layers);
    enum sl_status status = measure_variances(c, session, variances, &n, err);
    if (status == SL_OK && n > 0) {
        double *weights = variances + n_variances;
        sl_budget_d2o_weights(c->plan.recipe.layers, variances, n, n_heads, weights);
        while (!sl_layer_evicts(c, first)) {
            first++;
        }
        // layer_budget is the most that a layer can get; it is the same for all layers that evict.
        sl_budget_divide(c->plan.total_budget, weights, n, c->plan.least_slots, c->plan.layer_budget[first], budgets);
        for (int l = n_layers - 1; l >= 0; l--) { // from the last one, whose share is never before it
            budgets[l] = sl_layer_evicts(c, l) ? budgets[--n] : 0;
        }
    } else if (status != SL_OK) {
        (void)sl_stream_wait(c->stream, NULL); // queued work writes to them
    }
    sl_device_free(device, SL_MEMORY_SHARED, variances);
    return status;
}

static enum sl_status end_prompt(struct sl_compressor *c, struct sl_session *session, struct sl_error *err) {
    int64_t divided[SL_MAX_LAYERS];
    const struct sl_recipe *recipe = &c->plan.recipe;
    bool by_variance = sl_recipe_splits_by_attention(recipe);
    size_t n_heads = (size_t)session->geometry.n_kv_heads;
    uint32_t *counts = NULL;
    enum sl_status status = by_variance ? divide_budgets(c, session, divided, err) : SL_OK;
    if (sl_recipe_counts_globally(recipe)) {
        counts = calloc((size_t)session->geometry.n_layers * n_heads, sizeof *counts);
        status = counts != NULL ? sl_count_globally(c, session, counts, err)
                                : sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory for the counts of all heads");
    }
    for (int l = 0; status == SL_OK && l < session->geometry.n_layers; l++) {
        struct sl_eviction eviction = {
            .session = session,
            .layer = l,
            .n_tokens = session->n_tokens,
            // heads=global: as when the scores were compared, so that the same slots are protected
            .budget = by_variance      ? divided[l]
                      : counts != NULL ? c->plan.budget_slots
                                       : c->plan.layer_budget[l],
            .head_counts = counts != NULL ? counts + (size_t)l * n_heads : NULL,
            .tail = c->plan.tail_slots,
        };
        if (sl_layer_evicts(c, l)) { // others are final since sl_compressor_layer(), unless the prompt was repeated
            status = sl_evict_layer(c, &eviction, err);
        }
        SL_THEN(status, sl_pack_layer(c, session, l, err));
    }
    free(counts);
    return status;
}

enum sl_status sl_compressor_end(struct sl_compressor *c, struct sl_session *session, struct sl_error *err) {
    if (!sl_evicts_at_end(c)) {
        return SL_OK;
    }
    int64_t begin_ns = sl_now_ns();
    enum sl_status status = end_prompt(c, session, err);
    c->stats.ns += sl_now_ns() - begin_ns;
    return status;
}
