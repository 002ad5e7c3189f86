// SPDX-License-Identifier: Apache-2.0
// Purpose: exp for several NEON kernels. Include only from files built for AArch64.
#pragma once

#include <arm_neon.h>
#include <math.h>

#include "engine/tensor/cpu/simd/unroll.h"

/*
 * Returns exp(x) = 2^n exp(f), n = round(x / ln 2), f = x - n ln 2 in two parts, |f| <= ln 2 / 2; a polynomial of
 * degree 6 for exp(f). Relative error below 2e-7. Below -86.98 the result is 0 (no subnormals); over 88.7 it is
 * infinity; a NaN stays NaN.
 */
static inline float32x4_t sl_neon_exp(float32x4_t x) {
    const float32x4_t least = vdupq_n_f32(-86.98f), most = vdupq_n_f32(88.72283f);
    float32x4_t clamped = vminq_f32(vmaxq_f32(x, least), most);
    float32x4_t n = vrndnq_f32(vmulq_n_f32(clamped, 1.44269504f));
    float32x4_t f = vfmsq_f32(clamped, n, vdupq_n_f32(0.693359375f));
    f = vfmsq_f32(f, n, vdupq_n_f32(-2.12194440e-4f));

    float32x4_t p = vdupq_n_f32(1.0f / 720.0f);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 120.0f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 24.0f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 6.0f), p, f);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);

    // n is up to 128, and 2^128 overflows: multiply by 2^(n-1) and by 2
    int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(126));
    float32x4_t y = vmulq_n_f32(vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23))), 2.0f);

    y = vbslq_f32(vcltq_f32(x, least), vdupq_n_f32(0.0f), y);
    y = vbslq_f32(vcgtq_f32(x, most), vdupq_n_f32(INFINITY), y);
    return vbslq_f32(vceqq_f32(x, x), y, x);
}
