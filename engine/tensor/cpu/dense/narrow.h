// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: matmul for processors whose registers hold 4 or 8 floats: packing and tasks, shared by AVX2 and NEON. A tier
 *          provides the inner loops (struct sl_narrow_kernels).
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: W is packed once into panels of 16 outputs, k steps of 16 weights each, in the type of the file; see enum
 *         sl_narrow_form. Matrices of codes are in code_matmul.h. The last panel is padded with zeros. A tile is up to 6 rows by 16 outputs of y in
 *         registers; each step multiplies 16 weights by one x of every row. Few rows are bound by memory: weights are
 *         widened in registers as they are read, and narrow tiles take several panels at once so that enough sums are
 *         in flight. Many rows are bound by arithmetic: SL_NARROW_BLOCK steps of a few panels are widened once, stay in
 *         L2, and serve all rows of a block; the x's of a tile are copied together so that they stay in L1.
 *
 * Invariants: every sum starts from 0 (or y) and takes i in ascending order with one fused multiply-add a step; between
 *             stretches of k it passes through y unchanged. So neither m, nor the tile, nor the number of threads
 *             changes a bit. All types widen exactly.
 */
#pragma once

#include "engine/tensor/ops.h"
#include "engine/tensor/weights.h"

#define SL_NARROW       16 // rows of W in a panel
#define SL_NARROW_ROWS  6  // rows of x in a tile
#define SL_NARROW_BLOCK 256

/*
 * The layout of the 16 weights w[c] of a step in a panel:
 *   F32, F16  in order
 *   BF16      c and c + 8 in the lower and upper half of 32-bit word c: a shift and a mask widen them
 */
enum sl_narrow_form { SL_NARROW_F32, SL_NARROW_F16, SL_NARROW_BF16, SL_NARROW_FORMS };

static inline size_t sl_narrow_step_bytes(enum sl_narrow_form form) {
    return SL_NARROW * (form == SL_NARROW_F32 ? 4 : 2);
}

// Rows of x, and of y; strides are floats from row to row.
struct sl_narrow_x {
    const float *first;
    int64_t stride;
};
struct sl_narrow_y {
    float *first;
    int64_t stride;
    bool fresh; // the sums start from 0, not from y
};

/*
 * y[rows][16 panels] += x[rows][k] W. weights: the first panel; the next panel is `stride` bytes later.
 */
typedef void (*sl_narrow_tile_fn)(const char *weights, size_t stride, struct sl_narrow_x x, int64_t k,
                                  struct sl_narrow_y y);

struct sl_narrow_kernels {
    // By form and rows - 1: one panel, and as many as the registers hold.
    struct sl_narrow_choice {
        sl_narrow_tile_fn one, wide;
        int wide_panels;
    } tiles[SL_NARROW_FORMS][SL_NARROW_ROWS];
    // Widens k steps to f32 [k][16].
    void (*widen)(enum sl_narrow_form form, const char *weights, int64_t k, float *out);
    // Writes y[n] = act(sums[n] + bias) or, for a gated matrix, act(sums[0 .. n) + bias) * (sums[n .. 2n) + bias).
    void (*finish)(const struct sl_matrix *w, const float *sums, int64_t n, float *y);
};

// Entries of struct sl_ops for stored matrices; sl_panels_free() is the inverse of sl_narrow_pack().
enum sl_status sl_narrow_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);
size_t sl_narrow_scratch(const struct sl_matrix *w, int64_t m);
void sl_narrow_matmul(const struct sl_narrow_kernels *kernels, struct sl_stream *stream, const struct sl_matrix *w,
                      const struct sl_matmul *args);

// Implements matmul of tiers avx2 and neon: sl_narrow_matmul() with the inner loops of the tier that is compiled.
void sl_vector_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args);
