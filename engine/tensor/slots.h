// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: numbers, lists and counts of KV heads' slots, as operations take them (engine/tensor/ops.h).
 *
 * The memory is the caller's. No operation allocates: the memory that one needs for intermediate results is a
 * parameter.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Numbers of KV heads: x[h] = at + h * stride has one element for each slot of head h, unless the op says otherwise.
struct sl_vectors {
    float *at; // NULL: none
    size_t stride;
};

// Slots of KV heads, ascending, laid out in the same way.
struct sl_lists {
    uint32_t *at;
    size_t stride;
};

// One number for each head. The host does not know the numbers that attention decides (ops->budgets).
struct sl_counts {
    const uint32_t *host; // [n], or NULL: the numbers are in `device`
    uint32_t *device;     // [n]
};

// The slots of a head that stay whatever their score. A number above the head's slots protects all of them.
struct sl_protection {
    int64_t n_first, n_newest;
};

// The pooling of pool().
struct sl_pooling {
    bool max;       // max pooling; false: average pooling
    int kernel;     // slots
    int64_t window; // the number of last slots that are not pooled
};

// The attention mass of slots, for lost(): x[i] of `group` query heads of each KV head.
struct sl_mass {
    struct sl_vectors x;
    int group;
    int64_t n_rows; // above 0: the mass of each query head is scaled to this many rows of attention
};

// The evicted slots of each head, and the nearest kept slot of each of them: into[h][i] and cosine[h][i] are those of
// evicted[h][i].
struct sl_nearest {
    struct sl_lists evicted, into;
    struct sl_vectors cosine;
};

// The moving threshold of merge(), and how many slots reach it.
struct sl_merge_threshold {
    float beta;
    float *at;          // shared memory; read and written
    uint32_t *n_merged; // shared memory; written
};

// The error of quantized pages, in sums of squares over rows of K and of V: (x^ - x)^2, and x^2.
struct sl_page_error {
    double key, key_norm, value, value_norm;
};
