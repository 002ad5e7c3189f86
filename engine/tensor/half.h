// SPDX-License-Identifier: Apache-2.0
// Purpose: converts the two 16-bit float formats to and from f32, bit by bit, rounding to nearest even as processors
//          do.
#pragma once

#include <stdint.h>
#include <string.h>

static inline float sl_bits_to_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sl_f32_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// bf16 is the upper half of an f32.
static inline float sl_bf16_to_f32(uint16_t half) {
    return sl_bits_to_f32((uint32_t)half << 16);
}

static inline uint16_t sl_f32_to_bf16(float value) {
    uint32_t bits = sl_f32_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u); // a NaN stays a NaN, and becomes quiet
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// An f16 has 1 sign bit, 5 exponent bits (bias 15) and 10 mantissa bits.
static inline float sl_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu) {
        return sl_bits_to_f32(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0));
    }
    if (exponent == 0) { // zero or subnormal: mantissa * 2^-24, exact in f32
        float magnitude = (float)mantissa * 0x1p-24f;
        return sl_bits_to_f32(sign | sl_f32_to_bits(magnitude));
    }
    return sl_bits_to_f32(sign | (exponent + 112u) << 23 | mantissa << 13);
}

static inline uint16_t sl_f32_to_f16(float value) {
    uint32_t bits = sl_f32_to_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu)); // NaN, made quiet
    }
    if (magnitude >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00u); // rounds to 65536 or more: infinity
    }
    if (magnitude < 0x38800000u) { // below 2^-14: count units of 2^-24; adding 0.5 rounds the f32 sum to just those
        float shifted = sl_bits_to_f32(magnitude) + 0.5f;
        return (uint16_t)(sign | (sl_f32_to_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}
