// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: estimates the error that compression causes (sl_compressor_estimate()).
 *
 *     eviction       sum over evicted slots j of the attention that the rows at hand give them, per row:
 *                    L = 1/(H m) sum_h sum_r sum_{j evicted} a[h][r][j]      H query heads, m rows of the chunk or step
 *     a layer        sum of m L / sum of m over its evictions
 *     quantization   sqrt(sum (x^ - x)^2 / sum x^2) over the pages that were quantized, of K and of V
 *
 * If no rows are at hand (layers=d2o and heads=global evict at the prompt's end), attention summed over all rows takes
 * their place, and m is the number of all tokens read. A slot that was merged into another counts as evicted.
 *
 * Design: estimation changes nothing. Between selection and merging it computes attention again from the saved lse,
 *         into scratch that ranking no longer needs.
 */
#include <math.h>
#include <string.h>

#include "engine/compress/evict/internal.h"

// Sums of one layer.
struct sl_estimate_sums {
    double lost; // in rows: 1 is all attention of one row
    int64_t n_rows;
    struct sl_page_error pages;
};

// --- life cycle ----------------------------------------------------------------------------------------------------

enum sl_status sl_compressor_estimate(struct sl_compressor *c, bool wanted, struct sl_error *err) {
    sl_estimator_destroy(c);
    if (!wanted) {
        return SL_OK;
    }
    SL_FAIL_IF(sl_recipe_thins(&c->plan.recipe), err, SL_ERR_INVALID,
               "compressor: errors of place=offload with a budget are not estimated: the attention that evicted "
               "slots had is spread over kvstores; ask for none, or leave out budget");
    SL_FAIL_IF(sl_evicts_at_end(c) && !c->score->sums_attention, err, SL_ERR_INVALID,
               "compressor: errors of score=%s are not estimated: it evicts when no row of the prompt is at hand; "
               "ask for none, or take another score",
               c->score->name);
    size_t bytes = (size_t)c->plan.geometry.n_layers * sizeof *c->estimator.layers;
    c->estimator.layers = sl_device_alloc(c->stream->device, SL_MEMORY_SHARED, bytes);
    SL_FAIL_IF(c->estimator.layers == NULL, err, SL_ERR_EXHAUSTED, "compressor: no memory for error estimates");
    memset(c->estimator.layers, 0, bytes);
    return SL_OK;
}

void sl_estimator_destroy(struct sl_compressor *c) {
    sl_device_free(c->stream->device, SL_MEMORY_SHARED, c->estimator.layers);
    c->estimator = (struct sl_estimator){0};
}

static double relative(double error, double norm) {
    return norm > 0 ? sqrt(error / norm) : 0;
}

int sl_compressor_get_estimates(const struct sl_compressor *c, struct sl_error_estimate *estimates_out) {
    const struct sl_estimate_sums *layers = c->estimator.layers;
    // A failed device also reports its failure to the next step.
    bool known = layers != NULL && sl_stream_wait(c->stream, NULL) == SL_OK;
    int n_layers = known ? c->plan.geometry.n_layers : 0;
    for (int l = 0; l < n_layers; l++) {
        estimates_out[l] = (struct sl_error_estimate){
            // fmin(): the sums are of rounded numbers
            .evicted_attention = layers[l].n_rows > 0 ? fmin(layers[l].lost / (double)layers[l].n_rows, 1) : 0,
            .n_rows = layers[l].n_rows,
            .key_error = relative(layers[l].pages.key, layers[l].pages.key_norm),
            .value_error = relative(layers[l].pages.value, layers[l].pages.value_norm),
        };
    }
    return n_layers;
}

// --- where it happens ------------------------------------------------------------------------------------------------

enum sl_status sl_estimate_eviction(struct sl_compressor *c, const struct sl_eviction *e,
                                    const struct sl_kv_heads *heads, struct sl_counts kept, struct sl_error *err) {
    const struct sl_scratch *s = &c->scratch;
    if (c->estimator.layers == NULL) {
        return SL_OK;
    }
    struct sl_estimate_sums *sums = &c->estimator.layers[e->layer];
    if (e->attend != NULL) {
        SL_TRY(sl_take_sums(c, e->attend, 0, err));
        const struct sl_mass mass = {.x = s->sums, .group = e->attend->n_heads / heads->n};
        c->ops->lost(c->stream, heads, mass, s->keep, kept, &sums->lost);
        sums->n_rows += e->attend->m;
    } else {
        c->ops->read_state(c->stream, heads, 0, s->work);
        const struct sl_mass mass = {.x = s->work, .group = 1, .n_rows = e->n_tokens};
        c->ops->lost(c->stream, heads, mass, s->keep, kept, &sums->lost);
        sums->n_rows += e->n_tokens;
    }
    return SL_OK;
}

void sl_estimate_pages(struct sl_compressor *c, int layer, const struct sl_kv_heads *heads, uint32_t n_pages) {
    if (c->estimator.layers != NULL) {
        c->ops->page_error(c->stream, heads, n_pages, c->new_pages, &c->estimator.layers[layer].pages);
    }
}
