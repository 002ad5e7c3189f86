// SPDX-License-Identifier: Apache-2.0
// Purpose: the loop of ops->merge over slots and pages, one for all tiers; a tier provides the functions for a row.
#pragma once

#include "engine/tensor/ops.h"

// Rows are aligned to 64 bytes, d floats long.
struct sl_merge_rows {
    void (*read_k)(const struct sl_kv *kv, uint32_t slot, float *out);
    void (*read_v)(const struct sl_kv *kv, uint32_t slot, float *out);
    // sum[i] += weight * (from[i] - into[i])
    void (*add_difference)(float *sum, float weight, const float *from, const float *into, int d);
    // row[i] += sum[i] / weight
    void (*add_quotient)(float *row, const float *sum, float weight, int d);
};

// No slot is both in from[] and in into[].
void sl_merge_pages(const struct sl_merge_rows *rows, const struct sl_kv *kv, const uint32_t *from,
                    const uint32_t *into, const float *cosine, uint32_t n);
