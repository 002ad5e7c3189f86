// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the running softmax of one query over tiles of keys and values, in f64. The reference's attention over all
 *          slots and over listed slots share it, so that the same slots give the same bits.
 *
 * Formula: with a tile's scores s_j and the state (max, sum, out)
 *
 *              max' = max(max, max_j s_j)      c = exp(max - max')
 *              sum  = sum c + sum_j exp(s_j - max')
 *              out  = out c + sum_j exp(s_j - max') V_j          at the end: out / sum, lse = max' + log(sum)
 */
#pragma once

#include <math.h>
#include <string.h>

#include "engine/tensor/rope_angles.h"

struct sl_ref_softmax {
    double max, sum;
    double out[SL_MAX_HEAD_DIM];
};

static inline void sl_ref_softmax_init(struct sl_ref_softmax *s, int d) {
    s->max = -INFINITY;
    s->sum = 0.0;
    memset(s->out, 0, (size_t)d * sizeof s->out[0]);
}

// Rounds to f32. volatile: gcc 12 at -O2 omits the rounding where it vectorizes two neighboring values.
static inline double sl_ref_round(double x) {
    volatile float rounded = (float)x;
    return (double)rounded;
}

// Rounds the state, between splits of SL_ATTEND_SPLIT slots, to what struct sl_softmax can hold. So one call and
// several consecutive calls give the same bits.
static inline void sl_ref_softmax_round(struct sl_ref_softmax *s, int d) {
    s->max = sl_ref_round(s->max);
    s->sum = sl_ref_round(s->sum);
    for (int i = 0; i < d; i++) {
        s->out[i] = sl_ref_round(s->out[i]);
    }
}

// Adds a tile of n > 0 scores and values [n][d].
static inline void sl_ref_softmax_add(struct sl_ref_softmax *s, const double *scores, const float *values, int n,
                                      int d) {
    double max = s->max;
    for (int j = 0; j < n; j++) {
        max = scores[j] > max ? scores[j] : max;
    }
    double c = exp(s->max - max); // 0 for the first tile: max was minus infinity
    s->max = max;
    s->sum *= c;
    for (int i = 0; i < d; i++) {
        s->out[i] *= c;
    }
    for (int j = 0; j < n; j++) {
        double p = exp(scores[j] - max);
        s->sum += p;
        for (int i = 0; i < d; i++) {
            s->out[i] += p * (double)values[(size_t)j * (size_t)d + (size_t)i];
        }
    }
}

// (a, b) = (x[i], x[i + rotary_dim/2]) becomes (a cos - b sin, b cos + a sin) for angle i of the position.
static inline void sl_ref_rotate_row(const struct sl_rope *rope, int64_t position, float *row) {
    float cosines[SL_MAX_HEAD_DIM / 2], sines[SL_MAX_HEAD_DIM / 2];
    int half = rope->rotary_dim / 2;
    sl_rope_angles(rope, position, cosines, sines);
    for (int i = 0; i < half; i++) {
        float a = row[i], b = row[i + half];
        row[i] = a * cosines[i] - b * sines[i];
        row[i + half] = b * cosines[i] + a * sines[i];
    }
}
