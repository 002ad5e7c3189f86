// SPDX-License-Identifier: Apache-2.0
// Purpose: the angles of RoPE: the one formula that every backend uses.
#pragma once

#include <math.h>

#include "engine/tensor/ops.h"

// Computes cos and sin of every angle of one position, as every tier uses them: in f64, rounded to f32 once.
// cos_out and sin_out are [rotary_dim / 2]. A pair (a, b) = (x[i], x[i + rotary_dim/2]) becomes
// (a cos - b sin, b cos + a sin).
static inline void sl_rope_angles(const struct sl_rope *rope, int64_t position, float *cos_out, float *sin_out) {
    for (int i = 0; i < rope->rotary_dim / 2; i++) {
        double angle = (double)position * rope->inv_freq[i];
        cos_out[i] = (float)(cos(angle) * rope->scale);
        sin_out[i] = (float)(sin(angle) * rope->scale);
    }
}
