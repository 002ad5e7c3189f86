// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: operations of eviction on the cached rows of all heads, with a tier's kernels, which work on one head; and
 *          compaction, which all tiers share.
 */
#include "engine/tensor/cpu/evict/evict.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/kvcache/session.h"
#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/evict/fills.h"

static size_t n_numbers(const struct sl_kv_heads *heads) {
    return sl_heads_slots(heads) * (size_t)heads->kv[0].work->head_dim;
}

// --- CAOTE -----------------------------------------------------------------------------------------------------------

static void value_change_head(const void *arg, int h) {
    const struct sl_evict_call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    float *out = sl_vector(c->out, h);
    if (c->group == 1) {
        c->by->value_change(kv, sl_vector(c->x, h), c->mean_center, false, out);
        return;
    }
    // The outputs of the group's heads are concatenated, so the square of their change is the sum of their squares.
    memset(out, 0, kv->n_slots * sizeof *out);
    for (int g = 0; g < c->group; g++) {
        c->by->value_change(kv, sl_vector(c->x, h * c->group + g), c->mean_center, true, out);
    }
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        out[j] = sqrtf(out[j]);
    }
}

void sl_evict_value_change(struct sl_stream *stream, const struct sl_evict_call *call) {
    sl_each_head(stream, call->heads->n, n_numbers(call->heads), value_change_head, call);
}

// --- D2O -------------------------------------------------------------------------------------------------------------

// Returns how many slots may be merged: a head that keeps nothing has no target.
static uint32_t n_evicted(const struct sl_evict_call *c, int h) {
    uint32_t n = c->heads->kv[h].n_slots, kept = sl_count(c->kept, h);
    return kept > 0 && kept < n ? n - kept : 0;
}

// Lists the slots that are not in keep[], which ascends.
static void list_evicted(const uint32_t *keep, uint32_t n_keep, uint32_t n, uint32_t *evicted) {
    for (uint32_t j = 0, i = 0; j < n; j++) {
        if (i < n_keep && keep[i] == j) {
            i++;
        } else {
            *evicted++ = j;
        }
    }
}

// task: a block of a head's evicted slots, because heads are too few to divide the work. Heads differ in how many
// blocks they have, so it may be past the end of its head.
static void nearest_block(const void *arg, int task) {
    const struct sl_evict_call *c = arg;
    int h = task % c->heads->n;
    uint32_t first = (uint32_t)(task / c->heads->n) * SL_NEAREST_BLOCK, all = n_evicted(c, h);
    if (first >= all) {
        return;
    }
    uint32_t n = all - first < SL_NEAREST_BLOCK ? all - first : SL_NEAREST_BLOCK;
    float *cosine = sl_vector(c->nearest.cosine, h) + first;
    c->by->nearest(&c->heads->kv[h], sl_list(c->nearest.evicted, h) + first, n, sl_list(c->keep, h),
                   sl_count(c->kept, h), sl_list(c->nearest.into, h) + first, cosine);
    for (uint32_t i = 0; i < n; i++) {
        cosine[i] = fminf(fmaxf(cosine[i], -1), 1); // rounding can exceed 1; NaN becomes -1
    }
}

void sl_evict_nearest(struct sl_stream *stream, const struct sl_evict_call *call) {
    const struct sl_kv_heads *heads = call->heads;
    uint32_t most = 0;
    for (int h = 0; h < heads->n; h++) {
        uint32_t n = n_evicted(call, h);
        most = n > most ? n : most;
        if (n > 0) {
            list_evicted(sl_list(call->keep, h), sl_count(call->kept, h), heads->kv[h].n_slots,
                         sl_list(call->nearest.evicted, h));
        }
    }
    int n_blocks = (int)((most + SL_NEAREST_BLOCK - 1) / SL_NEAREST_BLOCK);
    sl_each_head(stream, n_blocks * heads->n, n_numbers(heads), nearest_block, call);
}

// Computes the mean; returns false where no slot may be merged.
static bool mean_similarity(const struct sl_evict_call *c, float *mean_out) {
    double sum = 0;
    int64_t count = 0;
    for (int h = 0; h < c->heads->n; h++) {
        for (uint32_t i = 0; i < n_evicted(c, h); i++, count++) {
            sum += (double)sl_vector(c->nearest.cosine, h)[i];
        }
    }
    *mean_out = count > 0 ? (float)(sum / (double)count) : 0;
    return count > 0;
}

// Moves the slots that reach the threshold to the front of their lists, and returns how many will be merged.
static uint32_t list_merged(const struct sl_evict_call *c, int h, float threshold) {
    uint32_t *from = sl_list(c->nearest.evicted, h), *into = sl_list(c->nearest.into, h), n = 0;
    float *cosine = sl_vector(c->nearest.cosine, h);
    for (uint32_t i = 0; i < n_evicted(c, h); i++) {
        if (cosine[i] >= threshold) {
            from[n] = from[i];
            into[n] = into[i];
            cosine[n++] = cosine[i];
        }
    }
    return n;
}

static void merge_head(const void *arg, int h) {
    const struct sl_evict_call *c = arg;
    if (c->n[h] > 0) {
        sl_merge_pages(&c->by->rows, &c->heads->kv[h], sl_list(c->nearest.evicted, h), sl_list(c->nearest.into, h),
                       sl_vector(c->nearest.cosine, h), c->n[h]);
    }
}

void sl_evict_merge(struct sl_stream *stream, struct sl_evict_call *call, struct sl_merge_threshold threshold) {
    const struct sl_kv_heads *heads = call->heads;
    uint32_t n[SL_MAX_HEADS];
    float mean, beta = threshold.beta, *t = threshold.at;
    *threshold.n_merged = 0;
    if (!mean_similarity(call, &mean)) {
        return;
    }
    *t = *t == 0 ? mean : (1 - beta) * *t + beta * mean;
    for (int h = 0; h < heads->n; h++) {
        assert(heads->kv[h].n_packed == 0);
        n[h] = list_merged(call, h, *t);
        *threshold.n_merged += n[h];
    }
    call->n = n;
    sl_each_head(stream, heads->n, n_numbers(heads), merge_head, call);
    call->n = NULL;
}

// --- compaction ------------------------------------------------------------------------------------------------------

// Returns the first i with keep[i] != i, or n. keep[i] - i never falls, so a binary search finds it.
static uint32_t first_moved(const uint32_t *keep, uint32_t n) {
    uint32_t begin = 0, end = n;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (keep[middle] == middle) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

// Moves slots [b, b + n) of page `from` to slots [a, a + n) of page `to`, which may be the same page.
static void move_slots(const struct sl_page_layout *layout, char *to, uint32_t a, const char *from, uint32_t b,
                       size_t n) {
    size_t row_bytes = (size_t)layout->head_dim * (size_t)sl_kv_format_bits(layout->format) / 8;
    memmove(to + layout->k + a * row_bytes, from + layout->k + b * row_bytes, n * row_bytes);
    memmove(to + layout->v + a * row_bytes, from + layout->v + b * row_bytes, n * row_bytes);
    if (layout->has_positions) {
        memmove(to + layout->positions + a * sizeof(int32_t), from + layout->positions + b * sizeof(int32_t),
                n * sizeof(int32_t));
    }
    for (int plane = 0; plane < layout->n_states; plane++) {
        size_t at = layout->states + (size_t)plane * SL_PAGE_SLOTS * sizeof(float);
        memmove(to + at + a * sizeof(float), from + at + b * sizeof(float), n * sizeof(float));
    }
}

// Moves runs of neighbors together, up to the end of both of their pages. A decode step that evicts one slot moves
// whole pages by one row, and reads nothing before that slot.
static void gather_head(const void *arg, int h) {
    const struct sl_evict_call *c = arg;
    const struct sl_kv *kv = &c->heads->kv[h];
    const uint32_t *keep = sl_list(c->keep, h);
    uint32_t n_keep = sl_count(c->kept, h);
    if (n_keep >= kv->n_slots) {
        return;
    }
    assert(kv->n_packed == 0);
    for (uint32_t i = first_moved(keep, n_keep), n; i < n_keep; i += n) {
        uint32_t a = i % SL_PAGE_SLOTS, b = keep[i] % SL_PAGE_SLOTS, most = SL_PAGE_SLOTS - (a > b ? a : b);
        for (n = 1; n < most && i + n < n_keep && keep[i + n] == keep[i] + n; n++) {
        }
        // keep[i] > i from here on, so nothing is overwritten before it has moved
        move_slots(kv->work, kv->pages[i / SL_PAGE_SLOTS], a, kv->pages[keep[i] / SL_PAGE_SLOTS], b, n);
    }
}

static void gather(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                   struct sl_counts kept) {
    const struct sl_evict_call call = {.heads = heads, .keep = keep, .kept = kept};
    sl_each_head(stream, heads->n, n_numbers(heads), gather_head, &call);
}

void sl_ref_gather_fill(struct sl_ops *ops) {
    ops->gather = gather;
}
