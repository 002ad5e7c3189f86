// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: single K and V rows as f32 with AVX2, for operations that select slots; eight sums across registers, and
 *          eight rows as columns, at once. Include only from files compiled for AVX2, FMA and F16C.
 *
 * The values are those of the tiles (avx2_kv.h).
 */
#pragma once

#include "engine/tensor/cpu/pages/avx2_codec.h"

static inline __attribute__((always_inline)) void sl_avx2_read_floats(const char *part, size_t e, size_t d,
                                                                      enum sl_kv_format format, float *out) {
    for (size_t i = 0; i < d; i += 8) {
        _mm256_storeu_ps(out + i, sl_avx2_load8(part, e + i, format));
    }
}

static inline void sl_avx2_read_k_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    const char *at = kv->pages[slot / SL_PAGE_SLOTS];
    size_t d = (size_t)layout->head_dim, j = slot % SL_PAGE_SLOTS;
    if (!sl_kv_format_is_quantized(layout->k_format)) {
        SL_KV_WITH_FLOATS(layout->k_format, sl_avx2_read_floats(at + layout->k, j * d, d, FORMAT, out));
        return;
    }
    size_t row_bytes = sl_row_bytes(SL_PAGE_SLOTS, sl_kv_format_bits(layout->k_format));
    for (size_t i = 0; i < d; i++) { // by channel: every element has its own row and pair
        out[i] = sl_avx2_decode((const uint8_t *)at + layout->k + i * row_bytes, j, layout->k_format,
                                (const uint16_t *)(at + layout->k_scale) + 2 * i);
    }
}

static inline void sl_avx2_read_v_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    const char *at = kv->pages[slot / SL_PAGE_SLOTS];
    size_t d = (size_t)layout->head_dim, j = slot % SL_PAGE_SLOTS;
    if (!sl_kv_format_is_quantized(layout->v_format)) {
        SL_KV_WITH_FLOATS(layout->v_format, sl_avx2_read_floats(at + layout->v, j * d, d, FORMAT, out));
        return;
    }
    size_t channels = (size_t)sl_v_group(layout->head_dim);
    size_t row_bytes = sl_row_bytes(layout->head_dim, sl_kv_format_bits(layout->v_format));
    const uint8_t *row = (const uint8_t *)at + layout->v + j * row_bytes;
    const uint16_t *pairs = (const uint16_t *)(at + layout->v_scale) + 2 * (j * (d / channels));
    for (size_t i = 0; i < d; i++) {
        out[i] = sl_avx2_decode(row, i, layout->v_format, pairs + 2 * (i / channels));
    }
}

// Lane t = the sum of x[t]'s lanes, ((0+1)+(2+3)) + ((4+5)+(6+7)) for every t.
static inline __m256 sl_avx2_sum8(const __m256 *x) {
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// Transposes eight rows of 8 elements of a part, from element e on and `stride` elements apart, into columns `to_stride`
// floats apart.
static inline __attribute__((always_inline)) void sl_avx2_transpose_8x8(const char *part, size_t e, size_t stride,
                                                                        enum sl_kv_format format, float *to,
                                                                        size_t to_stride) {
    __m256 x[8], y[8];
    SL_UNROLL
    for (size_t t = 0; t < 4; t++) { // halves first: channels 0-3 of rows t and t + 4, then channels 4-7
        __m256 a = sl_avx2_load8(part, e + t * stride, format), b = sl_avx2_load8(part, e + (t + 4) * stride, format);
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
