// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the loops of a tile in narrow panels (narrow.h), over registers of any width. Each tier's file includes it
 *          once, after it has defined
 *
 *     REGISTERS                                                  so many (SL_VECTOR) hold a step's weights
 *     load_step(form, weights, step[REGISTERS])                  the step at `weights`, widened; form is a constant
 *
 * It defines sl_vector_matmul().
 */
#pragma once

#include "engine/tensor/cpu/dense/narrow.h"
#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/dense/vector_finish.h"
#include "engine/tensor/cpu/simd/vector.h"

// The constants of a tile.
struct shape {
    int rows, panels;
    enum sl_narrow_form form;
};

// Computes a tile, as an sl_narrow_tile_fn. Called with constants only, so that acc stays in registers.
INLINE void tile(struct shape shape, const char *weights, size_t stride, struct sl_narrow_x x, int64_t k,
                 struct sl_narrow_y y) {
    const int rows = shape.rows, panels = shape.panels;
    const enum sl_narrow_form form = shape.form;
    SL_VECTOR acc[SL_NARROW_ROWS][4 * REGISTERS];
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        SL_UNROLL
        for (int c = 0; c < REGISTERS * panels; c++) {
            acc[r][c] = y.fresh ? sl_vector_set(0.0f) : sl_vector_load(y.first + r * y.stride + SL_VECTOR_FLOATS * c);
        }
    }
    for (int64_t i = 0; i < k; i += 4) {
        SL_UNROLL
        for (int s = 0; s < 4; s++, weights += sl_narrow_step_bytes(form)) {
            if (i + s >= k) {
                break;
            }
            SL_UNROLL
            for (int p = 0; p < panels; p++) {
                SL_VECTOR step[REGISTERS];
                load_step(form, weights + (size_t)p * stride, step);
                SL_UNROLL
                for (int r = 0; r < rows; r++) {
                    SL_VECTOR xi = sl_vector_set(x.first[r * x.stride + i + s]);
                    SL_UNROLL
                    for (int c = 0; c < REGISTERS; c++) {
                        acc[r][p * REGISTERS + c] = sl_vector_multiply_add(xi, step[c], acc[r][p * REGISTERS + c]);
                    }
                }
            }
        }
    }
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        SL_UNROLL
        for (int c = 0; c < REGISTERS * panels; c++) {
            sl_vector_store(y.first + r * y.stride + SL_VECTOR_FLOATS * c, acc[r][c]);
        }
    }
}

#define TILE(name, rows, panels, form)                                                                                 \
    static void name(const char *weights, size_t stride, struct sl_narrow_x x, int64_t k, struct sl_narrow_y y) {      \
        tile((struct shape){rows, panels, form}, weights, stride, x, k, y);                                            \
    }
#define TILES(suffix, form)                                                                                            \
    TILE(tile_1_wide_##suffix, 1, 4, form)                                                                             \
    TILE(tile_1_##suffix, 1, 1, form)                                                                                  \
    TILE(tile_2_wide_##suffix, 2, 2, form)                                                                             \
    TILE(tile_2_##suffix, 2, 1, form)                                                                                  \
    TILE(tile_3_##suffix, 3, 1, form)                                                                                  \
    TILE(tile_4_##suffix, 4, 1, form)                                                                                  \
    TILE(tile_5_##suffix, 5, 1, form)                                                                                  \
    TILE(tile_6_##suffix, 6, 1, form)
TILES(f32, SL_NARROW_F32)
TILES(f16, SL_NARROW_F16)
TILES(bf16, SL_NARROW_BF16)

INLINE void widen_as(enum sl_narrow_form form, const char *weights, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i++, weights += sl_narrow_step_bytes(form), out += SL_NARROW) {
        SL_VECTOR step[REGISTERS];
        load_step(form, weights, step);
        SL_UNROLL
        for (int c = 0; c < REGISTERS; c++) {
            sl_vector_store(out + SL_VECTOR_FLOATS * c, step[c]);
        }
    }
}

static void widen(enum sl_narrow_form form, const char *weights, int64_t k, float *out) {
    switch (form) {
    case SL_NARROW_F32:
        widen_as(SL_NARROW_F32, weights, k, out);
        break;
    case SL_NARROW_F16:
        widen_as(SL_NARROW_F16, weights, k, out);
        break;
    case SL_NARROW_BF16:
        widen_as(SL_NARROW_BF16, weights, k, out);
        break;
    case SL_NARROW_FORMS:
        break;
    }
}

static void finish(const struct sl_matrix *w, const float *sums, int64_t n, float *y) {
    sl_vector_finish(w, 0, n, sums, sums + n, y);
}

// --- the table -----------------------------------------------------------------------------------------------------

#define CHOICES(suffix)                                                                                                \
    {                                                                                                                  \
        {tile_1_##suffix, tile_1_wide_##suffix, 4}, {tile_2_##suffix, tile_2_wide_##suffix, 2},                        \
            {tile_3_##suffix, tile_3_##suffix, 1}, {tile_4_##suffix, tile_4_##suffix, 1},                              \
            {tile_5_##suffix, tile_5_##suffix, 1}, {tile_6_##suffix, tile_6_##suffix, 1},                              \
    }

static const struct sl_narrow_kernels kernels = {
    .tiles = {[SL_NARROW_F32] = CHOICES(f32), [SL_NARROW_F16] = CHOICES(f16), [SL_NARROW_BF16] = CHOICES(bf16)},
    .widen = widen,
    .finish = finish,
};

void sl_vector_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    sl_narrow_matmul(&kernels, stream, w, args);
}
