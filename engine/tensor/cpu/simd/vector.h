// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a register of floats under the same names with AVX-512, AVX2 and NEON, for kernels that have one source for
 *          them. Sums, differences, products and quotients are the compiler's operators. Include only from files that
 *          are built for one of them.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include "engine/tensor/cpu/simd/avx512_math.h"

#define SL_VECTOR        __m512
#define SL_VECTOR_FLOATS 16

static inline SL_VECTOR sl_vector_load(const float *from) {
    return _mm512_loadu_ps(from);
}
static inline void sl_vector_store(float *to, SL_VECTOR v) {
    _mm512_storeu_ps(to, v);
}
static inline SL_VECTOR sl_vector_set(float x) {
    return _mm512_set1_ps(x);
}
static inline SL_VECTOR sl_vector_from_f16(const uint16_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
static inline SL_VECTOR sl_vector_from_bf16(const uint16_t *from) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
// Returns a * b + c, rounded once.
static inline SL_VECTOR sl_vector_multiply_add(SL_VECTOR a, SL_VECTOR b, SL_VECTOR c) {
    return _mm512_fmadd_ps(a, b, c);
}
#elif defined(__x86_64__)
#include "engine/tensor/cpu/simd/avx2_math.h"

#define SL_VECTOR        __m256
#define SL_VECTOR_FLOATS 8

static inline SL_VECTOR sl_vector_load(const float *from) {
    return _mm256_loadu_ps(from);
}
static inline void sl_vector_store(float *to, SL_VECTOR v) {
    _mm256_storeu_ps(to, v);
}
static inline SL_VECTOR sl_vector_set(float x) {
    return _mm256_set1_ps(x);
}
static inline SL_VECTOR sl_vector_from_f16(const uint16_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
static inline SL_VECTOR sl_vector_from_bf16(const uint16_t *from) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline SL_VECTOR sl_vector_multiply_add(SL_VECTOR a, SL_VECTOR b, SL_VECTOR c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline SL_VECTOR sl_vector_exp(SL_VECTOR x) {
    return sl_avx2_exp(x);
}
// Returns the sum, always added in the same order.
static inline float sl_vector_sum(SL_VECTOR v) {
    return sl_avx2_sum(v);
}
#else
#include "engine/tensor/cpu/simd/neon_math.h"

#define SL_VECTOR        float32x4_t
#define SL_VECTOR_FLOATS 4

static inline SL_VECTOR sl_vector_load(const float *from) {
    return vld1q_f32(from);
}
static inline void sl_vector_store(float *to, SL_VECTOR v) {
    vst1q_f32(to, v);
}
static inline SL_VECTOR sl_vector_set(float x) {
    return vdupq_n_f32(x);
}
static inline SL_VECTOR sl_vector_from_f16(const uint16_t *from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
static inline SL_VECTOR sl_vector_from_bf16(const uint16_t *from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}
static inline SL_VECTOR sl_vector_multiply_add(SL_VECTOR a, SL_VECTOR b, SL_VECTOR c) {
    return vfmaq_f32(c, a, b);
}
static inline SL_VECTOR sl_vector_exp(SL_VECTOR x) {
    return sl_neon_exp(x);
}
static inline float sl_vector_sum(SL_VECTOR v) {
    return vaddvq_f32(v);
}
#endif

// Load or store the first n floats at the end of a row; the other lanes are loaded as 0, and are not stored.
#if defined(__AVX512F__)
static inline SL_VECTOR sl_vector_load_first(const float *from, int64_t n) {
    return _mm512_maskz_loadu_ps(sl_avx512_lanes(n), from);
}
static inline void sl_vector_store_first(float *to, int64_t n, SL_VECTOR v) {
    _mm512_mask_storeu_ps(to, sl_avx512_lanes(n), v);
}
#else
static inline SL_VECTOR sl_vector_load_first(const float *from, int64_t n) {
    float floats[SL_VECTOR_FLOATS] = {0};
    if (n >= SL_VECTOR_FLOATS) {
        return sl_vector_load(from);
    }
    memcpy(floats, from, (size_t)n * sizeof(float));
    return sl_vector_load(floats);
}
static inline void sl_vector_store_first(float *to, int64_t n, SL_VECTOR v) {
    float floats[SL_VECTOR_FLOATS];
    if (n >= SL_VECTOR_FLOATS) {
        sl_vector_store(to, v);
        return;
    }
    sl_vector_store(floats, v);
    memcpy(to, floats, (size_t)n * sizeof(float));
}
#endif
