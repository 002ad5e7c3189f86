// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the operations that rank 0 executes for all ranks. They compare heads (share, budgets, merge, sums of
 *          errors), depend on a head's index among all heads (chance), or finish before other ranks would have started.
 *
 * Design: rank 0 works on all heads, wherever their pages are: data that is read once may come from another rank's
 *         memory. Nothing is done where a rank is lost, because the input that it should have written is missing.
 */
#include "engine/tensor/ranks/internal.h"

// Executes the operation in rank 0's compute stream.
#define BY_FIRST(stream, op, ...)                                                                                      \
    do {                                                                                                               \
        const struct sl_ranks *ranks_ = sl_ranks_of(stream);                                                           \
        if (!sl_ranks_is_lost(ranks_)) {                                                                               \
            ranks_->each->op(sl_ranks_compute(ranks_, 0), __VA_ARGS__);                                                \
        }                                                                                                              \
    } while (0)

// The same for operations on heads.
#define HEADS_BY_FIRST(stream, heads, op, ...)                                                                         \
    do {                                                                                                               \
        struct sl_kv_heads known_ = sl_ranks_heads(sl_ranks_of(stream), 0, *(heads));                                  \
        BY_FIRST(stream, op, &known_, __VA_ARGS__);                                                                    \
    } while (0)

// --- rows and pages --------------------------------------------------------------------------------------------------

static void pick(struct sl_stream *stream, const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m,
                 struct sl_picked *picked_out) {
    BY_FIRST(stream, pick, logits, n_vocab, asked, m, picked_out);
}

static void collect(struct sl_stream *stream, const struct sl_byte_range *pieces, uint32_t n, void *to) {
    BY_FIRST(stream, collect, pieces, n, to);
}

static void digest(struct sl_stream *stream, const struct sl_digest_piece *pieces, uint32_t n, uint64_t *digests_out) {
    BY_FIRST(stream, digest, pieces, n, digests_out);
}

static void mean_query(struct sl_stream *stream, const struct sl_attend *args, const float *q, float *means_out) {
    BY_FIRST(stream, mean_query, args, q, means_out);
}

// --- scores ----------------------------------------------------------------------------------------------------------

static void read_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, struct sl_vectors out) {
    HEADS_BY_FIRST(stream, heads, read_state, plane, out);
}

static void write_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, int m,
                        const float *values) {
    HEADS_BY_FIRST(stream, heads, write_state, plane, m, values);
}

static void spread(struct sl_stream *stream, const float *values, int n, int m, struct sl_vectors out) {
    BY_FIRST(stream, spread, values, n, m, out);
}

static void mean_state(struct sl_stream *stream, const struct sl_kv_heads *heads, int64_t n_tokens,
                       struct sl_vectors mean_out, struct sl_vectors deviation_out) {
    HEADS_BY_FIRST(stream, heads, mean_state, n_tokens, mean_out, deviation_out);
}

static void pool(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x, bool max,
                 int kernel, int64_t window, struct sl_vectors out) {
    HEADS_BY_FIRST(stream, heads, pool, group, x, max, kernel, window, out);
}

static void mean_group(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                       struct sl_vectors out) {
    HEADS_BY_FIRST(stream, heads, mean_group, group, x, out);
}

static void recency(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors out) {
    HEADS_BY_FIRST(stream, heads, recency, out);
}

static void chance(struct sl_stream *stream, const struct sl_kv_heads *heads, uint64_t seed, int layer, int64_t offset,
                   struct sl_vectors out) {
    HEADS_BY_FIRST(stream, heads, chance, seed, layer, offset, out);
}

static void share(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors x) {
    HEADS_BY_FIRST(stream, heads, share, x);
}

static void variance(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, double *out) {
    HEADS_BY_FIRST(stream, heads, variance, plane, out);
}

// --- selecting slots -------------------------------------------------------------------------------------------------

static void protect(struct sl_stream *stream, const struct sl_kv_heads *heads, const struct sl_protection *protections,
                    struct sl_vectors x) {
    HEADS_BY_FIRST(stream, heads, protect, protections, x);
}

static void spare(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists listed, struct sl_counts n,
                  struct sl_vectors x) {
    HEADS_BY_FIRST(stream, heads, spare, listed, n, x);
}

static void budgets(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                    uint32_t budget, struct sl_vectors work, struct sl_counts kept_out) {
    HEADS_BY_FIRST(stream, heads, budgets, scores, budget, work, kept_out);
}

static void merge(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_counts kept,
                  struct sl_lists evicted, struct sl_lists into, struct sl_vectors cosine, float beta,
                  float *threshold_inout, uint32_t *n_merged_out) {
    HEADS_BY_FIRST(stream, heads, merge, kept, evicted, into, cosine, beta, threshold_inout, n_merged_out);
}

// --- estimates of errors ---------------------------------------------------------------------------------------------

static void lost(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                 struct sl_lists keep, struct sl_counts kept, int64_t n_rows, double *lost_inout) {
    HEADS_BY_FIRST(stream, heads, lost, group, x, keep, kept, n_rows, lost_inout);
}

static void page_error(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to,
                       struct sl_page_error *error_inout) {
    HEADS_BY_FIRST(stream, heads, page_error, n_pages, to, error_inout);
}

void sl_ranks_fill_first(struct sl_ops *ops) {
    ops->pick = pick;
    ops->collect = collect;
    ops->digest = digest;
    ops->mean_query = mean_query;
    ops->read_state = read_state;
    ops->write_state = write_state;
    ops->spread = spread;
    ops->mean_state = mean_state;
    ops->pool = pool;
    ops->mean_group = mean_group;
    ops->recency = recency;
    ops->chance = chance;
    ops->share = share;
    ops->variance = variance;
    ops->protect = protect;
    ops->spare = spare;
    ops->budgets = budgets;
    ops->merge = merge;
    ops->lost = lost;
    ops->page_error = page_error;
}
