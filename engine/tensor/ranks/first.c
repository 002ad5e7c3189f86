// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the operations that rank 0 executes for all ranks. They compare heads (share, budgets, merge, sums of
 *          errors), depend on a head's index among all heads (chance), or finish before other ranks would have started.
 *
 * Design: rank 0 works on all heads, wherever their pages are: data that is read once may come from another rank's
 *         memory. Nothing is done where a rank is lost, because the input that it should have written is missing.
 */
#include "engine/tensor/ranks/internal.h"

// The operations: X(op, (parameters), arguments), and H for those on heads.
#define OPERATIONS(X, H)                                                                                               \
    X(pick,                                                                                                            \
      (const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m, struct sl_picked *picked_out),    \
      logits, n_vocab, asked, m, picked_out)                                                                           \
    X(collect, (const struct sl_byte_range *pieces, uint32_t n, void *to), pieces, n, to)                              \
    X(digest, (const struct sl_digest_piece *pieces, uint32_t n, uint64_t *digests_out), pieces, n, digests_out)       \
    X(mean_query, (const struct sl_attend *args, const float *q, float *means_out), args, q, means_out)                \
    H(read_state, (int plane, struct sl_vectors out), plane, out)                                                      \
    H(write_state, (int plane, int m, const float *values), plane, m, values)                                          \
    X(spread, (const float *values, int n, int m, struct sl_vectors out), values, n, m, out)                           \
    H(mean_state, (int64_t n_tokens, struct sl_vectors mean_out, struct sl_vectors deviation_out), n_tokens, mean_out, \
      deviation_out)                                                                                                   \
    H(pool, (int group, struct sl_vectors x, struct sl_pooling pooling, struct sl_vectors out), group, x, pooling,     \
      out)                                                                                                             \
    H(mean_group, (int group, struct sl_vectors x, struct sl_vectors out), group, x, out)                              \
    H(recency, (struct sl_vectors out), out)                                                                           \
    H(chance, (uint64_t seed, int layer, int64_t offset, struct sl_vectors out), seed, layer, offset, out)             \
    H(share, (struct sl_vectors x), x)                                                                                 \
    H(variance, (int plane, double *out), plane, out)                                                                  \
    H(protect, (const struct sl_protection *protections, struct sl_vectors x), protections, x)                         \
    H(spare, (struct sl_lists listed, struct sl_counts n, struct sl_vectors x), listed, n, x)                          \
    H(budgets, (struct sl_vectors scores, uint32_t budget, struct sl_vectors work, struct sl_counts kept_out), scores, \
      budget, work, kept_out)                                                                                          \
    H(merge, (struct sl_counts kept, struct sl_nearest nearest, struct sl_merge_threshold threshold), kept, nearest,   \
      threshold)                                                                                                       \
    H(lost, (struct sl_mass mass, struct sl_lists keep, struct sl_counts kept, double *lost_inout), mass, keep, kept,  \
      lost_inout)                                                                                                      \
    H(page_error, (uint32_t n_pages, void *const *to, struct sl_page_error *error_inout), n_pages, to, error_inout)

// Defines the operation: executes it in rank 0's compute stream.
#define BY_FIRST(op, parameters, ...)                                                                                  \
    static void op(struct sl_stream *stream, LISTED parameters) {                                                      \
        const struct sl_ranks *ranks = sl_ranks_of(stream);                                                            \
        if (!sl_ranks_is_lost(ranks)) {                                                                                \
            ranks->each->op(sl_ranks_compute(ranks, 0), __VA_ARGS__);                                                  \
        }                                                                                                              \
    }
#define LISTED(...) __VA_ARGS__

// The same for operations on heads.
#define HEADS_BY_FIRST(op, parameters, ...)                                                                            \
    static void op(struct sl_stream *stream, const struct sl_kv_heads *heads, LISTED parameters) {                     \
        const struct sl_ranks *ranks = sl_ranks_of(stream);                                                            \
        struct sl_kv_heads known = sl_ranks_heads(ranks, 0, *heads);                                                   \
        if (!sl_ranks_is_lost(ranks)) {                                                                                \
            ranks->each->op(sl_ranks_compute(ranks, 0), &known, __VA_ARGS__);                                          \
        }                                                                                                              \
    }

OPERATIONS(BY_FIRST, HEADS_BY_FIRST)

void sl_ranks_fill_first(struct sl_ops *ops) {
#define FILL(op, ...) ops->op = op;
    OPERATIONS(FILL, FILL)
#undef FILL
}
