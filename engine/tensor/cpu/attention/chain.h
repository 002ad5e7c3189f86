// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the kernel of attention with AVX2 and AVX-512. Each tier includes it once, after it has defined
 *
 *     MULTIPLY_ADD(w, x, sum)    the sum plus the products of a broadcast element of A and a register of a strip
 *
 * Design: with AVX2, 6 rows by a strip of 16 sums, its 2 loads and a broadcast take 15 of 16 registers.
 */
#pragma once

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/simd/vector.h"

#define ROWS      6 // of A in one kernel
#define WIDE      4 // the most strips of one kernel
#define REGISTERS (SL_STRIP / SL_VECTOR_FLOATS)

// Multiplies n_rows by n_strips strips, constants in every call; see sl_avx2_product.
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
    SL_VECTOR sum[ROWS][REGISTERS * WIDE];
    SL_UNROLL
    for (int v = 0; v < n_rows; v++) {
        SL_UNROLL
        for (int i = 0; i < REGISTERS * n_strips; i++) {
            sum[v][i] = sl_vector_set(0.0f);
            if (factor != NULL) {
                sum[v][i] = sl_vector_load(c + (size_t)v * c_stride + SL_VECTOR_FLOATS * i) * sl_vector_set(factor[v]);
            }
        }
    }
    size_t strip = p->strip_rows * SL_STRIP, a_stride = p->a_stride;
    for (size_t e = begin; e < end; e++, b += SL_STRIP) {
        SL_VECTOR x[REGISTERS * WIDE];
        SL_UNROLL
        for (int i = 0; i < REGISTERS * n_strips; i++) {
            x[i] = sl_vector_load(b + (size_t)(i / REGISTERS) * strip + SL_VECTOR_FLOATS * (i % REGISTERS));
        }
        SL_UNROLL
        for (int v = 0; v < n_rows; v++) {
            SL_VECTOR w = sl_vector_set(a[(size_t)v * a_stride + e]);
            SL_UNROLL
            for (int i = 0; i < REGISTERS * n_strips; i++) {
                sum[v][i] = MULTIPLY_ADD(w, x[i], sum[v][i]);
            }
        }
    }
    SL_UNROLL
    for (int v = 0; v < n_rows; v++) {
        SL_UNROLL
        for (int i = 0; i < REGISTERS * n_strips; i++) {
            sl_vector_store(c + (size_t)v * c_stride + SL_VECTOR_FLOATS * i, sum[v][i]);
        }
    }
}
