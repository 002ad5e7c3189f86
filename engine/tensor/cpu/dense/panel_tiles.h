// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tiles of products over panels, with registers of any width (vector.h). Each tier includes it once, after it
 *          has defined
 *
 *     STRIP, TILE_ROWS              outputs of a strip, and the most rows of a tile: 14 or 6
 *     WHOLE_FOURS                   k is a multiple of 4 in every call
 *     step_bytes(form)              of the STRIP weights of a step
 *     load_step(form, weights, step)    loads them into registers; form is a constant
 *     MULTIPLY_ADD(x, weights, sum) the sum plus the products of a broadcast element of x and of weights
 */
#pragma once

#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/simd/vector.h"

#define REGISTERS   (STRIP / SL_VECTOR_FLOATS)
#define STRIPS      (SL_PANEL / STRIP) // of a panel
#define WIDE_STRIPS 4                  // of a tile, at most

#define INLINE static inline __attribute__((always_inline))

// The constants of a tile.
struct shape {
    int rows, strips;
    int form;
};

struct tile {
    const char *weights; // of the first strip
    size_t stride;       // bytes from strip to strip
    const float *x;      // [rows][k]
    int64_t x_stride;    // floats from row to row
    int64_t k;
    float *sums;        // [rows][SL_PANEL] of the first strip's panel, from that strip on
    int64_t panel_sums; // floats from panel to panel
};

INLINE float *sums_at(const struct tile *t, int strip, int row) {
    return t->sums + strip / STRIPS * t->panel_sums + row * SL_PANEL + strip % STRIPS * STRIP;
}

// Adds x W to the sums. Called with constants only, so that acc stays in registers.
INLINE void multiply_tile(struct shape shape, const struct tile *t, int64_t x_stride) {
    const int rows = shape.rows, strips = shape.strips;
    const char *weights = t->weights;
    const float *x = t->x;
    const size_t stride = t->stride;
    const int64_t k = t->k;
    SL_VECTOR acc[WIDE_STRIPS * TILE_ROWS][REGISTERS];
    SL_UNROLL
    for (int i = 0; i < strips * rows; i++) {
        SL_UNROLL
        for (int c = 0; c < REGISTERS; c++) {
            acc[i][c] = sl_vector_load(sums_at(t, i / rows, i % rows) + c * SL_VECTOR_FLOATS);
        }
    }
    for (int64_t i = 0; i < k; i += 4) {
        SL_UNROLL
        for (int j = 0; j < 4; j++, weights += step_bytes(shape.form)) {
            if (!WHOLE_FOURS && i + j >= k) {
                break;
            }
            SL_UNROLL
            for (int s = 0; s < strips; s++) {
                SL_VECTOR step[REGISTERS];
                load_step(shape.form, weights + (size_t)s * stride, step);
                SL_UNROLL
                for (int r = 0; r < rows; r++) {
                    SL_VECTOR xi = sl_vector_set(x[r * x_stride + i + j]);
                    SL_UNROLL
                    for (int c = 0; c < REGISTERS; c++) {
                        acc[s * rows + r][c] = MULTIPLY_ADD(xi, step[c], acc[s * rows + r][c]);
                    }
                }
            }
        }
    }
    SL_UNROLL
    for (int i = 0; i < strips * rows; i++) {
        SL_UNROLL
        for (int c = 0; c < REGISTERS; c++) {
            sl_vector_store(sums_at(t, i / rows, i % rows) + c * SL_VECTOR_FLOATS, acc[i][c]);
        }
    }
}

typedef void tile_fn(const struct tile *t);

// The tiles of a number of rows: one strip, and the most strips that the registers hold.
struct tiles {
    tile_fn *one, *wide;
    int wide_strips;
};

#define TILE(rows, strips, name, form, x_stride)                                                                       \
    static void name##_##rows##x##strips(const struct tile *t) {                                                       \
        multiply_tile((struct shape){rows, strips, form}, t, x_stride);                                                \
    }
#define ONE(rows, name)                                                                                                \
    { name##_##rows##x1, name##_##rows##x1, 1 }
#if TILE_ROWS == 14
#define MORE_TILES(...)                                                                                                \
    TILE(7, 1, __VA_ARGS__)                                                                                            \
    TILE(8, 1, __VA_ARGS__)                                                                                            \
    TILE(9, 1, __VA_ARGS__)                                                                                            \
    TILE(10, 1, __VA_ARGS__)                                                                                           \
    TILE(11, 1, __VA_ARGS__)                                                                                           \
    TILE(12, 1, __VA_ARGS__)                                                                                           \
    TILE(13, 1, __VA_ARGS__)                                                                                           \
    TILE(14, 1, __VA_ARGS__)
#define MORE_ENTRIES(name)                                                                                             \
    , ONE(7, name), ONE(8, name), ONE(9, name), ONE(10, name), ONE(11, name), ONE(12, name), ONE(13, name),            \
        ONE(14, name)
#else
#define MORE_TILES(...)
#define MORE_ENTRIES(name)
#endif
// Defines name[], the tiles of a form by rows - 1. A constant x_stride saves registers, which addresses would need.
#define TILES(name, form, x_stride)                                                                                    \
    TILE(1, 1, name, form, x_stride)                                                                                   \
    TILE(1, 4, name, form, x_stride)                                                                                   \
    TILE(2, 1, name, form, x_stride)                                                                                   \
    TILE(2, 2, name, form, x_stride)                                                                                   \
    TILE(3, 1, name, form, x_stride)                                                                                   \
    TILE(4, 1, name, form, x_stride)                                                                                   \
    TILE(5, 1, name, form, x_stride)                                                                                   \
    TILE(6, 1, name, form, x_stride)                                                                                   \
    MORE_TILES(name, form, x_stride)                                                                                   \
    static const struct tiles name[TILE_ROWS] = {                                                                      \
        {name##_1x1, name##_1x4, 4},    {name##_2x1, name##_2x2, 2}, ONE(3, name), ONE(4, name), ONE(5, name),         \
        ONE(6, name) MORE_ENTRIES(name)};
