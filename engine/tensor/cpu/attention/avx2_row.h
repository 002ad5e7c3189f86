// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: single K and V rows as f32 with AVX2, for operations that select slots; eight sums across registers, and
 *          eight rows as columns, at once. Include only from files compiled for AVX2, FMA and F16C.
 *
 * The values are those of the tiles (avx2_kv.h): a packed element is one fused multiply-add here, too.
 */
#pragma once

#include "engine/tensor/cpu/attention/kv_page.h"
#include "engine/tensor/cpu/simd/avx2_math.h"

// Widens eight elements of 16 bits.
static inline __attribute__((always_inline)) __m256 sl_avx2_widen8(__m128i x, enum sl_kv_format format) {
    switch (format) {
    case SL_KV_F16:
        return _mm256_cvtph_ps(x);
    case SL_KV_BF16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    case SL_KV_F32:
    case SL_KV_INT8:
    case SL_KV_INT4:
    case SL_KV_INT2:
    case SL_KV_INT1:
        break;
    }
    __builtin_unreachable();
}

// Loads eight elements from element e of a part on, in a float format.
static inline __attribute__((always_inline)) __m256 sl_avx2_load8(const char *part, size_t e,
                                                                  enum sl_kv_format format) {
    return format == SL_KV_F32 ? _mm256_loadu_ps((const float *)part + e)
                               : sl_avx2_widen8(_mm_loadu_si128((const __m128i *)((const uint16_t *)part + e)), format);
}

// The loops are written out by format, so that none branches on it within a row.
static inline void sl_avx2_read_floats(const char *part, size_t e, size_t d, enum sl_kv_format format, float *out) {
    switch (format) {
    case SL_KV_F16:
        for (size_t i = 0; i < d; i += 8) {
            _mm256_storeu_ps(out + i, sl_avx2_load8(part, e + i, SL_KV_F16));
        }
        return;
    case SL_KV_BF16:
        for (size_t i = 0; i < d; i += 8) {
            _mm256_storeu_ps(out + i, sl_avx2_load8(part, e + i, SL_KV_BF16));
        }
        return;
    case SL_KV_F32:
        memcpy(out, (const float *)part + e, d * sizeof *out);
        return;
    case SL_KV_INT8:
    case SL_KV_INT4:
    case SL_KV_INT2:
    case SL_KV_INT1:
        __builtin_unreachable(); // rows of codes are decoded elsewhere
    }
}

// Returns x^ of element e of a row of codes.
static inline float sl_avx2_decode(const uint8_t *row, size_t e, int bits, const uint16_t *pair) {
    size_t at = e * (size_t)bits;
    unsigned code = (unsigned)row[at / 8] >> (at % 8) & ((1u << bits) - 1u);
    return fmaf((float)code, _cvtsh_ss(pair[0]), _cvtsh_ss(pair[1]));
}

static inline void sl_avx2_read_k_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    const char *at = kv->pages[slot / SL_PAGE_SLOTS];
    size_t d = (size_t)layout->head_dim, j = slot % SL_PAGE_SLOTS;
    if (!sl_kv_format_is_quantized(layout->format)) {
        sl_avx2_read_floats(at + layout->k, j * d, d, layout->format, out);
        return;
    }
    int bits = sl_kv_format_bits(layout->format);
    size_t row_bytes = sl_row_bytes(SL_PAGE_SLOTS, bits);
    for (size_t i = 0; i < d; i++) { // by channel: every element has its own row and pair
        out[i] = sl_avx2_decode((const uint8_t *)at + layout->k + i * row_bytes, j, bits,
                                (const uint16_t *)(at + layout->k_scale) + 2 * i);
    }
}

static inline void sl_avx2_read_v_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    const char *at = kv->pages[slot / SL_PAGE_SLOTS];
    size_t d = (size_t)layout->head_dim, j = slot % SL_PAGE_SLOTS;
    if (!sl_kv_format_is_quantized(layout->format)) {
        sl_avx2_read_floats(at + layout->v, j * d, d, layout->format, out);
        return;
    }
    int bits = sl_kv_format_bits(layout->format);
    size_t channels = (size_t)sl_v_group(layout->head_dim);
    const uint8_t *row = (const uint8_t *)at + layout->v + j * sl_row_bytes(layout->head_dim, bits);
    const uint16_t *pairs = (const uint16_t *)(at + layout->v_scale) + 2 * (j * (d / channels));
    for (size_t i = 0; i < d; i++) {
        out[i] = sl_avx2_decode(row, i, bits, pairs + 2 * (i / channels));
    }
}

// Lane t = the sum of x[t]'s lanes, ((0+1)+(2+3)) + ((4+5)+(6+7)) for every t.
static inline __m256 sl_avx2_sum8(const __m256 *x) {
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// Transposes eight rows of 8 floats, `stride` floats apart, into columns `to_stride` floats apart.
static inline __attribute__((always_inline)) void sl_avx2_transpose_8x8(const float *from, size_t stride, float *to,
                                                                        size_t to_stride) {
    __m256 x[8], y[8];
    SL_UNROLL
    for (size_t t = 0; t < 4; t++) { // halves first: channels 0-3 of rows t and t + 4, then channels 4-7
        __m256 a = _mm256_load_ps(from + t * stride), b = _mm256_load_ps(from + (t + 4) * stride);
        x[t] = _mm256_permute2f128_ps(a, b, 0x20);
        x[t + 4] = _mm256_permute2f128_ps(a, b, 0x31);
    }
    SL_UNROLL
    for (size_t t = 0; t < 8; t += 4) { // then 4 by 4 within each half
        y[t] = _mm256_unpacklo_ps(x[t], x[t + 2]);
        y[t + 1] = _mm256_unpackhi_ps(x[t], x[t + 2]);
        y[t + 2] = _mm256_unpacklo_ps(x[t + 1], x[t + 3]);
        y[t + 3] = _mm256_unpackhi_ps(x[t + 1], x[t + 3]);
        _mm256_store_ps(to + t * to_stride, _mm256_unpacklo_ps(y[t], y[t + 2]));
        _mm256_store_ps(to + (t + 1) * to_stride, _mm256_unpackhi_ps(y[t], y[t + 2]));
        _mm256_store_ps(to + (t + 2) * to_stride, _mm256_unpacklo_ps(y[t + 1], y[t + 3]));
        _mm256_store_ps(to + (t + 3) * to_stride, _mm256_unpackhi_ps(y[t + 1], y[t + 3]));
    }
}
