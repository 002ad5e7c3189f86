// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention on ranks.
 *
 * Design: query heads are divided as evenly as possible. Where the KV heads can be divided evenly, a rank has the same
 *         KV heads of every call, whose pages it has written. Where each rank has memory of its own, the KV heads are
 *         divided even if the shares differ. Otherwise the query heads of all calls form one row, and each rank has a
 *         piece of it: the first calls go to the first rank, and only where a piece ends may two ranks share a call, or
 *         a KV head's query heads. Operations that write to slots, or sum over a KV head's query heads, are divided by
 *         KV heads.
 */
#include "engine/tensor/ranks/internal.h"

// A rank gets this many calls of a step at a time: their arrays fit on the stack.
#define MOST_CALLS 24

static int group_of(const struct sl_attend *a) {
    return a->n_heads / a->heads.n;
}

// Returns query heads [first, first + n) of a call for a rank. They are all of some KV heads, or several of one.
static struct sl_attend part_of(const struct sl_ranks *ranks, int rank, const struct sl_attend *a,
                                struct sl_share heads) {
    struct sl_attend part = *a;
    int group = group_of(a), first = (int)heads.first, n = (int)heads.n, d = a->head_dim;
    int kv_first = first / group, n_kv = n < group ? 1 : n / group;
    const float *k = sl_ranks_here(ranks, rank, a->k), *v = sl_ranks_here(ranks, rank, a->v);
    float *out = sl_ranks_here(ranks, rank, a->out);
    part.q = (const float *)sl_ranks_here(ranks, rank, a->q) + (int64_t)first * d;
    part.q_stride = sl_attend_q_stride(a);
    part.kv_stride = a->kv_stride != 0 ? a->kv_stride : (int64_t)a->heads.n * d;
    part.k = k != NULL ? k + (int64_t)kv_first * d : NULL;
    part.v = v != NULL ? v + (int64_t)kv_first * d : NULL;
    part.n_heads = n;
    part.heads = sl_ranks_heads(ranks, rank, sl_kv_heads_part(a->heads, kv_first, n_kv));
    part.out = out != NULL ? out + (int64_t)first * d : NULL;
    part.out_stride = sl_attend_out_stride(a);
    part.lse = a->lse != NULL ? a->lse + (int64_t)first * a->m : NULL;
    return part;
}

static struct sl_softmax softmax_part(const struct sl_attend *a, const struct sl_softmax *x, int first) {
    return (struct sl_softmax){x->out + (int64_t)first * a->head_dim, x->max + (int64_t)first * a->m,
                               x->sum + (int64_t)first * a->m};
}

// Returns how many query heads from `first` on form one call: part of a KV head that `end` or `first` cuts, or whole
// ones.
static int heads_from(int first, int end, int group) {
    int to_next = group - first % group;
    if (first % group != 0 || first + to_next > end) {
        return first + to_next < end ? to_next : end - first;
    }
    return (end - first) / group * group;
}

// --- by query heads --------------------------------------------------------------------------------------------------

struct attend_call {
    struct sl_ranks_call call;
    const struct sl_attend *calls;
    int n_calls;
    int64_t n_heads;           // for attend: query heads of all calls; 0: those of each call are divided
    struct sl_columns columns; // of out, to gather, for the first calls
};

// Returns the rank's query heads of a call. before: the query heads of all earlier calls.
static struct sl_share heads_of_call(const struct attend_call *c, int rank, const struct sl_attend *a, int64_t before) {
    if (c->n_heads == 0) {
        return sl_share_of(a->n_heads, rank, c->call.n);
    }
    struct sl_share piece = sl_share_of(c->n_heads, rank, c->call.n);
    int64_t first = piece.first - before, end = first + piece.n;
    first = first < 0 ? 0 : first;
    end = end > a->n_heads ? a->n_heads : end;
    return (struct sl_share){first, end > first ? end - first : 0};
}

static void attend_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct attend_call *c = (const struct attend_call *)call;
    const struct sl_ops *each = call->ranks->each;
    struct sl_attend parts[MOST_CALLS];
    struct sl_softmax before[MOST_CALLS];
    int n = 0;
    int64_t passed = 0;
    for (int i = 0; i < c->n_calls; passed += c->calls[i++].n_heads) {
        const struct sl_attend *a = &c->calls[i];
        int group = group_of(a);
        struct sl_share share = heads_of_call(c, rank, a, passed);
        for (int at = (int)share.first, end = at + (int)share.n; at < end; n++) {
            if (n == MOST_CALLS) {
                each->attend(stream, parts, n);
                n = 0;
            }
            int taken = heads_from(at, end, group);
            parts[n] = part_of(call->ranks, rank, a, (struct sl_share){at, taken});
            if (a->before != NULL) {
                before[n] = softmax_part(a, a->before, at);
                parts[n].before = &before[n];
            }
            at += taken;
        }
    }
    if (n > 0) {
        each->attend(stream, parts, n);
    }
    sl_ranks_gather_part(call, rank, stream, &c->columns);
}

// Returns the columns of `out` that ranks wrote, for the calls from *next on whose rows follow each other. Sets *next
// to the first call after them. Heads are divided into n_shares shares. Returns none where out is not replicated.
static struct sl_columns columns_of(const struct sl_ranks *ranks, const struct sl_attend *calls, int n_calls,
                                    int n_shares, int *next) {
    const struct sl_attend *a = &calls[*next];
    struct sl_columns columns = {.stride = sl_attend_out_stride(a), .n_parts = ranks->n};
    int64_t share_columns = (int64_t)(a->n_heads / n_shares) * a->head_dim;
    if (!sl_ranks_is_replicated(ranks, a->out)) {
        *next = n_calls;
        return columns;
    }
    columns.x = a->out;
    columns.bf16 = a->then != NULL && a->then->rounds_x;
    for (int r = 0; r < ranks->n; r++) {
        struct sl_share share = sl_share_of(n_shares, r, ranks->n);
        columns.bounds[r + 1] = (share.first + share.n) * share_columns;
    }
    for (; *next < n_calls && calls[*next].out == columns.x + columns.m * columns.stride; ++*next) {
        columns.m += calls[*next].m;
    }
    return columns;
}

struct gather_call {
    struct sl_ranks_call call;
    struct sl_columns columns;
};

static void gather_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    sl_ranks_gather_part(call, rank, stream, &((const struct gather_call *)call)->columns);
}

// Gathers what the call itself has not gathered: the rest of its columns, and the columns of further rows.
static void gather_rest(struct sl_ranks *ranks, const struct sl_columns *first, const struct sl_attend *calls,
                        int n_calls, int next) {
    sl_ranks_gather_rest(ranks, first);
    while (next < n_calls) {
        struct gather_call c = {{ranks, ranks->n, gather_part},
                                columns_of(ranks, calls, n_calls, calls[next].n_heads, &next)};
        SL_RANKS_RUN(c);
        sl_ranks_gather_rest(ranks, &c.columns);
    }
}

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    if (n_calls == 0) {
        return;
    }
    size_t work = 0;
    int64_t n_heads = 0;
    bool apart = sl_ranks_of(stream)->apart, divide = true; // divide: divide the KV heads of every call
    for (int i = 0; i < n_calls; i++) {
        const struct sl_attend *a = &calls[i];
        work += (size_t)a->m * (size_t)a->n_heads * (size_t)a->head_dim * a->heads.kv[0].n_slots;
        n_heads += a->n_heads;
        divide = divide && (apart || a->heads.n % sl_ranks_of(stream)->n == 0);
    }
    struct sl_ranks *ranks = sl_ranks_of(stream);
    int next = 0;
    struct attend_call c = {sl_ranks_call(stream, work, attend_part), calls, n_calls, divide ? 0 : n_heads,
                            columns_of(ranks, calls, n_calls, calls[0].n_heads, &next)};
    c.call.n = c.columns.x != NULL ? ranks->n : c.call.n; // every rank has a replica to write
    SL_RANKS_RUN(c);
    gather_rest(ranks, &c.columns, calls, n_calls, next);
}

struct before_call {
    struct sl_ranks_call call;
    const struct sl_attend *args;
    const struct sl_softmax *before;
};

static void before_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct before_call *c = (const struct before_call *)call;
    int group = group_of(c->args);
    struct sl_share share = sl_share_of(c->args->n_heads, rank, call->n);
    for (int at = (int)share.first, end = at + (int)share.n; at < end;) {
        int taken = heads_from(at, end, group);
        struct sl_attend part = part_of(call->ranks, rank, c->args, (struct sl_share){at, taken});
        struct sl_softmax before = softmax_part(c->args, c->before, at);
        call->ranks->each->attend_before(stream, &part, &before);
        at += taken;
    }
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args, const struct sl_softmax *before) {
    struct before_call c = {sl_ranks_call(stream, SIZE_MAX, before_part), args, before};
    SL_RANKS_RUN(c);
}

// --- by KV heads -----------------------------------------------------------------------------------------------------

// Sets *part to the rank's KV heads of a call; returns false where it has none.
static bool kv_part(const struct sl_ranks_call *call, int rank, const struct sl_attend *a, struct sl_attend *part_out,
                    int *first_out) {
    int group = group_of(a);
    struct sl_share share = sl_share_of(a->heads.n, rank, call->n);
    if (share.n == 0) {
        return false;
    }
    *first_out = (int)share.first;
    *part_out = part_of(call->ranks, rank, a, (struct sl_share){share.first * group, share.n * group});
    return true;
}

static void append_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct attend_call *c = (const struct attend_call *)call;
    struct sl_attend parts[MOST_CALLS];
    int n = 0, first;
    for (int i = 0; i < c->n_calls; i++) {
        n += kv_part(call, rank, &c->calls[i], &parts[n], &first);
        if (n == MOST_CALLS || (n > 0 && i + 1 == c->n_calls)) {
            call->ranks->each->append(stream, parts, n);
            n = 0;
        }
    }
}

static void append(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    size_t work = 0;
    for (int i = 0; i < n_calls; i++) {
        work += 2 * (size_t)calls[i].m * (size_t)calls[i].heads.n * (size_t)calls[i].head_dim;
    }
    struct attend_call c = {sl_ranks_call(stream, work, append_part), calls, n_calls, 0, {0}};
    SL_RANKS_RUN(c);
}

struct stats_call {
    struct sl_ranks_call call;
    const struct sl_attend *args;
    int first_row;
    const struct sl_fold *what;
    struct sl_vectors sums; // the sums of every query head
};

static void fold_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct stats_call *c = (const struct stats_call *)call;
    struct sl_attend part;
    int first;
    if (kv_part(call, rank, c->args, &part, &first)) {
        call->ranks->each->fold(stream, &part, c->first_row, c->what);
    }
}

static void fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    struct stats_call c = {sl_ranks_call(stream, SIZE_MAX, fold_part), args, first_row, what, {0}};
    SL_RANKS_RUN(c);
}

static void window_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct stats_call *c = (const struct stats_call *)call;
    struct sl_attend part;
    int first;
    if (kv_part(call, rank, c->args, &part, &first)) {
        int head = first * group_of(c->args);
        call->ranks->each->window_sums(stream, &part, c->first_row, sl_vectors_from(c->sums, head));
    }
}

static void window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row, struct sl_vectors sums) {
    struct stats_call c = {sl_ranks_call(stream, SIZE_MAX, window_part), args, first_row, NULL, sums};
    SL_RANKS_RUN(c);
}

struct slots_call {
    struct sl_ranks_call call;
    const struct sl_attend *args;
    struct sl_lists slots;
    struct sl_counts n;
    struct sl_columns columns; // of out, to gather
};

static void slots_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct slots_call *c = (const struct slots_call *)call;
    struct sl_attend part;
    int first;
    if (kv_part(call, rank, c->args, &part, &first)) {
        call->ranks->each->attend_slots(stream, &part, sl_lists_from(c->slots, first), sl_counts_from(c->n, first));
    }
    sl_ranks_gather_part(call, rank, stream, &c->columns);
}

static void attend_slots(struct sl_stream *stream, const struct sl_attend *args, struct sl_lists slots,
                         struct sl_counts n) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    int next = 0;
    struct slots_call c = {sl_ranks_call(stream, SIZE_MAX, slots_part), args, slots, n,
                           columns_of(ranks, args, 1, args->heads.n, &next)};
    SL_RANKS_RUN(c);
    sl_ranks_gather_rest(ranks, &c.columns);
}

void sl_ranks_fill_attention(struct sl_ops *ops) {
    ops->append = append;
    ops->attend = attend;
    ops->attend_before = attend_before;
    ops->fold = fold;
    ops->attend_fold = NULL;
    ops->window_sums = window_sums;
    ops->attend_slots = attend_slots;
}
