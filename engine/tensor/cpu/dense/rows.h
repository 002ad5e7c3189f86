// SPDX-License-Identifier: Apache-2.0
// Purpose: the loops of ops->norm and ops->rotate over rows, one for all tiers; a tier provides the function for a row.
#pragma once

#include "engine/tensor/ops.h"

struct sl_norm_rows {
    const struct sl_norm *norm;
    void (*vector)(const struct sl_norm *norm, const float *x, float *out); // normalizes norm->n floats; out may be x
    struct sl_row_vectors x;
    float *out;
    int64_t out_stride;
};

void sl_norm_run(struct sl_stream *stream, struct sl_norm_rows rows);

// Rotates (a, b) = (x[i], x[i + half]) to (a cos - b sin, b cos + a sin), half = rotary_dim / 2, in n_heads heads of a
// row.
typedef void sl_rotate_row_fn(const struct sl_rope *rope, const float *cosines, const float *sines, float *x,
                              int n_heads);

struct sl_rotate_rows {
    sl_rotate_row_fn *row;
    const struct sl_rope *rope;
    const float *cosines, *sines;
    struct sl_row_vectors x;
};

void sl_rotate_run(struct sl_stream *stream, struct sl_rotate_rows rows);
