// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: operations on pages and slots that are long enough to divide by KV heads. Rank 0 executes the others
 *          (first.c).
 */
#include "engine/tensor/ranks/internal.h"

// An operation on heads: the union of the arguments that operations take besides the heads.
struct heads_call {
    struct sl_ranks_call call;
    const struct sl_kv_heads *heads;
    int group; // query heads of each KV head in x
    struct sl_vectors x, y, out;
    struct sl_lists keep, lists;
    struct sl_nearest nearest;
    struct sl_counts n;
    bool flag;
    uint32_t n_pages;
    void *const *to;
    const void *const *rows;
};

static size_t slots_of(const struct sl_kv_heads *heads) {
    size_t n = 0;
    for (int h = 0; h < heads->n; h++) {
        n += heads->kv[h].n_slots;
    }
    return n;
}

// Returns the rank's heads; n is 0 where it has none.
static struct sl_kv_heads heads_of(const struct heads_call *c, int rank, int *first_out) {
    struct sl_share share = sl_share_of(c->heads->n, rank, c->call.n);
    *first_out = (int)share.first;
    return sl_ranks_heads(c->call.ranks, rank, sl_kv_heads_part(*c->heads, (int)share.first, (int)share.n));
}

static size_t width_of(const struct sl_kv_heads *heads) {
    return heads->n > 0 ? (size_t)heads->kv[0].work->head_dim : 0;
}

// Defines a rank's part of an operation on heads, whose further arguments follow: c is the call, and `first` the first of
// the rank's heads.
#define PART(op, ...)                                                                                                  \
    static void op##_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {                      \
        const struct heads_call *c = (const struct heads_call *)call;                                                  \
        int first;                                                                                                     \
        struct sl_kv_heads part = heads_of(c, rank, &first);                                                           \
        if (part.n > 0) {                                                                                              \
            call->ranks->each->op(stream, &part, __VA_ARGS__);                                                         \
        }                                                                                                              \
    }

// Calls the parts of an operation that touches `each` numbers of every slot. The further arguments set fields of the
// call.
#define RUN(op, each, ...)                                                                                             \
    do {                                                                                                               \
        struct heads_call c = {                                                                                        \
            .call = sl_ranks_call(stream, (each)*slots_of(heads), op##_part), .heads = heads, __VA_ARGS__};            \
        SL_RANKS_RUN(c);                                                                                               \
    } while (0)

// --- pages -----------------------------------------------------------------------------------------------------------

PART(quantize, c->n_pages, c->to + (size_t)first * c->n_pages)
PART(gather, sl_lists_from(c->keep, first), sl_counts_from(c->n, first))
PART(put_rows, sl_lists_from(c->lists, first), sl_counts_from(c->n, first), c->rows + first)

static void quantize(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to) {
    RUN(quantize, 2 * width_of(heads), .n_pages = n_pages, .to = to);
}

static void gather(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                   struct sl_counts kept) {
    RUN(gather, 2 * width_of(heads), .keep = keep, .n = kept);
}

static void put_rows(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists slots,
                     struct sl_counts n, const void *const *rows) {
    RUN(put_rows, width_of(heads), .lists = slots, .n = n, .rows = rows);
}

struct scan_call {
    struct sl_ranks_call call;
    struct sl_scan_call args;
};

static void scan_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    struct sl_scan_call part = ((const struct scan_call *)call)->args;
    struct sl_share share = sl_share_of(part.n_heads, rank, call->n);
    part.pieces += (size_t)share.first * part.n_pieces;
    part.q += share.first * part.n_channels;
    part.out = sl_vectors_from(part.out, share.first);
    part.n_heads = (int)share.n;
    if (part.n_heads > 0) {
        call->ranks->each->scan(stream, &part);
    }
}

static void scan(struct sl_stream *stream, const struct sl_scan_call *args) {
    size_t work = 0;
    for (size_t i = 0; i < (size_t)args->n_heads * args->n_pieces; i++) {
        work += (size_t)(args->pieces[i].end - args->pieces[i].begin) * (size_t)args->n_channels;
    }
    struct scan_call c = {sl_ranks_call(stream, work, scan_part), *args};
    SL_RANKS_RUN(c);
}

// --- scores and selecting slots --------------------------------------------------------------------------------------

PART(value_change, c->group, sl_vectors_from(c->x, (int64_t)first * c->group), c->flag, sl_vectors_from(c->out, first))
PART(select, sl_vectors_from(c->x, first), sl_vectors_from(c->y, first), c->flag, sl_counts_from(c->n, first),
     sl_lists_from(c->keep, first))
PART(nearest, sl_lists_from(c->keep, first), sl_counts_from(c->n, first),
     (struct sl_nearest){sl_lists_from(c->nearest.evicted, first), sl_lists_from(c->nearest.into, first),
                         sl_vectors_from(c->nearest.cosine, first)})

static void value_change(struct sl_stream *stream, const struct sl_kv_heads *heads, int group,
                         struct sl_vectors weights, bool mean_center, struct sl_vectors out) {
    RUN(value_change, (size_t)group * width_of(heads), .group = group, .x = weights, .flag = mean_center, .out = out);
}

static void select_slots(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                         struct sl_vectors ties, bool newest, struct sl_counts kept, struct sl_lists keep_out) {
    RUN(select, 4, .x = scores, .y = ties, .flag = newest, .n = kept, .keep = keep_out);
}

static void nearest(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                    struct sl_counts kept, struct sl_nearest nearest_out) {
    RUN(nearest, SL_RANKS_LEAST_WORK, .keep = keep, .n = kept, .nearest = nearest_out);
}

// --- publishing heads ------------------------------------------------------------------------------------------------

struct publish_call {
    struct sl_ranks_call call;
    struct sl_kv_heads heads;
    struct sl_ranks_published *published;
};

// Publishes all heads on every rank: where they cannot be divided evenly, a rank attends to another rank's.
static void publish_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct publish_call *c = (const struct publish_call *)call;
    struct sl_kv_heads heads = c->heads;
    c->published->status[rank] = call->ranks->each->publish(stream, &heads, &call->ranks->errors[rank]);
    c->published->of[rank] = heads.published;
}

// Publishes nothing where memory is one, but still fails where a rank is lost, which ends the step.
static enum sl_status publish(struct sl_stream *stream, struct sl_kv_heads *heads, struct sl_error *err) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    enum sl_status status = sl_ranks_check(ranks, err);
    if (status != SL_OK || !ranks->apart) {
        return status;
    }
    struct sl_ranks_published *published = &ranks->published[ranks->n_published++ % SL_RANKS_PUBLISHED];
    struct publish_call c = {{ranks, ranks->n, publish_part}, *heads, published};
    SL_RANKS_RUN(c);
    status = sl_ranks_check(ranks, err);
    for (int r = 0; r < ranks->n && status == SL_OK; r++) {
        status = sl_ranks_say_whose(r, ranks->n, published->status[r], &ranks->errors[r], err);
    }
    heads->published = published;
    heads->first = 0;
    return status;
}

void sl_ranks_fill_heads(struct sl_ops *ops) {
    ops->publish = publish;
    ops->quantize = quantize;
    ops->gather = gather;
    ops->put_rows = put_rows;
    ops->scan = scan;
    ops->value_change = value_change;
    ops->select = select_slots;
    ops->nearest = nearest;
}
