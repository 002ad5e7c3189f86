// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an annex: a table of segments, and access to the rows of tokens in them.
 *
 * Design: the table has room for as many segments as max_tokens can be cut into, so it never moves. Appending writes an
 *         entry and then stores the count with release order; a thread that has loaded the count with acquire order may
 *         read all entries below it. No locks.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/offload/annex/annex_internal.h"

#define MAX_TOKENS (1 << 30)

static bool is_annex_shape(int first_lane, int n_lanes, int64_t max_tokens) {
    const int max_lanes = SL_MAX_LAYERS * SL_MAX_HEADS;
    return first_lane >= 0 && n_lanes >= 1 && first_lane <= max_lanes - n_lanes && max_tokens >= 1 &&
           max_tokens <= MAX_TOKENS;
}

enum sl_status sl_annex_create(const struct sl_ops *ops, int first_lane, int n_lanes, int head_dim, int64_t max_tokens,
                               struct sl_annex **annex_out, struct sl_error *err) {
    struct sl_page_layout layout;
    if (!is_annex_shape(first_lane, n_lanes, max_tokens) ||
        sl_page_layout_init(&layout, SL_KV_F32, head_dim, 0, false) != SL_OK) {
        return sl_fail(err, SL_ERR_INVALID,
                       "annex of lanes %d and %d more, %d channels and at most %lld tokens: out of bounds", first_lane,
                       n_lanes, head_dim, (long long)max_tokens);
    }
    struct sl_annex *a = calloc(1, sizeof *a);
    if (a == NULL) {
        goto err_memory;
    }
    a->ops = ops;
    a->first_lane = first_lane;
    a->n_lanes = n_lanes;
    a->head_dim = head_dim;
    a->max_tokens = max_tokens;
    a->max_segments = sl_pages_for(max_tokens); // every segment except the last has at least one full page
    atomic_init(&a->n_segments, 0);
    a->segments = calloc(a->max_segments, sizeof *a->segments);
    a->maxima = calloc(a->max_segments / SL_ANNEX_SPAN + 1, sizeof *a->maxima);
    if (a->segments == NULL || a->maxima == NULL) {
        goto err_destroy;
    }
    *annex_out = a;
    return SL_OK;

err_destroy:
    sl_annex_destroy(&a);
err_memory:
    return sl_fail(err, SL_ERR_EXHAUSTED, "annex: out of memory for its table of %lld tokens", (long long)max_tokens);
}

void sl_annex_destroy(struct sl_annex **annex) {
    struct sl_annex *a = *annex;
    if (a == NULL) {
        return;
    }
    for (uint32_t i = 0; i < sl_annex_n_segments(a); i++) {
        sl_kv_segment_unref(&a->segments[i]);
    }
    for (uint32_t i = 0; a->maxima != NULL && i < a->max_segments / SL_ANNEX_SPAN; i++) {
        free(a->maxima[i]);
    }
    free(a->segments);
    free(a->maxima);
    free(a);
    *annex = NULL;
}

// --- appending -----------------------------------------------------------------------------------------------------

static enum sl_status check_fits(const struct sl_annex *a, uint32_t n, const struct sl_kv_segment *segment,
                                 struct sl_error *err) {
    const struct sl_kv_segment_config *c = &segment->config;
    const struct sl_kv_segment *before = n > 0 ? a->segments[n - 1] : NULL;
    int64_t end = before != NULL ? sl_kv_segment_end(before) : 0;
    if (c->begin != end || end % SL_PAGE_SLOTS != 0 || sl_kv_segment_end(segment) > a->max_tokens) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "annex of %lld tokens, at most %lld: a segment of tokens [%lld, %lld) does not follow; every one "
            "but the last ends at a multiple of %d",
            (long long)end, (long long)a->max_tokens, (long long)c->begin, (long long)sl_kv_segment_end(segment),
            SL_PAGE_SLOTS);
    }
    if (c->first_lane != a->first_lane || c->n_lanes != a->n_lanes || c->work.head_dim != a->head_dim) {
        return sl_fail(err, SL_ERR_INVALID,
                       "annex of lanes %d and %d more, %d channels: the segment has lanes %d and %d more, %d channels",
                       a->first_lane, a->n_lanes, a->head_dim, c->first_lane, c->n_lanes, c->work.head_dim);
    }
    if (before != NULL && (before->config.work.format != c->work.format || before->config.rows != c->rows ||
                           before->config.scan != c->scan)) {
        return sl_fail(err, SL_ERR_INVALID, "annex of %s rows, %s as kept, scanned as %s: the segment has %s, %s, %s",
                       sl_kv_format_name(before->config.work.format), sl_kv_format_name(before->config.rows),
                       sl_kv_format_name(before->config.scan), sl_kv_format_name(c->work.format),
                       sl_kv_format_name(c->rows), sl_kv_format_name(c->scan));
    }
    return SL_OK;
}

static void raise(float *maxima, const float *by, size_t n) {
    for (size_t i = 0; i < n; i++) {
        maxima[i] = fmaxf(maxima[i], by[i]);
    }
}

// Computes the maxima over the first n_segments, a multiple of SL_ANNEX_SPAN; the last SL_ANNEX_SPAN of them are new.
static bool add_maxima(struct sl_annex *a, uint32_t n_segments) {
    uint32_t index = n_segments / SL_ANNEX_SPAN - 1;
    size_t d = (size_t)a->head_dim, n = (size_t)a->n_lanes * d;
    float *maxima = calloc(n, sizeof *maxima);
    if (maxima == NULL) {
        return false;
    }
    if (index > 0) {
        memcpy(maxima, a->maxima[index - 1], n * sizeof *maxima);
    }
    for (uint32_t i = index * SL_ANNEX_SPAN; i < n_segments; i++) {
        for (int lane = 0; lane < a->n_lanes; lane++) {
            raise(maxima + (size_t)lane * d, sl_kv_segment_absmax(a->segments[i], lane), d);
        }
    }
    a->maxima[index] = maxima;
    return true;
}

enum sl_status sl_annex_append(struct sl_annex *annex, struct sl_kv_segment *segment, struct sl_error *err) {
    struct sl_annex *a = annex;
    uint32_t n = sl_annex_n_segments(a);
    enum sl_status status = check_fits(a, n, segment, err);
    if (status != SL_OK) {
        return status;
    }
    a->segments[n] = segment; // no thread reads the entry before the count covers it
    if ((n + 1) % SL_ANNEX_SPAN == 0 && !add_maxima(a, n + 1)) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "annex: out of memory for the maxima of %d lanes", a->n_lanes);
    }
    sl_kv_segment_ref(segment);
    atomic_store_explicit(&a->n_segments, n + 1, memory_order_release);
    return SL_OK;
}

// --- what is there -------------------------------------------------------------------------------------------------

int64_t sl_annex_n_tokens(const struct sl_annex *annex) {
    uint32_t n = sl_annex_n_segments(annex);
    return n > 0 ? sl_kv_segment_end(annex->segments[n - 1]) : 0;
}

const struct sl_kv_segment *sl_annex_segment(const struct sl_annex *annex, int index) {
    return index >= 0 && (uint32_t)index < sl_annex_n_segments(annex) ? annex->segments[index] : NULL;
}

void sl_annex_absmax_of(const struct sl_annex *annex, uint32_t n_segments, int lane, float *absmax_out) {
    size_t d = (size_t)annex->head_dim;
    uint32_t n_spans = n_segments / SL_ANNEX_SPAN;
    memset(absmax_out, 0, d * sizeof *absmax_out);
    if (n_spans > 0) {
        raise(absmax_out, annex->maxima[n_spans - 1] + (size_t)lane * d, d);
    }
    for (uint32_t i = n_spans * SL_ANNEX_SPAN; i < n_segments; i++) {
        raise(absmax_out, sl_kv_segment_absmax(annex->segments[i], lane), d);
    }
}

void sl_annex_absmax(const struct sl_annex *annex, int lane, float *absmax_out) {
    sl_annex_absmax_of(annex, sl_annex_n_segments(annex), lane - annex->first_lane, absmax_out);
}

// --- rows ----------------------------------------------------------------------------------------------------------

enum sl_kv_format sl_annex_row_format(const struct sl_annex *annex) {
    return sl_annex_n_segments(annex) > 0 ? annex->segments[0]->config.work.format : SL_KV_F32;
}

// Returns the segment that holds `token`, which must exist.
static const struct sl_kv_segment *find_segment(const struct sl_annex *a, uint32_t n_segments, int64_t token) {
    uint32_t begin = 0, end = n_segments;
    while (end - begin > 1) {
        uint32_t middle = begin + (end - begin) / 2;
        if (a->segments[middle]->config.begin <= token) {
            begin = middle;
        } else {
            end = middle;
        }
    }
    return a->segments[begin];
}

void sl_annex_rows(const struct sl_annex *annex, int lane, const uint32_t *tokens, uint32_t n, void *rows_out) {
    uint32_t slots[256], n_segments = sl_annex_n_segments(annex);
    char *rows = rows_out;
    for (uint32_t i = 0; i < n;) {
        const struct sl_kv_segment *s = find_segment(annex, n_segments, tokens[i]);
        uint32_t m = 0;
        while (i < n && m < sizeof slots / sizeof slots[0] && tokens[i] >= s->config.begin &&
               tokens[i] < sl_kv_segment_end(s)) {
            slots[m++] = (uint32_t)(tokens[i++] - s->config.begin);
        }
        assert(m > 0);
        annex->ops->host.copy_rows(&s->kv[lane - annex->first_lane], slots, m, rows);
        rows += (size_t)m * 2 * (size_t)annex->head_dim * (size_t)sl_kv_format_bits(s->config.work.format) / 8;
    }
}
