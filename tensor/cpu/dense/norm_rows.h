// SPDX-License-Identifier: Apache-2.0
// Purpose: the loop over rows and groups of ops->norm, one for all tiers; a tier says how one vector is normalized.
#ifndef SL_TENSOR_CPU_DENSE_NORM_ROWS_H
#define SL_TENSOR_CPU_DENSE_NORM_ROWS_H

#include "tensor/ops.h"

struct sl_norm_rows {
    const struct sl_norm *norm;
    void (*vector)(const struct sl_norm *norm, const float *x, float *out); // norm->n floats; out may be x
    const float *x;
    int64_t x_stride;
    int n_groups;
    float *out;
    int64_t out_stride;
};

void sl_norm_run(struct sl_team *team, const struct sl_norm_rows *rows, int64_t m);

#endif
