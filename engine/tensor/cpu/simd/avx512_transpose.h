// SPDX-License-Identifier: Apache-2.0
// Purpose: transpositions of 32-bit and of 16-bit elements. Include only from files built for AVX-512.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "engine/tensor/cpu/simd/avx2_math.h" // SL_UNROLL

/*
 * Sets lane r of columns_out[c] = from[r * stride + c], r and c < 16. The first two of the four steps are loads, which
 * halves the number of shuffles of a transposition in registers.
 */
static inline __attribute__((always_inline)) void sl_avx512_transpose(const float *from, int64_t stride,
                                                                      __m512 columns_out[16]) {
    SL_UNROLL
    for (int q = 0; q < 4; q++) { // four columns: lane L of rows[i] holds columns 4 q .. 4 q + 3 of row 4 L + i
        __m512 rows[4];
        SL_UNROLL
        for (int i = 0; i < 4; i++) {
            const float *at = from + i * stride + 4 * q;
            rows[i] = _mm512_castps128_ps512(_mm_loadu_ps(at));
            rows[i] = _mm512_insertf32x4(rows[i], _mm_loadu_ps(at + 4 * stride), 1);
            rows[i] = _mm512_insertf32x4(rows[i], _mm_loadu_ps(at + 8 * stride), 2);
            rows[i] = _mm512_insertf32x4(rows[i], _mm_loadu_ps(at + 12 * stride), 3);
        }
        __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[0], rows[1]));
        __m512d hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[0], rows[1]));
        __m512d lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[2], rows[3]));
        __m512d hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[2], rows[3]));
        columns_out[4 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23));
        columns_out[4 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23));
        columns_out[4 * q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23));
        columns_out[4 * q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23));
    }
}

// Transposes as sl_avx2_transpose_16x8(): rows t, t + 8, t + 16 and t + 24, the quarters of x[t], become columns.
static inline __attribute__((always_inline)) void sl_avx512_transpose_32x8(__m512i *x) {
    SL_UNROLL
    for (int step = 0; step < 3; step++) {
        __m512i y[8];
        SL_UNROLL
        for (int t = 0; t < 4; t++) {
            y[2 * t] = _mm512_unpacklo_epi16(x[t], x[t + 4]);
            y[2 * t + 1] = _mm512_unpackhi_epi16(x[t], x[t + 4]);
        }
        SL_UNROLL
        for (int t = 0; t < 8; t++) {
            x[t] = y[t];
        }
    }
}
