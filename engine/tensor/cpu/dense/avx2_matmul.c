// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the inner loops of matmul with AVX2, FMA and F16C. See narrow.h for the whole.
 *
 * Design: a tile keeps up to 12 registers of sums. A nibble of an INT4 weight becomes mantissa bits of the float 16 +
 *         u, where u = code + 8 after a flip of the sign bit. One fused multiply-add computes s * (16 + u) - 24 s: the
 *         same float as s * code, with a shift, a mask and one bit operation less than by way of integers.
 */
#include "engine/tensor/cpu/dense/narrow.h"
#include "engine/tensor/cpu/simd/vector.h"

#define INLINE    static inline __attribute__((always_inline))
#define REGISTERS (SL_NARROW / SL_VECTOR_FLOATS)

// The scales of a group of steps; for INT4 also the bias of its codes.
struct scales {
    __m256 by[2], less[2];
};

INLINE struct scales load_scales(enum sl_narrow_form form, const char *group) {
    struct scales scales = {{_mm256_setzero_ps(), _mm256_setzero_ps()}, {_mm256_setzero_ps(), _mm256_setzero_ps()}};
    if (form == SL_NARROW_INT8 || form == SL_NARROW_INT4) {
        for (int c = 0; c < 2; c++) {
            scales.by[c] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)group + c));
            scales.less[c] = _mm256_mul_ps(scales.by[c], _mm256_set1_ps(24.0f));
        }
    }
    return scales;
}

// Returns four bits of every word, from bit `at` on, as s * code.
INLINE __m256 from_nibbles(__m256i words, int at, __m256 by, __m256 less) {
    words = at < 19 ? _mm256_slli_epi32(words, 19 - at) : _mm256_srli_epi32(words, at - 19);
    __m256i bits = _mm256_and_si256(words, _mm256_set1_epi32(15 << 19));
    bits = _mm256_xor_si256(bits, _mm256_set1_epi32(0x41800000 | 8 << 19)); // 16 + (code + 8)
    return _mm256_fmsub_ps(_mm256_castsi256_ps(bits), by, less);
}

// Loads the 16 weights of step 4 q + s of a group, widened; s is a constant.
INLINE void load_step(enum sl_narrow_form form, const char *group, int64_t q, int s, const struct scales *scales,
                      __m256 step[2]) {
    int64_t i = 4 * q + s;
    if (form == SL_NARROW_F32) {
        step[0] = _mm256_loadu_ps((const float *)group + i * SL_NARROW);
        step[1] = _mm256_loadu_ps((const float *)group + i * SL_NARROW + 8);
    } else if (form == SL_NARROW_F16) {
        step[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)group + 2 * i));
        step[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)group + 2 * i + 1));
    } else if (form == SL_NARROW_BF16) {
        __m256i pairs = _mm256_loadu_si256((const __m256i *)group + i);
        step[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        step[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
    } else if (form == SL_NARROW_INT8) {
        const char *codes = group + SL_NARROW_SCALES + i * SL_NARROW;
        for (int c = 0; c < 2; c++) {
            __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(codes + 8 * c)));
            step[c] = _mm256_mul_ps(_mm256_cvtepi32_ps(wide), scales->by[c]);
        }
    } else {
        __m256i words = _mm256_loadu_si256((const __m256i *)(group + SL_NARROW_SCALES) + q);
        step[0] = from_nibbles(words, 8 * s, scales->by[0], scales->less[0]);
        step[1] = from_nibbles(words, 8 * s + 4, scales->by[1], scales->less[1]);
    }
}

#include "engine/tensor/cpu/dense/narrow_tiles.h"
