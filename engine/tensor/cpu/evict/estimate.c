// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the errors that eviction and quantization cause, in plain C, for every tier. Each sum covers one head or
 *          page. The calling thread adds them up in order, so that the result does not depend on the team.
 */
#include "engine/kvcache/session.h"
#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/evict/fills.h"

// --- eviction --------------------------------------------------------------------------------------------------------

struct lost_call {
    const struct sl_kv_heads *heads;
    struct sl_mass mass;
    struct sl_lists keep;
    struct sl_counts kept;
    double *lost; // [heads]
};

// Returns the sum of values[n] over the slots that are not in keep[], which ascends.
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

static void lose_head(const void *arg, int h) {
    const struct lost_call *c = arg;
    const uint32_t *keep = sl_list(c->keep, h);
    uint32_t n = c->heads->kv[h].n_slots, n_keep = sl_count(c->kept, h);
    int group = c->mass.group;
    int64_t n_rows = c->mass.n_rows;
    double sum = 0, all = 0;
    for (int g = 0; g < group && n_keep < n; g++) {
        const float *x = sl_vector(c->mass.x, h * group + g);
        sum += sum_evicted(x, keep, n_keep, n);
        all += n_rows > 0 ? sum_evicted(x, NULL, 0, n) : 0;
    }
    c->lost[h] = n_rows <= 0 ? sum / group : all > 0 ? sum / all * (double)n_rows : 0;
}

static void lost(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_mass mass, struct sl_lists keep,
                 struct sl_counts kept, double *lost_inout) {
    double of_heads[SL_MAX_HEADS], sum = 0;
    const struct lost_call call = {heads, mass, keep, kept, of_heads};
    sl_each_head(stream, heads->n, sl_heads_slots(heads) * (size_t)mass.group, lose_head, &call);
    for (int h = 0; h < heads->n; h++) {
        sum += of_heads[h];
    }
    *lost_inout += sum / heads->n;
}

// --- quantization ----------------------------------------------------------------------------------------------------

struct error_call {
    const struct sl_kv_heads *heads;
    uint32_t n_pages, page; // page: the current page
    void *const *to;
    struct sl_page_error *errors; // [heads]
};

static void add_squares(const float *before, const float *after, size_t n, double *error, double *norm) {
    for (size_t i = 0; i < n; i++) {
        double change = (double)after[i] - (double)before[i];
        *error += change * change;
        *norm += (double)before[i] * (double)before[i];
    }
}

static void compare_page(const void *arg, int h) {
    const struct error_call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    const void *before = kv->pages[kv->n_packed + c->page], *after = c->to[(size_t)h * c->n_pages + c->page];
    float a[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM], b[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    size_t n = (size_t)SL_PAGE_SLOTS * (size_t)kv->work->head_dim;
    struct sl_page_error *error = &c->errors[h];
    *error = (struct sl_page_error){0};
    if (after != NULL) {
        sl_ref_read_k(kv->work, before, SL_PAGE_SLOTS, a);
        sl_ref_read_k(kv->packed, after, SL_PAGE_SLOTS, b);
        add_squares(a, b, n, &error->key, &error->key_norm);
        sl_ref_read_v(kv->work, before, SL_PAGE_SLOTS, a);
        sl_ref_read_v(kv->packed, after, SL_PAGE_SLOTS, b);
        add_squares(a, b, n, &error->value, &error->value_norm);
    }
}

static void page_error(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to,
                       struct sl_page_error *error_inout) {
    struct sl_page_error errors[SL_MAX_HEADS];
    struct error_call call = {.heads = heads, .n_pages = n_pages, .to = to, .errors = errors};
    for (; call.page < n_pages; call.page++) {
        sl_each_head(stream, heads->n, SIZE_MAX, compare_page, &call);
        for (int h = 0; h < heads->n; h++) {
            error_inout->key += errors[h].key;
            error_inout->key_norm += errors[h].key_norm;
            error_inout->value += errors[h].value;
            error_inout->value_norm += errors[h].value_norm;
        }
    }
}

void sl_ref_estimate_fill(struct sl_ops *ops) {
    ops->lost = lost;
    ops->page_error = page_error;
}
