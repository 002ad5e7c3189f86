// SPDX-License-Identifier: Apache-2.0
// Purpose: eviction's functions of one head on cached rows, which tiers fill, and the operations that are made of them.
#pragma once

#include "engine/tensor/cpu/evict/merge_pages.h"
#include "engine/tensor/ops.h"

#define SL_NEAREST_BLOCK 512 // evicted slots that a call of nearest compares at once, at most

struct sl_evict_kernels {
    // writes change[j] of ops->value_change, or change_inout[j] += its square
    void (*value_change)(const struct sl_kv *kv, const float *weights, bool mean_center, bool add_square,
                         float *change_inout);
    // Finds, for slot evicted[e], the slot among kept[] whose K is the most similar by cosine, and that cosine.
    void (*nearest)(const struct sl_kv *kv, const uint32_t *evicted, uint32_t n_evicted, const uint32_t *kept,
                    uint32_t n_kept, uint32_t *nearest_out, float *cosine_out);
    struct sl_merge_rows rows; // of merge
};

// A call of ops->value_change, nearest or merge, and the tier's kernels.
struct sl_evict_call {
    const struct sl_evict_kernels *by;
    const struct sl_kv_heads *heads;
    struct sl_vectors x, out; // of value_change
    struct sl_lists keep;
    struct sl_counts kept;
    struct sl_nearest nearest;
    const uint32_t *n; // [heads] lengths of the lists to merge: sl_evict_merge() sets it
    int group;
    bool mean_center;
};
void sl_evict_value_change(struct sl_stream *stream, const struct sl_evict_call *call);
void sl_evict_nearest(struct sl_stream *stream, const struct sl_evict_call *call);
void sl_evict_merge(struct sl_stream *stream, struct sl_evict_call *call, struct sl_merge_threshold threshold);

// Defines a tier's entries of the table from its kernels; tiers differ in nothing else.
#define SL_EVICT_OPS(kernels)                                                                                          \
    static void value_change_heads(struct sl_stream *stream, const struct sl_kv_heads *heads, int group,               \
                                   struct sl_vectors weights, bool mean_center, struct sl_vectors out) {               \
        const struct sl_evict_call call = {                                                                            \
            .by = &(kernels), .heads = heads, .group = group, .x = weights, .mean_center = mean_center, .out = out};   \
        sl_evict_value_change(stream, &call);                                                                          \
    }                                                                                                                  \
    static void nearest_heads(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,         \
                              struct sl_counts kept, struct sl_nearest nearest_out) {                                  \
        const struct sl_evict_call call = {                                                                            \
            .by = &(kernels), .heads = heads, .keep = keep, .kept = kept, .nearest = nearest_out};                     \
        sl_evict_nearest(stream, &call);                                                                               \
    }                                                                                                                  \
    static void merge_heads(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_counts kept,          \
                            struct sl_nearest nearest, struct sl_merge_threshold threshold) {                          \
        struct sl_evict_call call = {.by = &(kernels), .heads = heads, .kept = kept, .nearest = nearest};              \
        sl_evict_merge(stream, &call, threshold);                                                                      \
    }                                                                                                                  \
    static void fill_evict(struct sl_ops *ops) {                                                                       \
        ops->value_change = value_change_heads;                                                                        \
        ops->nearest = nearest_heads;                                                                                  \
        ops->merge = merge_heads;                                                                                      \
    }
