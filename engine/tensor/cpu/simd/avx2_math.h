// SPDX-License-Identifier: Apache-2.0
// Purpose: functions that several AVX2 kernels need: the sum of a register, and exp. Include only from files built with
//         -mavx2.
#pragma once

#include <immintrin.h>
#include <math.h>

#include "engine/tensor/cpu/simd/unroll.h"

// Returns ((0+4)+(2+6)) + ((1+5)+(3+7)): always in this order.
static inline float sl_avx2_sum(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/*
 * Returns exp(x) = 2^n exp(f), n = round(x / ln 2), f = x - n ln 2 in two parts, |f| <= ln 2 / 2; a polynomial of
 * degree 6 for exp(f). Relative error below 2e-7. Below -86.98 the result is 0 (no subnormals); over 88.7 it is
 * infinity; a NaN stays NaN.
 */
static inline __m256 sl_avx2_exp(__m256 x) {
    const __m256 least = _mm256_set1_ps(-86.98f), most = _mm256_set1_ps(88.72283f);
    __m256 clamped = _mm256_min_ps(_mm256_max_ps(x, least), most);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(clamped, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), clamped);
    f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), f);

    __m256 p = _mm256_set1_ps(1.0f / 720.0f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));

    // n is up to 128, and 2^128 overflows: multiply by 2^(n-1) and by 2
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(126));
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    __m256 y = _mm256_mul_ps(_mm256_mul_ps(p, power), _mm256_set1_ps(2.0f));

    y = _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), y);
    y = _mm256_blendv_ps(y, _mm256_set1_ps(INFINITY), _mm256_cmp_ps(x, most, _CMP_GT_OQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
