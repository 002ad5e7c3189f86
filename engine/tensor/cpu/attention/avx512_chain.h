// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the product of attention with AVX-512, for the files that attend over pages. Each includes it once, after it has
 *          defined MULTIPLY_ADD(w, x, sum): the sum plus the products of a broadcast element of A and a row of a strip.
 *          An element is an f32, or the pair of bf16 that takes its place.
 *
 * Design: a kernel is up to 6 vectors by 4 strips, 24 sums in registers: 4 loads and 6 broadcasts feed 24
 *         multiply-adds, which are the bottleneck.
 */
#pragma once

#include "engine/tensor/cpu/attention/avx512_kv.h"

#define ROWS 6
#define WIDE 4 // strips of one kernel

// Multiplies n_rows by n_strips, constants in every call; see sl_avx2_product.
static inline __attribute__((always_inline)) void chain(const struct sl_avx2_product *p, size_t begin, size_t end,
                                                        int n_rows, int n_strips) {
    const float *a = p->a, *b = p->b + begin * SL_STRIP, *factor = p->factor;
    float *c = p->c;
    size_t c_stride = p->c_stride;
    SL_UNROLL
    for (int v = 0; v < n_rows; v++) { // kept scores have left the second-level cache: fetches their lines meanwhile
        SL_UNROLL
        for (int s = 0; s < n_strips; s++) {
            _mm_prefetch((const char *)(c + (size_t)v * c_stride + SL_STRIP * s), _MM_HINT_T0);
        }
    }
    __m512 sum[ROWS][WIDE];
    SL_UNROLL
    for (int v = 0; v < n_rows; v++) {
        SL_UNROLL
        for (int s = 0; s < n_strips; s++) {
            sum[v][s] = factor == NULL ? _mm512_setzero_ps()
                                       : _mm512_mul_ps(_mm512_load_ps(c + (size_t)v * c_stride + SL_STRIP * s),
                                                       _mm512_set1_ps(factor[v]));
        }
    }
    size_t strip = p->strip_rows * SL_STRIP, a_stride = p->a_stride;
    for (size_t e = begin; e < end; e++, b += SL_STRIP) {
        __m512 x[WIDE];
        SL_UNROLL
        for (int s = 0; s < n_strips; s++) {
            x[s] = _mm512_load_ps(b + (size_t)s * strip);
        }
        SL_UNROLL
        for (int v = 0; v < n_rows; v++) {
            __m512 w = _mm512_set1_ps(a[(size_t)v * a_stride + e]);
            SL_UNROLL
            for (int s = 0; s < n_strips; s++) {
                sum[v][s] = MULTIPLY_ADD(w, x[s], sum[v][s]);
            }
        }
    }
    SL_UNROLL
    for (int v = 0; v < n_rows; v++) {
        SL_UNROLL
        for (int s = 0; s < n_strips; s++) {
            _mm512_store_ps(c + (size_t)v * c_stride + SL_STRIP * s, sum[v][s]);
        }
    }
}

typedef void chain_fn(const struct sl_avx2_product *p, size_t begin, size_t end);

#define CHAIN(rows, strips)                                                                                            \
    static void chain_##rows##_##strips(const struct sl_avx2_product *p, size_t begin, size_t end) {                   \
        chain(p, begin, end, rows, strips);                                                                            \
    }
#define CHAINS(rows) CHAIN(rows, 1) CHAIN(rows, 2) CHAIN(rows, 3) CHAIN(rows, 4)
CHAINS(1)
CHAINS(2)
CHAINS(3)
CHAINS(4)
CHAINS(5)
CHAINS(6)
#define NAMES(rows)                                                                                                    \
    { chain_##rows##_1, chain_##rows##_2, chain_##rows##_3, chain_##rows##_4 }
static chain_fn *const chains[ROWS][WIDE] = {NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6)};

// Multiplies as sl_avx2_multiply(), with the same chains of sums. It takes some strips at a time, so that they stay in
// the first-level cache for all rows.
static void multiply(const struct sl_avx2_product *p, int row_begin, int row_end, int n_strips, size_t begin,
                     size_t end) {
    for (int s = 0; s < n_strips; s += WIDE) {
        int n = n_strips - s < WIDE ? n_strips - s : WIDE;
        for (int v = row_begin; v < row_end; v += ROWS) {
            int n_rows = row_end - v < ROWS ? row_end - v : ROWS;
            const struct sl_avx2_product part = sl_avx2_product_from(p, v, s);
            chains[n_rows - 1][n - 1](&part, begin, end);
        }
    }
}
