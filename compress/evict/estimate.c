// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what compression costs, estimated where it happens, when somebody asks (sl_compressor_estimate()).
 *
 *     eviction       sum over evicted slots j of the attention that the rows at hand give them, per row:
 *                    L = 1/(H m) sum_h sum_r sum_{j evicted} a[h][r][j]      H query heads, m rows of the chunk or step
 *     a layer        sum of m L / sum of m over its evictions
 *     quantization   sqrt(sum (x^ - x)^2 / sum x^2) over the pages that were quantized, of K and of V
 *
 * Where no row is at hand (layers=d2o evicts at the prompt's end) accumulated attention takes the rows' place, and m is
 * all tokens read. A slot that was merged into another counts as evicted.
 *
 * Design: looks and changes nothing: attention is taken again with the saved lse, into scratch that ranking no longer
 *         needs, between selection and merging. Sums are per head, added up in the order of heads by one thread.
 */
#include <math.h>
#include <stdlib.h>

#include "compress/evict/internal.h"

// Of one KV head: squares of what quantizing a page has changed, and of what was there.
struct sl_page_error {
    double key, key_norm, value, value_norm;
};

// Of one layer.
struct sl_estimate_sums {
    double lost; // in rows: 1 is all that one row attended to
    int64_t n_rows;
    struct sl_page_error pages;
};

struct task {
    struct sl_compressor *c;
    const struct sl_eviction *e;
};

// --- life cycle ----------------------------------------------------------------------------------------------------

// Rows of K and of V of one page, before and after.
static size_t floats_per_member(const struct sl_compressor *c) {
    return (size_t)4 * SL_PAGE_SLOTS * (size_t)c->plan.geometry.head_dim;
}

enum sl_status sl_compressor_estimate(struct sl_compressor *c, bool wanted, struct sl_error *err) {
    sl_estimator_destroy(&c->estimator);
    if (!wanted) {
        return SL_OK;
    }
    if (sl_recipe_thins(&c->plan.recipe)) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "compressor: errors of place=offload with a budget are not estimated: the attention that evicted "
            "slots had is spread over kvstores; ask for none, or leave out budget");
    }
    size_t n_heads = (size_t)c->plan.geometry.n_kv_heads, n_members = (size_t)sl_team_size(c->team);
    struct sl_estimator s = {0};
    s.layers = calloc((size_t)c->plan.geometry.n_layers, sizeof *s.layers);
    s.lost = calloc(n_heads, sizeof *s.lost);
    s.pages = calloc(n_heads, sizeof *s.pages);
    s.rows = aligned_alloc(64, n_members * floats_per_member(c) * sizeof *s.rows);
    c->estimator = s;
    if (s.layers == NULL || s.lost == NULL || s.pages == NULL || s.rows == NULL) {
        sl_estimator_destroy(&c->estimator);
        return sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory for error estimates");
    }
    return SL_OK;
}

void sl_estimator_destroy(struct sl_estimator *estimator) {
    free(estimator->layers);
    free(estimator->lost);
    free(estimator->pages);
    free(estimator->rows);
    *estimator = (struct sl_estimator){0};
}

static double relative(double error, double norm) {
    return norm > 0 ? sqrt(error / norm) : 0;
}

int sl_compressor_get_estimates(const struct sl_compressor *c, struct sl_error_estimate *estimates_out) {
    const struct sl_estimate_sums *layers = c->estimator.layers;
    int n_layers = layers != NULL ? c->plan.geometry.n_layers : 0;
    for (int l = 0; l < n_layers; l++) {
        estimates_out[l] = (struct sl_error_estimate){
            // of sums of rounded numbers
            .evicted_attention = layers[l].n_rows > 0 ? fmin(layers[l].lost / (double)layers[l].n_rows, 1) : 0,
            .n_rows = layers[l].n_rows,
            .key_error = relative(layers[l].pages.key, layers[l].pages.key_norm),
            .value_error = relative(layers[l].pages.value, layers[l].pages.value_norm),
        };
    }
    return n_layers;
}

// --- eviction ------------------------------------------------------------------------------------------------------

// Sum of values[] over the slots that are not in keep[], which ascends.
static double sum_evicted(const float *values, const uint32_t *keep, uint32_t n_keep, uint32_t n) {
    double sum = 0;
    for (uint32_t j = 0, i = 0; j < n; j++) {
        if (i < n_keep && keep[i] == j) {
            i++;
        } else {
            sum += (double)values[j];
        }
    }
    return sum;
}

// In rows: of the rows at hand, or of all that were read.
static double lost_by_head(const struct task *task, int64_t h) {
    struct sl_scratch *s = &task->c->scratch;
    const struct sl_attend *attend = task->e->attend;
    const uint32_t *keep = s->keep + (size_t)h * s->stride;
    uint32_t n = s->n_slots[h], n_keep = s->kept[h];
    if (n_keep >= n) {
        return 0;
    }
    if (attend == NULL) {
        float *sums = s->work + (size_t)h * s->stride;
        struct sl_kv kv = sl_session_kv(task->e->session, task->e->layer, (int)h);
        task->c->ops->read_state(&kv, 0, sums);
        double all = sum_evicted(sums, NULL, 0, n);
        return all > 0 ? sum_evicted(sums, keep, n_keep, n) / all * (double)task->e->n_tokens : 0;
    }
    int group = attend->n_heads / attend->heads.n;
    double lost = 0;
    for (int g = 0; g < group; g++) {
        lost += sum_evicted(s->sums + (size_t)(h * group + g) * s->sums_stride, keep, n_keep, n);
    }
    return lost / group;
}

static void lose_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct task *task = arg;
    for (int64_t h = begin; h < end; h++) {
        task->c->estimator.lost[h] = lost_by_head(task, h);
    }
}

enum sl_status sl_estimate_eviction(struct sl_compressor *c, const struct sl_eviction *e, struct sl_error *err) {
    if (c->estimator.layers == NULL) {
        return SL_OK;
    }
    enum sl_status status = e->attend != NULL ? sl_take_sums(c, e->attend, 0, err) : SL_OK;
    if (status != SL_OK) {
        return status;
    }
    int n_heads = e->session->geometry.n_kv_heads;
    struct task task = {c, e};
    sl_team_run(c->team, n_heads, 1, lose_heads, &task);
    struct sl_estimate_sums *sums = &c->estimator.layers[e->layer];
    double lost = 0;
    for (int h = 0; h < n_heads; h++) {
        lost += c->estimator.lost[h];
    }
    sums->lost += lost / n_heads;
    sums->n_rows += e->attend != NULL ? e->attend->m : e->n_tokens;
    return SL_OK;
}

// --- quantization --------------------------------------------------------------------------------------------------

static void add_squares(const float *before, const float *after, size_t n, double *error, double *norm) {
    for (size_t i = 0; i < n; i++) {
        double change = (double)after[i] - (double)before[i];
        *error += change * change;
        *norm += (double)before[i] * (double)before[i];
    }
}

void sl_estimate_page(struct sl_compressor *c, const struct sl_layer *layer, int64_t head, void *page,
                      void *packed_page, int member) {
    if (c->estimator.layers == NULL) {
        return;
    }
    size_t n = (size_t)SL_PAGE_SLOTS * (size_t)c->plan.geometry.head_dim;
    float *k = c->estimator.rows + (size_t)member * floats_per_member(c), *v = k + n, *k_after = v + n,
          *v_after = k_after + n;
    struct sl_kv before = {&page, 0, SL_PAGE_SLOTS, &layer->work, &layer->packed};
    struct sl_kv after = {&packed_page, 1, SL_PAGE_SLOTS, &layer->work, &layer->packed};
    c->ops->read_rows(&before, 0, SL_PAGE_SLOTS, k, v);
    c->ops->read_rows(&after, 0, SL_PAGE_SLOTS, k_after, v_after);
    struct sl_page_error error = {0};
    add_squares(k, k_after, n, &error.key, &error.key_norm);
    add_squares(v, v_after, n, &error.value, &error.value_norm);
    c->estimator.pages[head] = error;
}

void sl_estimate_pages(struct sl_compressor *c, int layer) {
    for (int h = 0; c->estimator.layers != NULL && h < c->plan.geometry.n_kv_heads; h++) {
        if (c->new_pages[h] != NULL) {
            struct sl_page_error *sum = &c->estimator.layers[layer].pages;
            const struct sl_page_error *page = &c->estimator.pages[h];
            sum->key += page->key;
            sum->key_norm += page->key_norm;
            sum->value += page->value;
            sum->value_norm += page->value_norm;
        }
    }
}
