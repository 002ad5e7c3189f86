// SPDX-License-Identifier: Apache-2.0
// Purpose: a transposition of 16-bit elements. Include only from files built with -mavx2.
#pragma once

#include "engine/tensor/cpu/simd/avx2_math.h" // SL_UNROLL

/*
 * Transposes rows t and t + 8 of 8 elements of 16 bits, the halves of x[t], into columns: x[c] = column c of all 16
 * rows. Interleaving the first four registers with the last four rotates the six bits of an element's number (row,
 * column) by one. After three rotations row and column are exchanged.
 */
static inline __attribute__((always_inline)) void sl_avx2_transpose_16x8(__m256i *x) {
    SL_UNROLL
    for (int step = 0; step < 3; step++) {
        __m256i y[8];
        SL_UNROLL
        for (int t = 0; t < 4; t++) {
            y[2 * t] = _mm256_unpacklo_epi16(x[t], x[t + 4]);
            y[2 * t + 1] = _mm256_unpackhi_epi16(x[t], x[t + 4]);
        }
        SL_UNROLL
        for (int t = 0; t < 8; t++) {
            x[t] = y[t];
        }
    }
}
