// SPDX-License-Identifier: Apache-2.0
// Purpose: scores and selection of slots. See ops.h.
#include <assert.h>

#include "engine/tensor/cuda/table/ops.h"

static struct gpu_heads heads_of(const struct gpu_stream *s, const struct sl_kv_heads *heads) {
    return (struct gpu_heads){sl_gpu_heads(s, heads), heads->n, sl_gpu_most_slots(heads), heads->kv[0].work};
}

// Defines an operation on heads that is one launch and needs no memory.
#define LAUNCH(op, parameters, ...)                                                                                    \
    static void op(struct sl_stream *stream, const struct sl_kv_heads *heads, LISTED parameters) {                     \
        struct gpu_stream *s = sl_gpu_stream(stream);                                                                  \
        sl_gpu_##op(s->queue, heads_of(s, heads), __VA_ARGS__);                                                        \
    }
#define LISTED(...) __VA_ARGS__

// --- scores ----------------------------------------------------------------------------------------------------------

LAUNCH(read_state, (int plane, struct sl_vectors out), plane, out)
LAUNCH(write_state, (int plane, int m, const float *values), plane, m, values)
LAUNCH(mean_state, (int64_t n_tokens, struct sl_vectors mean_out, struct sl_vectors deviation_out), n_tokens, mean_out,
       deviation_out)
LAUNCH(pool, (int group, struct sl_vectors x, struct sl_pooling pooling, struct sl_vectors out), group, x, pooling, out)
LAUNCH(mean_group, (int group, struct sl_vectors x, struct sl_vectors out), group, x, out)
LAUNCH(recency, (struct sl_vectors out), out)
LAUNCH(chance, (uint64_t seed, int layer, int64_t offset, struct sl_vectors out), seed, layer, offset, out)
LAUNCH(share, (struct sl_vectors x_inout), x_inout)
LAUNCH(variance, (int plane, double *out), plane, out)

static void spread(struct sl_stream *stream, const float *values, int n, int m, struct sl_vectors out) {
    sl_gpu_spread(sl_gpu_stream(stream)->queue, values, n, m, out);
}

static void value_change(struct sl_stream *stream, const struct sl_kv_heads *heads, int group,
                         struct sl_vectors weights, bool mean_center, struct sl_vectors out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    struct gpu_heads there = heads_of(s, heads);
    void *work = sl_gpu_scratch(s, sl_gpu_value_change_work(there, group));
    if (work != NULL) {
        sl_gpu_value_change(s->queue, there, group, weights, mean_center, work, out);
    }
}

// --- selecting slots -------------------------------------------------------------------------------------------------

static void protect(struct sl_stream *stream, const struct sl_kv_heads *heads, const struct sl_protection *protections,
                    struct sl_vectors x_inout) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const void *there = sl_gpu_describe(s, protections, (size_t)heads->n * sizeof *protections);
    if (there != NULL) {
        sl_gpu_protect(s->queue, heads_of(s, heads), there, x_inout);
    }
}

static void spare(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists listed, struct sl_counts n,
                  struct sl_vectors x_inout) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const uint32_t *counts = sl_gpu_counts(s, n, heads->n);
    if (counts != NULL) {
        sl_gpu_spare(s->queue, heads_of(s, heads), listed, counts, x_inout);
    }
}

static void budgets(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                    uint32_t budget, struct sl_vectors, struct sl_counts kept_out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    void *scratch = sl_gpu_scratch(s, sl_gpu_budgets_work(heads->n));
    if (scratch != NULL) {
        sl_gpu_budgets(s->queue, heads_of(s, heads), scores, budget, scratch, kept_out.device);
    }
}

static void select_slots(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                         struct sl_vectors ties, bool newest, struct sl_counts kept, struct sl_lists keep_out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const uint32_t *counts = sl_gpu_counts(s, kept, heads->n);
    if (counts != NULL) {
        sl_gpu_select(s->queue, heads_of(s, heads), scores, ties, newest, counts, keep_out);
    }
}

static void gather(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                   struct sl_counts kept) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const uint32_t *counts = sl_gpu_counts(s, kept, heads->n);
    if (counts != NULL) {
        sl_gpu_gather(s->queue, heads_of(s, heads), keep, counts);
    }
}

static void nearest(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                    struct sl_counts kept, struct sl_nearest nearest_out) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    struct gpu_heads there = heads_of(s, heads);
    const uint32_t *counts = sl_gpu_counts(s, kept, heads->n);
    size_t bytes = sl_gpu_nearest_work(there);
    void *work = bytes > 0 ? sl_gpu_scratch(s, bytes) : NULL;
    if (counts != NULL && (bytes == 0 || work != NULL)) {
        sl_gpu_nearest(s->queue, there, keep, counts, nearest_out, work);
    }
}

static void merge(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_counts kept,
                  struct sl_nearest nearest, struct sl_merge_threshold threshold) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const uint32_t *counts = sl_gpu_counts(s, kept, heads->n);
    void *work = sl_gpu_scratch(s, sl_gpu_merge_work(heads->n));
    if (counts != NULL && work != NULL) {
        sl_gpu_merge(s->queue, heads_of(s, heads), counts, nearest, threshold, work);
    }
}

// --- estimates of errors ---------------------------------------------------------------------------------------------

static void lost(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_mass mass, struct sl_lists keep,
                 struct sl_counts kept, double *lost_inout) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const uint32_t *counts = sl_gpu_counts(s, kept, heads->n);
    void *work = sl_gpu_scratch(s, sl_gpu_lost_work(heads->n));
    if (counts != NULL && work != NULL) {
        sl_gpu_lost(s->queue, heads_of(s, heads), mass, keep, counts, work, lost_inout);
    }
}

static void page_error(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to,
                       struct sl_page_error *error_inout) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    void *there = sl_gpu_describe(s, to, (size_t)heads->n * n_pages * sizeof *to);
    void *work = sl_gpu_scratch(s, sl_gpu_page_error_work(heads->n, n_pages));
    if (there != NULL && work != NULL) {
        sl_gpu_page_error(s->queue, heads_of(s, heads), n_pages, there, work, error_inout);
    }
}

// --- pages and rows --------------------------------------------------------------------------------------------------

static void quantize(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    void *there = sl_gpu_describe(s, to, (size_t)heads->n * n_pages * sizeof *to);
    if (there != NULL) {
        sl_gpu_quantize(s->queue, sl_gpu_heads(s, heads), heads->n, n_pages, there);
    }
}

static void mean_query(struct sl_stream *stream, const struct sl_attend *args, const float *q, float *means_out) {
    sl_gpu_mean_query(sl_gpu_stream(stream)->queue, q, args->heads.n, args->n_heads / args->heads.n, args->head_dim,
                      means_out);
}

static void put_rows(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists slots,
                     struct sl_counts n, const void *const *rows) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    const uint32_t *counts = sl_gpu_counts(s, n, heads->n);
    const void *there = sl_gpu_describe(s, rows, (size_t)heads->n * sizeof *rows);
    if (counts != NULL && there != NULL) {
        sl_gpu_put_rows(s->queue, sl_gpu_heads(s, heads), heads->n, sl_gpu_most_slots(heads),
                        (struct gpu_lists){slots.at, slots.stride, counts}, there);
    }
}

#define PIECES 512 // of a launch: their descriptions must be a small part of a ring

static void scan(struct sl_stream *stream, const struct sl_scan_call *args) {
    struct gpu_stream *s = sl_gpu_stream(stream);
    uint32_t n = (uint32_t)args->n_heads * args->n_pieces;
    for (uint32_t first = 0, n_here; first < n; first += n_here) {
        void *here;
        uint32_t most = 0;
        n_here = n - first < PIECES ? n - first : PIECES;
        struct gpu_scan_piece *there = sl_gpu_describe_begin(s, n_here * sizeof *there, &here);
        if (there == NULL) {
            return;
        }
        for (uint32_t i = 0; i < n_here; i++) {
            const struct sl_scan_piece *piece = &args->pieces[first + i];
            size_t h = (first + i) / args->n_pieces;
            const char *index = piece->index;
            ((struct gpu_scan_piece *)here)[i] = (struct gpu_scan_piece){0};
            if (piece->begin == piece->end) {
                continue;
            }
            assert(piece->end <= piece->layout.capacity && args->n_channels <= SL_MAX_HEAD_DIM &&
                   piece->layout.format == args->pieces[0].layout.format);
            ((struct gpu_scan_piece *)here)[i] =
                (struct gpu_scan_piece){.codes = index + piece->layout.codes,
                                        .scale = (const float *)(index + piece->layout.scale),
                                        .q = args->q + h * (size_t)args->n_channels,
                                        .out = args->out.at + h * args->out.stride + piece->at,
                                        .channel_bytes = piece->layout.channel_bytes,
                                        .begin = piece->begin,
                                        .end = piece->end};
            most = piece->end - piece->begin > most ? piece->end - piece->begin : most;
        }
        sl_gpu_describe_end(s, there, n_here * sizeof *there);
        if (most > 0) {
            sl_gpu_scan(s->queue, args->pieces[0].layout.format, there, n_here, args->n_channels, most);
        }
    }
}

void sl_gpu_evict_fill(struct sl_ops *ops) {
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
    ops->page_error = page_error;
    ops->quantize = quantize;
    ops->mean_query = mean_query;
    ops->put_rows = put_rows;
    ops->scan = scan;
}
