// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: remote KV: a table of segments, and access to the rows of tokens in them.
 *
 * Design: the table has room for as many segments as max_tokens can be cut into, so it never moves. Appending writes an
 *         entry and then stores the count with release order; a thread that has loaded the count with acquire order may
 *         read all entries below it. No locks.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/offload/remote_kv/remote_kv_internal.h"

#define MAX_TOKENS (1 << 30)

static bool is_remote_kv_shape(int first_offloaded_head, int n_offloaded_heads, int64_t max_tokens) {
    const int max_offloaded_heads = SL_MAX_LAYERS * SL_MAX_HEADS;
    return first_offloaded_head >= 0 && n_offloaded_heads >= 1 &&
           first_offloaded_head <= max_offloaded_heads - n_offloaded_heads && max_tokens >= 1 &&
           max_tokens <= MAX_TOKENS;
}

enum sl_status sl_remote_kv_create(const struct sl_ops *ops, int first_offloaded_head, int n_offloaded_heads,
                                   int head_dim, int64_t max_tokens, struct sl_remote_kv **remote_kv_out,
                                   struct sl_error *err) {
    struct sl_page_layout layout;
    SL_FAIL_IF(!is_remote_kv_shape(first_offloaded_head, n_offloaded_heads, max_tokens) ||
                   sl_page_layout_init(&layout, SL_KV_F32, head_dim, 0, false) != SL_OK,
               err, SL_ERR_INVALID,
               "remote KV of offloaded heads %d and %d more, %d channels and at most %lld tokens: out of bounds",
               first_offloaded_head, n_offloaded_heads, head_dim, (long long)max_tokens);
    SL_NEW_OR_FAIL(struct sl_remote_kv, a, err, "remote KV: out of memory");
    a->ops = ops;
    a->first_offloaded_head = first_offloaded_head;
    a->n_offloaded_heads = n_offloaded_heads;
    a->head_dim = head_dim;
    a->max_tokens = max_tokens;
    a->max_segments = sl_pages_for(max_tokens); // every segment except the last has at least one full page
    atomic_init(&a->n_segments, 0);
    a->segments = calloc(a->max_segments, sizeof *a->segments);
    a->maxima = calloc(a->max_segments / SL_REMOTE_KV_SPAN + 1, sizeof *a->maxima);
    if (a->segments == NULL || a->maxima == NULL) {
        sl_remote_kv_destroy(&a);
        return sl_fail(err, SL_ERR_EXHAUSTED, "remote KV: out of memory for its table of %lld tokens",
                       (long long)max_tokens);
    }
    *remote_kv_out = a;
    return SL_OK;
}

void sl_remote_kv_destroy(struct sl_remote_kv **remote_kv) {
    struct sl_remote_kv *a = *remote_kv;
    if (a == NULL) {
        return;
    }
    for (uint32_t i = 0; i < sl_remote_kv_n_segments(a); i++) {
        sl_kv_segment_unref(&a->segments[i]);
    }
    for (uint32_t i = 0; a->maxima != NULL && i < a->max_segments / SL_REMOTE_KV_SPAN; i++) {
        free(a->maxima[i]);
    }
    free(a->segments);
    free(a->maxima);
    free(a);
    *remote_kv = NULL;
}

// --- appending -----------------------------------------------------------------------------------------------------

static enum sl_status check_fits(const struct sl_remote_kv *a, uint32_t n, const struct sl_kv_segment *segment,
                                 struct sl_error *err) {
    const struct sl_kv_segment_config *c = &segment->config;
    const struct sl_kv_segment *before = n > 0 ? a->segments[n - 1] : NULL;
    int64_t end = before != NULL ? sl_kv_segment_end(before) : 0;
    SL_FAIL_IF(c->begin != end || end % SL_PAGE_SLOTS != 0 || sl_kv_segment_end(segment) > a->max_tokens, err,
               SL_ERR_INVALID,
               "remote KV of %lld tokens, at most %lld: a segment of tokens [%lld, %lld) does not follow; every one "
               "but the last ends at a multiple of %d",
               (long long)end, (long long)a->max_tokens, (long long)c->begin, (long long)sl_kv_segment_end(segment),
               SL_PAGE_SLOTS);
    SL_FAIL_IF(c->first_offloaded_head != a->first_offloaded_head || c->n_offloaded_heads != a->n_offloaded_heads ||
                   c->work.head_dim != a->head_dim,
               err, SL_ERR_INVALID,
               "remote KV of offloaded heads %d and %d more, %d channels: the segment has offloaded heads %d "
               "and %d more, %d channels",
               a->first_offloaded_head, a->n_offloaded_heads, a->head_dim, c->first_offloaded_head,
               c->n_offloaded_heads, c->work.head_dim);
    SL_FAIL_IF(before != NULL && (before->config.work.format != c->work.format || before->config.rows != c->rows ||
                                  before->config.scan != c->scan),
               err, SL_ERR_INVALID, "remote KV of %s rows, %s as kept, scanned as %s: the segment has %s, %s, %s",
               sl_kv_format_name(before->config.work.format), sl_kv_format_name(before->config.rows),
               sl_kv_format_name(before->config.scan), sl_kv_format_name(c->work.format), sl_kv_format_name(c->rows),
               sl_kv_format_name(c->scan));
    return SL_OK;
}

static void raise(float *maxima, const float *by, size_t n) {
    for (size_t i = 0; i < n; i++) {
        maxima[i] = fmaxf(maxima[i], by[i]);
    }
}

// Computes the maxima over the first n_segments, a multiple of SL_REMOTE_KV_SPAN; the last SL_REMOTE_KV_SPAN of them
// are new.
static bool add_maxima(struct sl_remote_kv *a, uint32_t n_segments) {
    uint32_t index = n_segments / SL_REMOTE_KV_SPAN - 1;
    size_t d = (size_t)a->head_dim, n = (size_t)a->n_offloaded_heads * d;
    float *maxima = calloc(n, sizeof *maxima);
    if (maxima == NULL) {
        return false;
    }
    if (index > 0) {
        memcpy(maxima, a->maxima[index - 1], n * sizeof *maxima);
    }
    for (uint32_t i = index * SL_REMOTE_KV_SPAN; i < n_segments; i++) {
        for (int offloaded_head = 0; offloaded_head < a->n_offloaded_heads; offloaded_head++) {
            raise(maxima + (size_t)offloaded_head * d, sl_kv_segment_absmax(a->segments[i], offloaded_head), d);
        }
    }
    a->maxima[index] = maxima;
    return true;
}

enum sl_status sl_remote_kv_append(struct sl_remote_kv *remote_kv, struct sl_kv_segment *segment,
                                   struct sl_error *err) {
    struct sl_remote_kv *a = remote_kv;
    uint32_t n = sl_remote_kv_n_segments(a);
    SL_TRY(check_fits(a, n, segment, err));
    a->segments[n] = segment; // no thread reads the entry before the count covers it
    SL_FAIL_IF((n + 1) % SL_REMOTE_KV_SPAN == 0 && !add_maxima(a, n + 1), err, SL_ERR_EXHAUSTED,
               "remote KV: out of memory for the maxima of %d offloaded heads", a->n_offloaded_heads);
    sl_kv_segment_ref(segment);
    atomic_store_explicit(&a->n_segments, n + 1, memory_order_release);
    return SL_OK;
}

// --- what is there -------------------------------------------------------------------------------------------------

int64_t sl_remote_kv_n_tokens(const struct sl_remote_kv *remote_kv) {
    uint32_t n = sl_remote_kv_n_segments(remote_kv);
    return n > 0 ? sl_kv_segment_end(remote_kv->segments[n - 1]) : 0;
}

const struct sl_kv_segment *sl_remote_kv_segment(const struct sl_remote_kv *remote_kv, int index) {
    return index >= 0 && (uint32_t)index < sl_remote_kv_n_segments(remote_kv) ? remote_kv->segments[index] : NULL;
}

void sl_remote_kv_absmax_of(const struct sl_remote_kv *remote_kv, uint32_t n_segments, int offloaded_head,
                            float *absmax_out) {
    size_t d = (size_t)remote_kv->head_dim;
    uint32_t n_spans = n_segments / SL_REMOTE_KV_SPAN;
    memset(absmax_out, 0, d * sizeof *absmax_out);
    if (n_spans > 0) {
        raise(absmax_out, remote_kv->maxima[n_spans - 1] + (size_t)offloaded_head * d, d);
    }
    for (uint32_t i = n_spans * SL_REMOTE_KV_SPAN; i < n_segments; i++) {
        raise(absmax_out, sl_kv_segment_absmax(remote_kv->segments[i], offloaded_head), d);
    }
}

void sl_remote_kv_absmax(const struct sl_remote_kv *remote_kv, int offloaded_head, float *absmax_out) {
    sl_remote_kv_absmax_of(remote_kv, sl_remote_kv_n_segments(remote_kv),
                           offloaded_head - remote_kv->first_offloaded_head, absmax_out);
}

// --- rows ----------------------------------------------------------------------------------------------------------

// Returns the segment that holds `token`, which must exist.
static const struct sl_kv_segment *find_segment(const struct sl_remote_kv *a, uint32_t n_segments, int64_t token) {
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

void sl_remote_kv_rows(const struct sl_remote_kv *remote_kv, int offloaded_head, const uint32_t *tokens, uint32_t n,
                       void *rows_out) {
    uint32_t slots[256], n_segments = sl_remote_kv_n_segments(remote_kv);
    char *rows = rows_out;
    for (uint32_t i = 0; i < n;) {
        const struct sl_kv_segment *s = find_segment(remote_kv, n_segments, tokens[i]);
        uint32_t m = 0;
        while (i < n && m < sizeof slots / sizeof slots[0] && tokens[i] >= s->config.begin &&
               tokens[i] < sl_kv_segment_end(s)) {
            slots[m++] = (uint32_t)(tokens[i++] - s->config.begin);
        }
        assert(m > 0);
        remote_kv->ops->host.copy_rows(&s->kv[offloaded_head - remote_kv->first_offloaded_head], slots, m, rows);
        rows += (size_t)m * 2 * (size_t)remote_kv->head_dim * (size_t)sl_kv_format_bits(s->config.work.format) / 8;
    }
}
