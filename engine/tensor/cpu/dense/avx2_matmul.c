// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the inner loops of matmul with AVX2, FMA and F16C. See narrow.h for the whole.
 *
 * Design: a tile keeps up to 12 registers of sums.
 */
#include "engine/tensor/cpu/dense/narrow.h"
#include "engine/tensor/cpu/simd/vector.h"

#define INLINE    static inline __attribute__((always_inline))
#define REGISTERS (SL_NARROW / SL_VECTOR_FLOATS)

// Loads the 16 weights of a step, widened.
INLINE void load_step(enum sl_narrow_form form, const char *weights, __m256 step[2]) {
    if (form == SL_NARROW_F32) {
        step[0] = _mm256_loadu_ps((const float *)weights);
        step[1] = _mm256_loadu_ps((const float *)weights + 8);
    } else if (form == SL_NARROW_F16) {
        step[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)weights));
        step[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)weights + 1));
    } else {
        __m256i pairs = _mm256_loadu_si256((const __m256i *)weights);
        step[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        step[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
    }
}

#include "engine/tensor/cpu/dense/narrow_tiles.h"
