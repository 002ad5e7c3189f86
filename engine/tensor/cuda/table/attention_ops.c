// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: rows into pages, and attention over them. See ops.h.
 *
 * Design: adjacent calls that are alike (heads, scale, strides, window, rotation, formats) are one launch. So a decode
 *         step is one launch, unless its sessions store keys in different ways. Where keys are rotated by slot, the
 *         angles of slots are computed once and kept in the stream.
 */
#include "engine/tensor/cuda/table/ops.h"

#include <assert.h>
#include <string.h>

// --- angles of slots -------------------------------------------------------------------------------------------------

// Compares the contents: another model may have its frequencies at the same address.
static bool is_kept(const struct gpu_slot_angles *kept, const struct sl_rope *rope) {
    return kept->rotary_dim == rope->rotary_dim && kept->scale == rope->scale &&
           memcmp(kept->inv_freq, rope->inv_freq, (size_t)rope->rotary_dim / 2 * sizeof *rope->inv_freq) == 0;
}

// Computes the angles of at least slots 0 .. n_slots - 1. Returns false when there is no room; the next wait says so.
static bool make_slot_angles(struct gpu_stream *s, const struct sl_rope *rope, uint32_t n_slots) {
    struct gpu_slot_angles *kept = &s->slot_angles;
    if (is_kept(kept, rope) && kept->n >= n_slots) {
        return true;
    }
    uint32_t n = is_kept(kept, rope) ? 2 * kept->n : 0;
    n = n > n_slots ? n : n_slots;
    size_t half = (size_t)rope->rotary_dim / 2;
    void *here;
    const double *inv_freq = sl_gpu_describe(s, rope->inv_freq, half * sizeof *inv_freq);
    bool there = inv_freq != NULL && sl_gpu_grow(s, &kept->cosines, n * half * sizeof(float)) &&
                 sl_gpu_grow(s, &kept->sines, n * half * sizeof(float));
    // This comes last: data that is queued between begin and end may leave the half of the ring, which is then
    // overwritten without a wait for it.
    int64_t *positions = there ? sl_gpu_describe_begin(s, n * sizeof *positions, &here) : NULL;
    if (positions == NULL) {
        *kept = (struct gpu_slot_angles){.cosines = kept->cosines, .sines = kept->sines};
        return false;
    }
    for (uint32_t j = 0; j < n; j++) {
        ((int64_t *)here)[j] = j;
    }
    sl_gpu_describe_end(s, positions, n * sizeof *positions);
    struct sl_rope of = {rope->head_dim, rope->rotary_dim, inv_freq, rope->scale};
    sl_gpu_angles(s->queue, &of, positions, n, kept->cosines.at, kept->sines.at);
    kept->rotary_dim = rope->rotary_dim;
    kept->scale = rope->scale;
    memcpy(kept->inv_freq, rope->inv_freq, half * sizeof *rope->inv_freq);
    kept->n = n;
    return true;
}

// --- calls -----------------------------------------------------------------------------------------------------------

static const struct gpu_published *published(const struct sl_attend *a) {
    return a->heads.published;
}

static bool alike(const struct sl_attend *a, const struct sl_attend *b) {
    return a->n_heads == b->n_heads && a->heads.n == b->heads.n && a->head_dim == b->head_dim &&
           a->q_stride == b->q_stride && a->kv_stride == b->kv_stride && a->out_stride == b->out_stride &&
           a->scale == b->scale && a->window == b->window && a->rope == b->rope &&
           a->heads.kv[0].work->format == b->heads.kv[0].work->format &&
           published(a)->has_packed == published(b)->has_packed &&
           published(a)->packed_format == published(b)->packed_format;
}

// Calls that are alike, as a launch takes them.
struct launch {
    const struct gpu_attend *calls; // device memory; NULL: no room
    int n, most_rows;
    uint32_t most_slots;
    struct gpu_attention shape;
};

// Describes as many of calls[0 .. n_calls) as are alike; `before`: for attend_before, or NULL.
static struct launch describe(struct gpu_stream *s, const struct sl_attend *calls, int n_calls,
                              const struct sl_softmax *before) {
    const struct sl_attend *first = &calls[0];
    struct launch l = {.shape = {.n_heads = first->n_heads,
                                 .n_kv_heads = first->heads.n,
                                 .head_dim = first->head_dim,
                                 .q_stride = first->q_stride,
                                 .kv_stride = first->kv_stride,
                                 .out_stride = first->out_stride,
                                 .scale = first->scale,
                                 .window = first->window,
                                 .format = first->heads.kv[0].work->format,
                                 .has_packed = published(first)->has_packed,
                                 .packed_format = published(first)->packed_format,
                                 .unfinished = before != NULL}};
    while (l.n < n_calls && alike(first, &calls[l.n])) {
        l.n++;
    }
    void *here;
    struct gpu_attend *there = sl_gpu_describe_begin(s, (size_t)l.n * sizeof *there, &here);
    if (there == NULL) {
        return l;
    }
    for (int i = 0; i < l.n; i++) {
        const struct sl_attend *c = &calls[i];
        const struct sl_softmax *softmax = before != NULL ? before : c->before;
        uint32_t slots = sl_gpu_most_slots(&c->heads);
        l.most_slots = slots > l.most_slots ? slots : l.most_slots;
        l.most_rows = c->m > l.most_rows ? c->m : l.most_rows;
        ((struct gpu_attend *)here)[i] = (struct gpu_attend){.q = c->q,
                                                             .k = c->k,
                                                             .v = c->v,
                                                             .m = c->m,
                                                             .heads = sl_gpu_heads(s, &c->heads),
                                                             .positions = c->positions,
                                                             .out = c->out,
                                                             .lse = c->lse,
                                                             .before_out = softmax != NULL ? softmax->out : NULL,
                                                             .before_max = softmax != NULL ? softmax->max : NULL,
                                                             .before_sum = softmax != NULL ? softmax->sum : NULL};
    }
    sl_gpu_describe_end(s, there, (size_t)l.n * sizeof *there);
    if (first->rope != NULL) {
        if (!make_slot_angles(s, first->rope, l.most_slots)) {
            return l;
        }
        l.shape.slot_cosines = s->slot_angles.cosines.at;
        l.shape.slot_sines = s->slot_angles.sines.at;
        l.shape.rotary_dim = first->rope->rotary_dim;
    }
    l.calls = there;
    return l;
}

static void append(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    for (int i = 0, n = 0; i < n_calls; i += n) {
        struct launch l = describe(s, calls + i, n_calls - i, NULL);
        n = l.n;
        if (l.calls != NULL) {
            sl_gpu_append(s->queue, l.calls, l.n, l.most_rows, &l.shape);
        }
    }
}

static void run(struct gpu_stream *s, const struct launch *l) {
    size_t bytes = l->calls != NULL ? sl_gpu_attend_work(l->n, l->most_rows, l->most_slots, &l->shape) : 0;
    void *work = bytes > 0 ? sl_gpu_scratch(s, bytes) : NULL;
    if (l->calls != NULL && (bytes == 0 || work != NULL)) {
        sl_gpu_attend(s->queue, l->calls, l->n, l->most_rows, l->most_slots, &l->shape, work);
    }
}

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    for (int i = 0, n = 0; i < n_calls; i += n) {
        struct launch l = describe(sl_gpu_stream(stream), calls + i, n_calls - i, NULL);
        run(sl_gpu_stream(stream), &l);
        n = l.n;
    }
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout) {
    struct launch l = describe(sl_gpu_stream(stream), args, 1, before_inout);
    run(sl_gpu_stream(stream), &l);
}

static uint32_t most_listed(const struct sl_attend *args, struct sl_counts n) {
    uint32_t most = 0;
    for (int h = 0; n.host != NULL && h < args->heads.n; h++) {
        most = n.host[h] > most ? n.host[h] : most;
    }
    return n.host != NULL ? most : sl_gpu_most_slots(&args->heads);
}

static void attend_slots(struct sl_stream *stream, const struct sl_attend *args, struct sl_lists slots,
                         struct sl_counts n) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    struct launch l = describe(s, args, 1, NULL);
    uint32_t most = most_listed(args, n);
    const uint32_t *counts = sl_gpu_counts(s, n, args->heads.n);
    size_t bytes = sl_gpu_attend_work(1, 1, most, &l.shape);
    void *work = bytes > 0 ? sl_gpu_scratch(s, bytes) : NULL;
    if (l.calls != NULL && counts != NULL && (bytes == 0 || work != NULL)) {
        sl_gpu_attend_slots(s->queue, l.calls, most, &l.shape, (struct gpu_lists){slots.at, slots.stride, counts},
                            work);
    }
}

// --- statistics ------------------------------------------------------------------------------------------------------

static void fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    struct launch l = describe(s, args, 1, NULL);
    if (l.calls != NULL) {
        const int planes[4] = {what->largest ? -1 : what->sum, what->square, what->above,
                               what->largest ? what->sum : -1};
        sl_gpu_fold(s->queue, l.calls, l.most_slots, &l.shape, first_row, planes);
    }
}

static void window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    struct launch l = describe(s, args, 1, NULL);
    if (l.calls != NULL) {
        sl_gpu_window_sums(s->queue, l.calls, l.most_slots, &l.shape, first_row, sums_out.at, sums_out.stride);
    }
}

// --- data to be sent -------------------------------------------------------------------------------------------------

#define SHARES 1024 // of a launch: their descriptions must be a small part of a ring

static void launch_collect(struct gpu_stream *s, const struct gpu_share *shares, uint32_t n, void *to) {
    const struct gpu_share *there = n > 0 ? sl_gpu_describe(s, shares, n * sizeof *shares) : NULL;
    if (there != NULL) {
        sl_gpu_collect(s->queue, there, n, to);
    }
}

static void collect(struct sl_stream *stream, const struct sl_byte_range *pieces, uint32_t n, void *to) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    struct gpu_share shares[SHARES];
    uint32_t n_shares = 0;
    size_t offset = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (size_t at = 0; at < pieces[i].bytes; at += GPU_SHARE_BYTES) {
            size_t left = pieces[i].bytes - at, bytes = left < GPU_SHARE_BYTES ? left : GPU_SHARE_BYTES;
            shares[n_shares++] = (struct gpu_share){(const char *)pieces[i].at + at, offset + at, (uint32_t)bytes};
            if (n_shares == SHARES) {
                launch_collect(s, shares, n_shares, to);
                n_shares = 0;
            }
        }
        offset += pieces[i].bytes;
    }
    launch_collect(s, shares, n_shares, to);
}

// At most this many pieces and parts go into one launch: their descriptions must be a small part of a ring, too.
#define DIGESTS 64
#define PARTS   4096

static void launch_digest(struct gpu_stream *s, const struct gpu_digest *pieces, uint32_t n, const uint32_t *parts,
                          uint32_t n_parts, uint64_t *to) {
    const uint32_t *parts_there = sl_gpu_describe(s, parts, n_parts * sizeof *parts);
    const struct gpu_digest *there = parts_there != NULL ? sl_gpu_describe(s, pieces, n * sizeof *pieces) : NULL;
    if (there != NULL) {
        sl_gpu_digest(s->queue, there, n, parts_there, to);
    }
}

static void digest(struct sl_stream *stream, const struct sl_digest_piece *pieces, uint32_t n, uint64_t *digests_out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    struct gpu_digest of[DIGESTS];
    uint32_t parts[PARTS];
    for (uint32_t first = 0, count; first < n; first += count) {
        uint32_t n_parts = 0;
        for (count = 0; count < DIGESTS && first + count < n; count++) {
            const struct sl_digest_piece *piece = &pieces[first + count];
            assert(piece->n_parts <= PARTS);
            if (n_parts + piece->n_parts > PARTS) {
                break;
            }
            of[count] = (struct gpu_digest){piece->data, n_parts, piece->n_parts};
            memcpy(&parts[n_parts], piece->part_bytes, piece->n_parts * sizeof *parts);
            n_parts += piece->n_parts;
        }
        launch_digest(s, of, count, parts, n_parts, &digests_out[first]);
    }
}

void sl_gpu_attention_fill(struct sl_ops *ops) {
    ops->collect = collect;
    ops->digest = digest;
    ops->append = append;
    ops->attend = attend;
    ops->attend_before = attend_before;
    ops->attend_slots = attend_slots;
    ops->fold = fold;
    ops->window_sums = window_sums;
}
