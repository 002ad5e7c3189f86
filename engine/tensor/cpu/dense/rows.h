// SPDX-License-Identifier: Apache-2.0
// Purpose: the loops of ops->norm and ops->rotate over rows, one for all tiers; a tier provides the function for a row.
#pragma once

#include "engine/tensor/ops.h"

struct sl_norm_rows {
    const struct sl_norm *norm;
    void (*vector)(const struct sl_norm *norm, const float *x, float *out); // normalizes norm->n floats; out may be x
    const float *x;
    int64_t x_stride;
    int n_groups;
    float *out;
    int64_t out_stride;
};

void sl_norm_run(struct sl_stream *stream, const struct sl_norm_rows *rows, int64_t m);

// Rotates (a, b) = (x[i], x[i + half]) to (a cos - b sin, b cos + a sin), half = rotary_dim / 2, in n_heads heads of a
// row.
typedef void sl_rotate_row_fn(const struct sl_rope *rope, const float *cosines, const float *sines, float *x,
                              int n_heads);

struct sl_rotate_rows {
    sl_rotate_row_fn *row;
    const struct sl_rope *rope;
    const float *cosines, *sines;
    float *x;
    int64_t stride;
    int n_heads;
};

void sl_rotate_run(struct sl_stream *stream, const struct sl_rotate_rows *rows, int64_t m);
