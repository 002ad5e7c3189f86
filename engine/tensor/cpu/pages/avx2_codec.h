// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: elements of pages as f32 in AVX2 registers, eight at a time, in every format. Include only from files
 *          compiled for AVX2, FMA and F16C.
 *
 * Design: a format is a constant in every call, so each call becomes the code of one format. A format that has no code
 *         here is read and written by way of the reference (ref_codec.h). x^ = fma(number, scale, zero) in all cases.
 *         Codes of up to three bits stand for at most eight values, which are looked up instead.
 */
#pragma once

#include <string.h>

#include "engine/tensor/cpu/pages/ref_codec.h"
#include "engine/tensor/cpu/simd/avx2_math.h"

// --- floats ----------------------------------------------------------------------------------------------------------

// Returns true for formats whose elements sl_avx2_widen8() can widen in a register.
static inline bool sl_avx2_widens(enum sl_kv_format format) {
    return format == SL_KV_F16 || format == SL_KV_BF16;
}

static inline __attribute__((always_inline)) __m256 sl_avx2_widen8(__m128i x, enum sl_kv_format format) {
    return format == SL_KV_F16 ? _mm256_cvtph_ps(x)
                               : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

// Does what sl_avx2_load8() does, for any format.
static inline __m256 sl_avx2_load8_by_reference(const char *part, size_t e, enum sl_kv_format format) {
    _Alignas(32) float x[8];
    for (size_t i = 0; i < 8; i++) {
        x[i] = sl_ref_read_float(format, part, e + i);
    }
    return _mm256_load_ps(x);
}

// Loads eight elements from element e of a part on, in a float format.
static inline __attribute__((always_inline)) __m256 sl_avx2_load8(const char *part, size_t e,
                                                                  enum sl_kv_format format) {
    if (sl_avx2_widens(format)) {
        return sl_avx2_widen8(_mm_loadu_si128((const __m128i *)((const uint16_t *)part + e)), format);
    }
    return format == SL_KV_F32 ? _mm256_loadu_ps((const float *)part + e) : sl_avx2_load8_by_reference(part, e, format);
}

static inline __m128i sl_avx2_f16_saturated(__m256 x) { // a NaN as second operand passes through min and max
    x = _mm256_max_ps(_mm256_set1_ps(-SL_F16_MAX), _mm256_min_ps(_mm256_set1_ps(SL_F16_MAX), x));
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

// Writes eight elements, rounded to a float format, f16 saturated.
static inline __attribute__((always_inline)) void sl_avx2_store8(char *part, size_t e, enum sl_kv_format format,
                                                                 __m256 x) {
    if (format == SL_KV_F32) {
        _mm256_storeu_ps((float *)part + e, x);
    } else if (format == SL_KV_F16) {
        _mm_storeu_si128((__m128i *)((uint16_t *)part + e), sl_avx2_f16_saturated(x));
    } else {
        _Alignas(32) float from[8];
        _mm256_store_ps(from, x);
        for (size_t i = 0; i < 8; i++) {
            sl_ref_write_float(format, part, e + i, from[i]);
        }
    }
}

// --- codes -----------------------------------------------------------------------------------------------------------

// Returns the bits of codes that are the integers from 0 on; 0 for other formats, which the reference quantizes.
static inline int sl_avx2_integer_bits(enum sl_kv_format format) {
    bool known = format == SL_KV_INT8 || format == SL_KV_INT4 || format == SL_KV_INT3 || format == SL_KV_INT2 ||
                 format == SL_KV_INT1;
    return known ? sl_kv_format_bits(format) : 0;
}

// Returns x^ of element e of a row of codes.
static inline float sl_avx2_decode(const uint8_t *row, size_t e, enum sl_kv_format format, const uint16_t *pair) {
    return fmaf(sl_ref_number(row, (int)e, format), _cvtsh_ss(pair[0]), _cvtsh_ss(pair[1]));
}

// The values that a group of codes stands for.
struct sl_avx2_codebook {
    __m256 scale, zero;
    __m256 values; // of the codes, repeated, so that bits above a code do not matter
};

static inline __attribute__((always_inline)) struct sl_avx2_codebook sl_avx2_codebook(const uint16_t *pair,
                                                                                      enum sl_kv_format format) {
    struct sl_avx2_codebook b = {_mm256_set1_ps(_cvtsh_ss(pair[0])), _mm256_set1_ps(_cvtsh_ss(pair[1])),
                                 _mm256_setzero_ps()};
    if (format == SL_KV_INT3) {
        b.values = _mm256_fmadd_ps(_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), b.scale, b.zero);
    } else if (format == SL_KV_INT2) {
        b.values = _mm256_fmadd_ps(_mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3), b.scale, b.zero);
    } else if (format == SL_KV_INT1) {
        b.values = _mm256_fmadd_ps(_mm256_setr_ps(0, 1, 0, 1, 0, 1, 0, 1), b.scale, b.zero);
    }
    return b;
}

// Does what sl_avx2_decode8() does, for any format.
static inline __m256 sl_avx2_decode8_by_reference(const uint8_t *row, size_t n, enum sl_kv_format format,
                                                  const struct sl_avx2_codebook *b) {
    _Alignas(32) float x[8];
    for (size_t i = 0; i < 8; i++) {
        x[i] = sl_ref_number(row, (int)(8 * n + i), format);
    }
    return _mm256_fmadd_ps(_mm256_load_ps(x), b->scale, b->zero);
}

// Decodes the eight codes from code 8 * n of a row on. Of codes of up to 4 bits it loads four bytes, which one instruction
// broadcasts: rows have scales after them.
static inline __attribute__((always_inline)) __m256
sl_avx2_decode8(const uint8_t *row, size_t n, enum sl_kv_format format, const struct sl_avx2_codebook *b) {
    if (format == SL_KV_INT8) {
        __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(row + 8 * n)));
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes), b->scale, b->zero);
    }
    if (sl_avx2_integer_bits(format) == 0) {
        return sl_avx2_decode8_by_reference(row, n, format, b);
    }
    const int bits = sl_kv_format_bits(format);
    uint32_t word;
    memcpy(&word, row + n * (size_t)bits, sizeof word);
    const __m256i shifts = _mm256_setr_epi32(0, bits, 2 * bits, 3 * bits, 4 * bits, 5 * bits, 6 * bits, 7 * bits);
    __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32((int)word), shifts); // the code is in the low bits
    if (format == SL_KV_INT3) {
        return _mm256_permutevar8x32_ps(b->values, codes); // reads only the low three bits
    }
    if (format != SL_KV_INT4) {
        return _mm256_permutevar_ps(b->values, codes); // reads only the low two bits
    }
    codes = _mm256_and_si256(codes, _mm256_set1_epi32(15));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes), b->scale, b->zero);
}
