// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: elements of pages, one by one, in plain C. This defines every format, and faster tiers use it for formats
 *          that they do not know.
 *
 * To add a format of floats: cases in sl_ref_read_float() and sl_ref_write_float(). To add codes that are not integers,
 * or groups with other extremes: cases in the functions on codes.
 */
#pragma once

#include <math.h>

#include "engine/tensor/cpu/pages/kv_page.h"

// --- floats ----------------------------------------------------------------------------------------------------------

// Reads element e of a part in a float format.
static inline float sl_ref_read_float(enum sl_kv_format format, const char *part, size_t e) {
    switch (format) {
    case SL_KV_F32:
        return ((const float *)part)[e];
    case SL_KV_BF16:
        return sl_bf16_to_f32(((const uint16_t *)part)[e]);
    case SL_KV_F16:
        return sl_f16_to_f32(((const uint16_t *)part)[e]);
    default:
        __builtin_unreachable(); // codes need a scale and a zero
    }
}

// Writes element e, rounded to the format, f16 saturated.
static inline void sl_ref_write_float(enum sl_kv_format format, char *part, size_t e, float x) {
    switch (format) {
    case SL_KV_F32:
        ((float *)part)[e] = x;
        break;
    case SL_KV_BF16:
        ((uint16_t *)part)[e] = sl_f32_to_bf16(x);
        break;
    case SL_KV_F16:
        ((uint16_t *)part)[e] = sl_f32_to_f16_saturated(x);
        break;
    default:
        __builtin_unreachable();
    }
}

// --- codes: a row is a sequence of codes, least significant bits first -----------------------------------------------

static inline void sl_ref_put_code(uint8_t *row, int e, enum sl_kv_format format, unsigned code) {
    int bits = sl_kv_format_bits(format), at = e * bits;
    unsigned shifted = code << (at % 8);
    row[at / 8] = (uint8_t)(row[at / 8] | shifted); // the row was zeroed
    if (at % 8 + bits > 8) {
        row[at / 8 + 1] = (uint8_t)(row[at / 8 + 1] | shifted >> 8);
    }
}

// Returns the number that element e stands for before scale and zero.
static inline float sl_ref_number(const uint8_t *row, int e, enum sl_kv_format format) {
    int bits = sl_kv_format_bits(format), at = e * bits;
    unsigned next = at % 8 + bits > 8 ? row[at / 8 + 1] : 0u;
    return (float)((row[at / 8] | next << 8) >> (at % 8) & ((1u << bits) - 1u));
}

// Returns x^ = number * scale + zero, see page.h.
static inline float sl_ref_decode(const uint8_t *row, int e, enum sl_kv_format format, const uint16_t *pair) {
    return sl_ref_number(row, e, format) * sl_f16_to_f32(pair[0]) + sl_f16_to_f32(pair[1]);
}

// Scale and zero of one group, as they are stored: rounded to f16.
struct sl_ref_group {
    float scale, zero;
};

// Finds the least and the largest of n > 0 numbers, `stride` apart. Ignores NaNs; of equal ones (+0, -0) takes the later.
static inline void sl_ref_range_of(const float *x, int n, int stride, float *min_out, float *max_out) {
    float min = x[0], max = x[0];
    for (int e = 1; e < n; e++) {
        float next = x[(size_t)e * (size_t)stride]; // not fminf(): compilers swap its operands, and +0 equals -0
        min = next <= min || isnan(min) ? next : min;
        max = next >= max || isnan(max) ? next : max;
    }
    *min_out = min;
    *max_out = max;
}

// Computes s = (max - min) / (2^b - 1), z = min, both rounded to f16 before any code is computed.
static inline struct sl_ref_group sl_ref_group_of(const float *x, int n, int stride, enum sl_kv_format format,
                                                  uint16_t *pair_out) {
    float min, max;
    sl_ref_range_of(x, n, stride, &min, &max);
    pair_out[0] = sl_f32_to_f16_saturated((max - min) / (float)((1 << sl_kv_format_bits(format)) - 1));
    pair_out[1] = sl_f32_to_f16_saturated(min);
    return (struct sl_ref_group){sl_f16_to_f32(pair_out[0]), sl_f16_to_f32(pair_out[1])};
}

// Returns round-half-even(clamp((x - z) / s, 0, 2^b - 1)); 0 where s = 0, and for NaN.
static inline unsigned sl_ref_encode(float x, struct sl_ref_group g, enum sl_kv_format format) {
    float t = g.scale > 0.0f ? (x - g.zero) / g.scale : 0.0f;
    float top = (float)((1 << sl_kv_format_bits(format)) - 1);
    return !(t > 0.0f) ? 0u : t >= top ? (unsigned)top : (unsigned)nearbyintf(t);
}
