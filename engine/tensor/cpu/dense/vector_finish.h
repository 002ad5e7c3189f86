// SPDX-License-Identifier: Apache-2.0
// Purpose: bias, activation and gate with registers of any width (vector.h). Include only from files that are built
//          for one of them.
#pragma once

#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/simd/vector.h"
#include "engine/tensor/weights.h"

// Goes lane by lane where there is no vector form: models with these activations have small MLPs.
static inline SL_VECTOR sl_vector_by_lane(enum sl_activation activation, SL_VECTOR x) {
    float lanes[SL_VECTOR_FLOATS];
    sl_vector_store(lanes, x);
    for (int i = 0; i < SL_VECTOR_FLOATS; i++) {
        lanes[i] = sl_activate(activation, lanes[i]);
    }
    return sl_vector_load(lanes);
}

static inline SL_VECTOR sl_vector_activate(enum sl_activation activation, SL_VECTOR x) {
    if (activation == SL_ACT_NONE) {
        return x;
    }
    if (activation != SL_ACT_SILU) {
        return sl_vector_by_lane(activation, x);
    }
    return x / (sl_vector_set(1.0f) + sl_vector_exp(sl_vector_set(0.0f) - x));
}

// Writes y[n] = act(sums[n] + bias), from column `column` of w on; for a gated matrix act(sums + bias) * (up + bias).
static inline void sl_vector_finish(const struct sl_matrix *w, int64_t column, int64_t n, const float *sums,
                                    const float *up, float *y) {
    const float *bias = w->bias != NULL ? w->bias + column : NULL;
    for (int64_t i = 0; i < n; i += SL_VECTOR_FLOATS) {
        // the last elements go through the same instructions: bits do not depend on an element's position
        int64_t left = n - i;
        SL_VECTOR x = sl_vector_load_first(sums + i, left);
        if (bias != NULL) {
            x = x + sl_vector_load_first(bias + i, left);
        }
        x = sl_vector_activate(w->activation, x);
        if (w->gated) {
            SL_VECTOR other = sl_vector_load_first(up + i, left);
            if (bias != NULL) {
                other = other + sl_vector_load_first(bias + w->n / 2 + i, left);
            }
            x = x * other;
        }
        sl_vector_store_first(y + i, left, x);
    }
}

// Writes y from the sums [rows][SL_PANEL] of a panel, for the rows from `row` on.
static inline void sl_vector_finish_panel(const struct sl_product *a, int64_t p, int64_t row, int64_t rows,
                                          const float *sums) {
    int64_t first = p * sl_panel_outputs(a->w), columns = sl_min(sl_panel_outputs(a->w), a->outputs - first);
    for (int64_t r = row; r < row + rows; r++, sums += SL_PANEL) {
        sl_vector_finish(a->w, first, columns, sums, sums + SL_PANEL_HALF, a->y + r * a->y_stride + first);
    }
}
