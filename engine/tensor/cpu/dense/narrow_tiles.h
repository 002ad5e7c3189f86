// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the loops of a tile in narrow panels (narrow.h), over registers of any width. Each tier's file includes it
 *          once, after it has defined
 *
 *     REGISTERS                                                  so many (SL_VECTOR) hold a step's weights
 *     struct scales, load_scales(form, group)                    the scales of a group of quantized steps
 *     load_step(form, group, q, s, scales, step[REGISTERS])      step 4 q + s of a group, widened; s is a constant
 *
 * It defines sl_vector_matmul().
 */
#pragma once

#include "engine/tensor/cpu/dense/narrow.h"
#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/simd/vector.h"

// Computes a tile, as an sl_narrow_tile_fn. Called with constants only, so that acc stays in registers.
INLINE void tile(int rows, int panels, enum sl_narrow_form form, const char *weights, size_t stride, const float *x,
                 int64_t ldx, int64_t k, float *y, int64_t ldy, bool fresh) {
    SL_VECTOR acc[SL_NARROW_ROWS][4 * REGISTERS];
    struct scales scales[4];
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        SL_UNROLL
        for (int c = 0; c < REGISTERS * panels; c++) {
            acc[r][c] = fresh ? sl_vector_set(0.0f) : sl_vector_load(y + r * ldy + SL_VECTOR_FLOATS * c);
        }
    }
    for (int64_t g = 0; g < k; g += SL_WEIGHT_GROUP, weights += sl_narrow_group_bytes(form), x += SL_WEIGHT_GROUP) {
        int64_t steps = sl_min(SL_WEIGHT_GROUP, k - g);
        SL_UNROLL
        for (int p = 0; p < panels; p++) {
            scales[p] = load_scales(form, weights + (size_t)p * stride);
        }
        for (int64_t q = 0; 4 * q < steps; q++) {
            SL_UNROLL
            for (int s = 0; s < 4; s++) {
                if (4 * q + s >= steps) {
                    break;
                }
                SL_UNROLL
                for (int p = 0; p < panels; p++) {
                    SL_VECTOR step[REGISTERS];
                    load_step(form, weights + (size_t)p * stride, q, s, &scales[p], step);
                    SL_UNROLL
                    for (int r = 0; r < rows; r++) {
                        SL_VECTOR xi = sl_vector_set(x[r * ldx + 4 * q + s]);
                        SL_UNROLL
                        for (int c = 0; c < REGISTERS; c++) {
                            acc[r][p * REGISTERS + c] = sl_vector_multiply_add(xi, step[c], acc[r][p * REGISTERS + c]);
                        }
                    }
                }
            }
        }
    }
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        SL_UNROLL
        for (int c = 0; c < REGISTERS * panels; c++) {
            sl_vector_store(y + r * ldy + SL_VECTOR_FLOATS * c, acc[r][c]);
        }
    }
}

#define TILE(name, rows, panels, form)                                                                                 \
    static void name(const char *weights, size_t stride, const float *x, int64_t ldx, int64_t k, float *y,             \
                     int64_t ldy, bool fresh) {                                                                        \
        tile(rows, panels, form, weights, stride, x, ldx, k, y, ldy, fresh);                                           \
    }
// One row takes `wide` panels at once. Quantized weights need registers for their scales, and two panels keep enough
// sums in flight.
#define TILES(suffix, form, wide)                                                                                      \
    TILE(tile_1_wide_##suffix, 1, wide, form)                                                                          \
    TILE(tile_1_##suffix, 1, 1, form)                                                                                  \
    TILE(tile_2_wide_##suffix, 2, 2, form)                                                                             \
    TILE(tile_2_##suffix, 2, 1, form)                                                                                  \
    TILE(tile_3_##suffix, 3, 1, form)                                                                                  \
    TILE(tile_4_##suffix, 4, 1, form)                                                                                  \
    TILE(tile_5_##suffix, 5, 1, form)                                                                                  \
    TILE(tile_6_##suffix, 6, 1, form)
TILES(f32, SL_NARROW_F32, 4)
TILES(f16, SL_NARROW_F16, 4)
TILES(bf16, SL_NARROW_BF16, 4)
TILES(int8, SL_NARROW_INT8, 2)
TILES(int4, SL_NARROW_INT4, 2)

INLINE void widen_as(enum sl_narrow_form form, const char *group, int64_t k, float *out) {
    for (int64_t g = 0; g < k; g += SL_WEIGHT_GROUP, group += sl_narrow_group_bytes(form)) {
        struct scales scales = load_scales(form, group);
        for (int64_t q = 0; 4 * q < sl_min(SL_WEIGHT_GROUP, k - g); q++) {
            SL_UNROLL
            for (int s = 0; s < 4; s++, out += SL_NARROW) {
                if (g + 4 * q + s >= k) {
                    break;
                }
                SL_VECTOR step[REGISTERS];
                load_step(form, group, q, s, &scales, step);
                SL_UNROLL
                for (int c = 0; c < REGISTERS; c++) {
                    sl_vector_store(out + SL_VECTOR_FLOATS * c, step[c]);
                }
            }
        }
    }
}

static void widen(enum sl_narrow_form form, const char *group, int64_t k, float *out) {
    switch (form) {
    case SL_NARROW_F32:
        widen_as(SL_NARROW_F32, group, k, out);
        break;
    case SL_NARROW_F16:
        widen_as(SL_NARROW_F16, group, k, out);
        break;
    case SL_NARROW_BF16:
        widen_as(SL_NARROW_BF16, group, k, out);
        break;
    case SL_NARROW_INT8:
        widen_as(SL_NARROW_INT8, group, k, out);
        break;
    case SL_NARROW_INT4:
        widen_as(SL_NARROW_INT4, group, k, out);
        break;
    case SL_NARROW_FORMS:
        break;
    }
}

// --- activations ---------------------------------------------------------------------------------------------------

// Goes lane by lane where there is no vector form: models with these activations have small MLPs.
static SL_VECTOR by_lane(enum sl_activation activation, SL_VECTOR x) {
    float lanes[SL_VECTOR_FLOATS];
    sl_vector_store(lanes, x);
    for (int i = 0; i < SL_VECTOR_FLOATS; i++) {
        lanes[i] = sl_activate(activation, lanes[i]);
    }
    return sl_vector_load(lanes);
}

static inline SL_VECTOR activate(enum sl_activation activation, SL_VECTOR x) {
    if (activation == SL_ACT_NONE) {
        return x;
    }
    if (activation != SL_ACT_SILU) {
        return by_lane(activation, x);
    }
    return x / (sl_vector_set(1.0f) + sl_vector_exp(sl_vector_set(0.0f) - x));
}

static void finish(const struct sl_matrix *w, const float *sums, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += SL_VECTOR_FLOATS) {
        // the last elements go through the same instructions: bits do not depend on an element's position
        int64_t left = n - i;
        SL_VECTOR x = sl_vector_load_first(sums + i, left);
        if (w->bias != NULL) {
            x = x + sl_vector_load_first(w->bias + i, left);
        }
        x = activate(w->activation, x);
        if (w->gated) {
            SL_VECTOR up = sl_vector_load_first(sums + n + i, left);
            if (w->bias != NULL) {
                up = up + sl_vector_load_first(w->bias + n + i, left);
            }
            x = x * up;
        }
        sl_vector_store_first(y + i, left, x);
    }
}

// --- the table -----------------------------------------------------------------------------------------------------

#define CHOICES(suffix, wide)                                                                                          \
    {                                                                                                                  \
        {tile_1_##suffix, tile_1_wide_##suffix, wide}, {tile_2_##suffix, tile_2_wide_##suffix, 2},                     \
            {tile_3_##suffix, tile_3_##suffix, 1}, {tile_4_##suffix, tile_4_##suffix, 1},                              \
            {tile_5_##suffix, tile_5_##suffix, 1}, {tile_6_##suffix, tile_6_##suffix, 1},                              \
    }

static const struct sl_narrow_kernels kernels = {
    .tiles = {[SL_NARROW_F32] = CHOICES(f32, 4),
              [SL_NARROW_F16] = CHOICES(f16, 4),
              [SL_NARROW_BF16] = CHOICES(bf16, 4),
              [SL_NARROW_INT8] = CHOICES(int8, 2),
              [SL_NARROW_INT4] = CHOICES(int4, 2)},
    .widen = widen,
    .finish = finish,
};

void sl_vector_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    sl_narrow_matmul(&kernels, stream, w, args);
}
