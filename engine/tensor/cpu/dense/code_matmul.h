// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: matmul with codes (code_panels.h): dot products of integers, without making floats of weights.
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: 32 weights of a row of x share a scale t and become bytes X with a sign, x = t X. For the 32 (or 16) weights
 *         of W that share a scale, with x^ = (D s) (c - zero) + (O o):
 *
 *             y += (D s) t (sum X c - zero sum X) + (O o) (t sum X)
 *
 *         The sums are exact in 32 bits. |x - t X| is at most 1/254 of the largest |x| of the 32: docs/GGUF.md says what
 *         this costs. A tier has the inner loops: VNNI, or AVX2's products of bytes, or plain C.
 *
 *         Codes become bytes in registers as they are read, which costs little beside the products of eight rows.
 *         Few rows are bound by memory. More rows are tiles: STRETCH groups of their x stay in L1, and those of a few
 *         panels of W in L2.
 *
 * Invariants: an element starts from 0 (or y), and takes its groups in ascending order with one fused multiply-add for
 *             the scale and one for the offset. Neither m, nor the tile, nor the number of threads, nor the tier
 *             changes a bit of the sums.
 */
#pragma once

#include "engine/tensor/cpu/dense/code_panels.h"

// A group of a row of x: a line of the cache.
struct sl_code_x {
    int8_t bytes[SL_CODE_GROUP]; // X
    float scale;
    float scaled[3];   // scale times the sums of the halves of X, and of all
    int32_t starts[4]; // -32 times the sums of the halves; -8 and -128 times the sum of all
};

#define SL_CODE_LARGEST 127.0f    // of |X|
#define SL_CODE_LEAST   0x1p-100f // groups without a larger |x| are zeros: 1 / x would not be finite

// sums[rows][16] += x[rows][n_groups] W, for half a panel. ldx: groups from row to row; sums are SL_PANEL floats apart.
typedef void (*sl_code_tile_fn)(const char *half, const struct sl_code_x *x, int64_t ldx, int64_t n_groups,
                                float *sums);

// The inner loops of a tier.
struct sl_code_kernels {
    int tile_rows;                       // the most rows of a tile
    const sl_code_tile_fn *const *tiles; // by type, and rows - 1
    void (*split)(const float x[SL_CODE_GROUP], struct sl_code_x *out);
    // Writes y from the sums of `rows` rows of a panel, [rows][SL_PANEL].
    void (*finish)(const struct sl_product *a, int64_t p, int64_t row, int64_t rows, const float *sums);
};

// The kernels with AVX2, with AVX512-VNNI, and in plain C.
extern const struct sl_code_kernels sl_avx2_code_kernels, sl_vnni_code_kernels, sl_plain_code_kernels;

// Sets what follows from a group's scale and the sums of its halves.
static inline void sl_code_x_sum(struct sl_code_x *x, int32_t first, int32_t second) {
    x->scaled[0] = x->scale * (float)first;
    x->scaled[1] = x->scale * (float)second;
    x->scaled[2] = x->scale * (float)(first + second);
    x->starts[0] = -32 * first;
    x->starts[1] = -32 * second;
    x->starts[2] = -8 * (first + second);
    x->starts[3] = -128 * (first + second);
}

// Returns what the sum of products of X and codes starts with: -zero sum X, for the weights of a group that share scale
// number `share`. Kernels broadcast it from memory, without an operation for the most frequent types.
static inline int32_t sl_code_start(struct sl_code_form form, const struct sl_code_x *x, int share) {
    if (form.zero_shift < 0) {
        return 0;
    }
    if (form.shared < SL_CODE_GROUP) {
        return x->starts[share] >> (5 - form.zero_shift);
    }
    return form.zero_shift == 7 ? x->starts[3] : x->starts[2] * (1 << (form.zero_shift - 3));
}

/*
 * Fetches weights that a tile will read after the codes at `at`; rows, a constant, is the tile's. Few rows wait for
 * memory. A first-level cache has some 16 lines on their way, too few for it: so the second-level cache fetches first.
 */
static inline __attribute__((always_inline)) void sl_code_fetch(const char *at, size_t code_bytes, int rows) {
    enum { FEW = 4, FAR = 16384, NEAR = 2048, LINE = 64 };
    for (size_t i = 0; i < code_bytes + LINE; i += LINE) { // a line more: scales lie between codes
        if (rows <= FEW) {
            __builtin_prefetch(at + FAR + i, 0, 2);
        }
        __builtin_prefetch(at + NEAR + i, 0, 3);
    }
}

// Entries of struct sl_ops for matrices whose sl_code_is() is true. Every row's bits are its own, for any m.
size_t sl_code_scratch(const struct sl_matrix *w, int64_t m);
void sl_code_arrange(const struct sl_code_kernels *kernels, struct sl_stream *stream, const struct sl_matrix *w,
                     const struct sl_matmul *args, int part, int n_parts);
void sl_code_matmul(const struct sl_code_kernels *kernels, struct sl_stream *stream, const struct sl_matrix *w,
                    const struct sl_matmul *args);
