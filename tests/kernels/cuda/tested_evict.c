// SPDX-License-Identifier: Apache-2.0
// Purpose: see tested_evict.h, and tested_device.c for how.
#include "tests/kernels/cuda/tested_evict.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/kernels/cuda/call.h"

// --- scores ----------------------------------------------------------------------------------------------------------

static void read_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, struct sl_vectors out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors to = vectors_of(out, heads, 1, WRITTEN);
    CALL(read_state, &there, plane, to);
}

static void write_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, int m,
                        const float *values) {
    struct sl_kv_heads there = heads_of(heads, WRITTEN);
    const float *from = floats(values, (int64_t)m * heads->n, READ);
    CALL(write_state, &there, plane, m, from);
}

static void spread(struct sl_stream *stream, const float *values, int n, int m, struct sl_vectors out) {
    const float *from = floats(values, (int64_t)m * n, READ);
    struct sl_vectors to = {rows_of(out.at, n, (int64_t)out.stride, m, WRITTEN), out.stride};
    CALL(spread, from, n, m, to);
}

static void mean_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int64_t n_tokens,
                       struct sl_vectors mean_out, struct sl_vectors deviation_out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors mean = vectors_of(mean_out, heads, 1, WRITTEN);
    struct sl_vectors deviation = vectors_of(deviation_out, heads, 1, WRITTEN);
    CALL(mean_state, &there, n_tokens, mean, deviation);
}

static void pool(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                 struct sl_pooling pooling, struct sl_vectors out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors from = vectors_of(x, heads, group, READ), to = vectors_of(out, heads, group, WRITTEN);
    CALL(pool, &there, group, from, pooling, to);
}

static void mean_group(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                       struct sl_vectors out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors from = vectors_of(x, heads, group, READ), to = vectors_of(out, heads, 1, WRITTEN);
    CALL(mean_group, &there, group, from, to);
}

static void recency(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors to = vectors_of(out, heads, 1, WRITTEN);
    CALL(recency, &there, to);
}

static void chance(struct sl_stream *stream, const struct sl_kv_heads *heads, uint64_t seed, int layer, int64_t offset,
                   struct sl_vectors out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors to = vectors_of(out, heads, 1, WRITTEN);
    CALL(chance, &there, seed, layer, offset, to);
}

static void value_change(struct sl_stream *stream, const struct sl_kv_heads *heads, int group,
                         struct sl_vectors weights, bool mean_center, struct sl_vectors out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors from = vectors_of(weights, heads, group, READ), to = vectors_of(out, heads, 1, WRITTEN);
    CALL(value_change, &there, group, from, mean_center, to);
}

static void share(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors x_inout) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors x = vectors_of(x_inout, heads, 1, WRITTEN);
    CALL(share, &there, x);
}

static void variance(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, double *out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    double *to = led(out, (size_t)heads->n * sizeof *out, WRITTEN);
    CALL(variance, &there, plane, to);
}

// --- which slots stay ------------------------------------------------------------------------------------------------

static void protect(struct sl_stream *stream, const struct sl_kv_heads *heads, const struct sl_protection *protections,
                    struct sl_vectors x_inout) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors x = vectors_of(x_inout, heads, 1, WRITTEN);
    CALL(protect, &there, protections, x);
}

static void spare(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists listed, struct sl_counts n,
                  struct sl_vectors x_inout) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_lists lists = slots_of(listed, heads, n, false, READ);
    struct sl_vectors x = vectors_of(x_inout, heads, 1, WRITTEN);
    struct sl_counts n_there = counts_of(n, heads->n, READ);
    CALL(spare, &there, lists, n_there, x);
}

static void budgets(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                    uint32_t budget, struct sl_vectors work, struct sl_counts kept_out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors from = vectors_of(scores, heads, 1, READ), aside = vectors_of(work, heads, 1, WRITTEN);
    struct sl_counts n_there = counts_of(kept_out, heads->n, WRITTEN);
    CALL(budgets, &there, from, budget, aside, n_there);
}

static void select_slots(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                         struct sl_vectors ties, bool newest, struct sl_counts kept, struct sl_lists keep_out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_vectors from = vectors_of(scores, heads, 1, READ), tied = vectors_of(ties, heads, 1, READ);
    struct sl_lists lists = slots_of(keep_out, heads, kept, false, WRITTEN);
    struct sl_counts n_there = counts_of(kept, heads->n, READ);
    CALL(select, &there, from, tied, newest, n_there, lists);
}

static void gather(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                   struct sl_counts kept) {
    struct sl_kv_heads there = heads_of(heads, WRITTEN);
    struct sl_lists lists = slots_of(keep, heads, kept, false, READ);
    struct sl_counts n_there = counts_of(kept, heads->n, READ);
    CALL(gather, &there, lists, n_there);
}

static struct sl_nearest nearest_of(struct sl_nearest nearest, const struct sl_kv_heads *heads, struct sl_counts kept,
                                    enum use use) {
    struct sl_nearest there;
    there.evicted = slots_of(nearest.evicted, heads, kept, true, use);
    there.into = slots_of(nearest.into, heads, kept, true, use);
    there.cosine = numbers_of(nearest.cosine, heads, kept, true, use);
    return there;
}

static void nearest(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                    struct sl_counts kept, struct sl_nearest nearest_out) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_lists lists = slots_of(keep, heads, kept, false, READ);
    struct sl_nearest found = nearest_of(nearest_out, heads, kept, WRITTEN);
    struct sl_counts n_there = counts_of(kept, heads->n, READ);
    CALL(nearest, &there, lists, n_there, found);
}

static void merge(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_counts kept,
                  struct sl_nearest nearest, struct sl_merge_threshold threshold) {
    struct sl_kv_heads there = heads_of(heads, WRITTEN);
    struct sl_nearest found = nearest_of(nearest, heads, kept, READ);
    struct sl_merge_threshold moving = threshold;
    moving.at = floats(threshold.at, 1, WRITTEN);
    moving.n_merged = led(threshold.n_merged, sizeof *threshold.n_merged, WRITTEN);
    struct sl_counts n_there = counts_of(kept, heads->n, READ);
    CALL(merge, &there, n_there, found, moving);
}

static void lost(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_mass mass, struct sl_lists keep,
                 struct sl_counts kept, double *lost_inout) {
    struct sl_kv_heads there = heads_of(heads, READ);
    struct sl_mass from = mass;
    from.x = vectors_of(mass.x, heads, mass.group, READ);
    struct sl_lists lists = slots_of(keep, heads, kept, false, READ);
    double *to = led(lost_inout, sizeof *to, WRITTEN);
    struct sl_counts n_there = counts_of(kept, heads->n, READ);
    CALL(lost, &there, from, lists, n_there, to);
}

static void put_rows(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists slots,
                     struct sl_counts n, const void *const *rows) {
    struct sl_kv_heads there = heads_of(heads, WRITTEN);
    const void *from[MOST_HEADS];
    for (int h = 0; h < heads->n; h++) {
        const struct sl_page_layout *work = heads->kv[h].work;
        size_t row_bytes = (size_t)work->head_dim * (size_t)sl_kv_format_bits(work->format) / 8;
        from[h] = led(rows[h], 2 * count_of(n, h) * row_bytes, READ);
    }
    struct sl_lists lists = slots_of(slots, heads, n, false, READ);
    struct sl_counts n_there = counts_of(n, heads->n, READ);
    CALL(put_rows, &there, lists, n_there, from);
}

static void scan(struct sl_stream *stream, const struct sl_scan_call *args) {
    struct sl_scan_call to = *args;
    size_t n = (size_t)args->n_heads * args->n_pieces, end = 0;
    struct sl_scan_piece *pieces = calloc(n + 1, sizeof *pieces);
    assert_non_null(pieces);
    for (size_t i = 0; i < n; i++) {
        const struct sl_scan_piece *piece = &args->pieces[i];
        size_t last = i / args->n_pieces * args->out.stride + piece->at + (piece->end - piece->begin);
        pieces[i] = *piece;
        pieces[i].index = led(piece->index, piece->layout.bytes, READ);
        end = last > end && piece->begin < piece->end ? last : end;
    }
    to.pieces = pieces;
    to.q = floats(args->q, (int64_t)args->n_heads * args->n_channels, READ);
    to.out.at = floats(args->out.at, (int64_t)end, WRITTEN);
    CALL(scan, &to);
    free(pieces);
}

void tested_evict_fill(struct sl_ops *ops) {
    ops->read_state = read_state;
    ops->write_state = write_state;
    ops->spread = spread;
    ops->mean_state = mean_state;
    ops->pool = pool;
    ops->mean_group = mean_group;
    ops->recency = recency;
    ops->chance = chance;
    ops->value_change = value_change;
    ops->share = share;
    ops->variance = variance;
    ops->protect = protect;
    ops->spare = spare;
    ops->budgets = budgets;
    ops->select = select_slots;
    ops->gather = gather;
    ops->nearest = nearest;
    ops->merge = merge;
    ops->lost = lost;
    ops->put_rows = put_rows;
    ops->scan = scan;
}
