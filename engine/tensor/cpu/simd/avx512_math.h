// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: functions that several AVX-512 kernels need: exp and the activations of a register. Include only from files
 *          built for AVX-512.
 */
#pragma once

#include <immintrin.h>

#include "engine/tensor/cpu/simd/avx2_math.h" // SL_UNROLL
#include "engine/tensor/ops.h"

// Returns a mask of the first `count` lanes; none if it is negative.
static inline __mmask16 sl_avx512_lanes(int64_t count) {
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/*
 * Returns exp(x) = 2^n exp(f), n = round(x / ln 2), f = x - n ln 2 in two parts, |f| <= ln 2 / 2; a polynomial of
 * degree 6 for exp(f). Relative error below 2e-7 where the result is normal. It underflows and overflows as exp does; a
 * NaN stays NaN.
 */
static inline __m512 sl_avx512_exp(__m512 x) {
    // min and max return the second operand when there is a NaN
    x = _mm512_min_ps(_mm512_set1_ps(89.0f), _mm512_max_ps(_mm512_set1_ps(-105.0f), x));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
    __m512 p = _mm512_set1_ps(1.0f / 720.0f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/*
 * Returns GELU. With z = |x| / sqrt 2, 1 - erf(z) = t (a1 + t (a2 + ... + t a5)) exp(-z^2), t = 1 / (1 + p z):
 * Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26; the error of erf is below 1.5e-7.
 */
static inline __m512 sl_avx512_gelu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
    __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    __m512 upper = _mm512_mul_ps(_mm512_mul_ps(p, t), sl_avx512_exp(_mm512_sub_ps(zero, _mm512_mul_ps(z, z))));
    __m512 tail = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.5f)), upper); // x (1 - erf(z)) / 2
    return _mm512_mask_sub_ps(tail, _mm512_cmp_ps_mask(x, zero, _CMP_NLT_UQ), x, tail);
}

static inline __m512 sl_avx512_activate(enum sl_activation activation, __m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    if (activation == SL_ACT_NONE) {
        return x;
    }
    if (activation == SL_ACT_GELU) {
        return sl_avx512_gelu(x);
    }
    __m512 z = x; // x / (1 + exp(-z)); (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
    if (activation == SL_ACT_GELU_TANH) {
        __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
        z = _mm512_mul_ps(_mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x), _mm512_set1_ps(2.0f * 0.79788456f));
    }
    // Added to 1, exp(-80) has no effect; a subnormal exp would cost the processor a hundred cycles.
    z = _mm512_max_ps(_mm512_set1_ps(-80.0f), _mm512_sub_ps(_mm512_setzero_ps(), z)); // NaN stays
    return _mm512_div_ps(x, _mm512_add_ps(one, sl_avx512_exp(z)));
}

// Returns exp(x) / 2^n, for n near x / log 2.
static inline __m512 sl_avx512_exp_fraction(__m512 x, __m512 n) {
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
    __m512 p = _mm512_set1_ps(0.00831252019f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0418901569f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.166671146f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.499992315f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
}

// As sl_avx2_exp_weight().
static inline __m512 sl_avx512_exp_weight(__m512 x) {
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 p = sl_avx512_exp_fraction(x, n);
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-86.98f), _CMP_NLT_UQ), p, n);
}
