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

// Begins a call that touches `each` numbers of every slot.
static struct heads_call call_of(struct sl_stream *stream, const struct sl_kv_heads *heads, size_t each,
                                 void (*run)(const struct sl_ranks_call *, int, struct sl_stream *)) {
    return (struct heads_call){.call = sl_ranks_call(stream, each * slots_of(heads), run), .heads = heads, .group = 1};
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

// --- pages -----------------------------------------------------------------------------------------------------------

static void quantize_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct heads_call *c = (const struct heads_call *)call;
    int first;
    struct sl_kv_heads part = heads_of(c, rank, &first);
    if (part.n > 0) {
        call->ranks->each->quantize(stream, &part, c->n_pages, c->to + (size_t)first * c->n_pages);
    }
}

static void quantize(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to) {
    struct heads_call c = call_of(stream, heads, 2 * width_of(heads), quantize_part);
    c.n_pages = n_pages;
    c.to = to;
    SL_RANKS_RUN(c);
}

static void gather_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct heads_call *c = (const struct heads_call *)call;
    int first;
    struct sl_kv_heads part = heads_of(c, rank, &first);
    if (part.n > 0) {
        call->ranks->each->gather(stream, &part, sl_lists_from(c->keep, first), sl_counts_from(c->n, first));
    }
}

static void gather(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                   struct sl_counts kept) {
    struct heads_call c = call_of(stream, heads, 2 * width_of(heads), gather_part);
    c.keep = keep;
    c.n = kept;
    SL_RANKS_RUN(c);
}

static void put_rows_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct heads_call *c = (const struct heads_call *)call;
    int first;
    struct sl_kv_heads part = heads_of(c, rank, &first);
    if (part.n > 0) {
        call->ranks->each->put_rows(stream, &part, sl_lists_from(c->lists, first), sl_counts_from(c->n, first),
                                    c->rows + first);
    }
}

static void put_rows(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists slots,
                     struct sl_counts n, const void *const *rows) {
    struct heads_call c = call_of(stream, heads, width_of(heads), put_rows_part);
    c.lists = slots;
    c.n = n;
    c.rows = rows;
    SL_RANKS_RUN(c);
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

// --- scores ----------------------------------------------------------------------------------------------------------

static void value_change_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct heads_call *c = (const struct heads_call *)call;
    int first;
    struct sl_kv_heads part = heads_of(c, rank, &first);
    if (part.n > 0) {
        call->ranks->each->value_change(stream, &part, c->group, sl_vectors_from(c->x, (int64_t)first * c->group),
                                        c->flag, sl_vectors_from(c->out, first));
    }
}

static void value_change(struct sl_stream *stream, const struct sl_kv_heads *heads, int group,
                         struct sl_vectors weights, bool mean_center, struct sl_vectors out) {
    struct heads_call c = call_of(stream, heads, (size_t)group * width_of(heads), value_change_part);
    c.group = group;
    c.x = weights;
    c.flag = mean_center;
    c.out = out;
    SL_RANKS_RUN(c);
}

// --- selecting slots -------------------------------------------------------------------------------------------------

static void select_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct heads_call *c = (const struct heads_call *)call;
    int first;
    struct sl_kv_heads part = heads_of(c, rank, &first);
    if (part.n > 0) {
        call->ranks->each->select(stream, &part, sl_vectors_from(c->x, first), sl_vectors_from(c->y, first), c->flag,
                                  sl_counts_from(c->n, first), sl_lists_from(c->keep, first));
    }
}

static void select_slots(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                         struct sl_vectors ties, bool newest, struct sl_counts kept, struct sl_lists keep_out) {
    struct heads_call c = call_of(stream, heads, 4, select_part);
    c.x = scores;
    c.y = ties;
    c.flag = newest;
    c.n = kept;
    c.keep = keep_out;
    SL_RANKS_RUN(c);
}

static void nearest_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct heads_call *c = (const struct heads_call *)call;
    int first;
    struct sl_kv_heads part = heads_of(c, rank, &first);
    if (part.n > 0) {
        const struct sl_nearest out = {sl_lists_from(c->nearest.evicted, first), sl_lists_from(c->nearest.into, first),
                                       sl_vectors_from(c->nearest.cosine, first)};
        call->ranks->each->nearest(stream, &part, sl_lists_from(c->keep, first), sl_counts_from(c->n, first), out);
    }
}

static void nearest(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                    struct sl_counts kept, struct sl_nearest nearest_out) {
    struct heads_call c = call_of(stream, heads, SL_RANKS_LEAST_WORK, nearest_part);
    c.keep = keep;
    c.n = kept;
    c.nearest = nearest_out;
    SL_RANKS_RUN(c);
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
