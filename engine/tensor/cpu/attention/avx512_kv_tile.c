// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts pages to f32 tiles with AVX-512; avx2_kv_tile.c converts the other formats.
 *
 * Design: K of 16 bits is transposed 32 tokens by 8 channels at a time, where avx2_kv_tile.c takes 16 tokens: the four
 *         parts of a register take four runs of 8 tokens. A row of codes of a channel becomes a row of the tile.
 */
#include <string.h>

#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/simd/avx512_transpose.h"

static inline __attribute__((always_inline)) __m512 widen(__m256i x, enum sl_kv_format format) {
    switch (format) {
    case SL_KV_F16:
        return _mm512_cvtph_ps(x);
    case SL_KV_BF16:
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    case SL_KV_F32:
    case SL_KV_INT8:
    case SL_KV_INT4:
    case SL_KV_INT2:
    case SL_KV_INT1:
        break;
    }
    __builtin_unreachable();
}

static inline __attribute__((always_inline)) void keys_from_16_bits(const uint16_t *k, const char *next, size_t d,
                                                                    enum sl_kv_format format, float *tile) {
    for (size_t half = 0; half < 2; half++, k += 32 * d, tile += 2 * d * SL_STRIP) {
        for (size_t i = 0; i < d; i += 8, next += 512) {
            sl_avx512_fetch(next, 8);
            __m512i x[8];
            SL_UNROLL
            for (size_t t = 0; t < 8; t++) { // tokens t, t + 8, t + 16, t + 24
                const uint16_t *row = k + t * d + i;
                __m512i r = _mm512_castsi128_si512(_mm_load_si128((const __m128i *)row));
                r = _mm512_mask_broadcast_i32x4(r, 0x00f0, _mm_load_si128((const __m128i *)(row + 8 * d)));
                r = _mm512_mask_broadcast_i32x4(r, 0x0f00, _mm_load_si128((const __m128i *)(row + 16 * d)));
                x[t] = _mm512_mask_broadcast_i32x4(r, 0xf000, _mm_load_si128((const __m128i *)(row + 24 * d)));
            }
            sl_avx512_transpose_32x8(x);
            SL_UNROLL
            for (size_t c = 0; c < 8; c++) {
                float *to = tile + (i + c) * SL_STRIP;
                _mm512_store_ps(to, widen(_mm512_castsi512_si256(x[c]), format));
                _mm512_store_ps(to + d * SL_STRIP, widen(_mm512_extracti64x4_epi64(x[c], 1), format));
            }
        }
    }
}

static inline __attribute__((always_inline)) void values_from_16_bits(const uint16_t *v, const char *next, size_t d,
                                                                      size_t n, enum sl_kv_format format, float *tile) {
    for (size_t j = 0; j < n; j++, v += d, next += 2 * d) {
        for (size_t line = 0; line < 2 * d; line += 64) {
            sl_avx512_fetch(next + line, 1);
        }
        for (size_t i = 0; i < d; i += SL_STRIP) {
            __mmask16 mask = d - i < SL_STRIP ? 0xff : 0xffff; // half a strip may remain
            _mm512_store_ps(tile + (i * SL_PAGE_SLOTS + j * SL_STRIP),
                            widen(_mm256_maskz_loadu_epi16(mask, v + i), format));
        }
    }
}

// Decodes sixteen codes of 8 or 4 bits, from code 16 * n of a row on; `bits` is a constant in every call.
static inline __attribute__((always_inline)) __m512 decode16(const uint8_t *row, size_t n, int bits, __m512 scale,
                                                             __m512 zero) {
    __m512i codes;
    if (bits == 8) {
        codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(row + 16 * n)));
    } else { // a byte holds two
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(row + 8 * n));
        __m128i high = _mm_srli_epi16(bytes, 4), mask = _mm_set1_epi8(15);
        codes = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(_mm_and_si128(bytes, mask), _mm_and_si128(high, mask)));
    }
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), scale, zero);
}

static inline __attribute__((always_inline)) void packed_keys(const struct sl_page_layout *layout, const char *page,
                                                              int bits, float *tile) {
    size_t d = (size_t)layout->head_dim;
    const uint8_t *row = (const uint8_t *)page + layout->k;
    const uint16_t *pair = (const uint16_t *)(page + layout->k_scale);
    for (size_t i = 0; i < d; i++, row += SL_PAGE_SLOTS / 8 * bits, pair += 2) {
        __m512 scale = _mm512_set1_ps(_cvtsh_ss(pair[0])), zero = _mm512_set1_ps(_cvtsh_ss(pair[1]));
        SL_UNROLL
        for (size_t n = 0; n < SL_PAGE_STRIPS; n++) {
            _mm512_store_ps(tile + (n * d + i) * SL_STRIP, decode16(row, n, bits, scale, zero));
        }
    }
}

// Groups of channels are whole strips.
static inline __attribute__((always_inline)) void packed_values(const struct sl_page_layout *layout, const char *page,
                                                                int n_slots, int bits, float *tile) {
    size_t strips = (size_t)layout->head_dim / SL_STRIP, in_group = (size_t)sl_v_group(layout->head_dim) / SL_STRIP;
    const uint8_t *row = (const uint8_t *)page + layout->v;
    const uint16_t *pair = (const uint16_t *)(page + layout->v_scale);
    for (size_t j = 0; j < (size_t)n_slots; j++, row += strips * 2 * (size_t)bits) {
        for (size_t first = 0; first < strips; first += in_group, pair += 2) {
            __m512 scale = _mm512_set1_ps(_cvtsh_ss(pair[0])), zero = _mm512_set1_ps(_cvtsh_ss(pair[1]));
            for (size_t n = first; n < first + in_group; n++) {
                _mm512_store_ps(tile + (n * SL_PAGE_SLOTS + j) * SL_STRIP, decode16(row, n, bits, scale, zero));
            }
        }
    }
}

void sl_avx512_fill_keys(const struct sl_page_layout *layout, const void *page, const char *next, float *tile) {
    const char *at = page;
    const uint16_t *k = (const uint16_t *)(at + layout->k);
    size_t d = (size_t)layout->head_dim;
    switch (layout->format) {
    case SL_KV_F16:
        keys_from_16_bits(k, next + layout->k, d, SL_KV_F16, tile);
        break;
    case SL_KV_BF16:
        keys_from_16_bits(k, next + layout->k, d, SL_KV_BF16, tile);
        break;
    case SL_KV_INT8:
        packed_keys(layout, at, 8, tile);
        break;
    case SL_KV_INT4:
        packed_keys(layout, at, 4, tile);
        break;
    case SL_KV_F32:
    case SL_KV_INT2:
    case SL_KV_INT1:
        sl_avx2_fill_keys(layout, page, tile);
        break;
    }
}

void sl_avx512_fill_values(const struct sl_page_layout *layout, const void *page, const char *next, int n,
                           float *tile) {
    const char *at = page;
    const uint16_t *v = (const uint16_t *)(at + layout->v);
    size_t d = (size_t)layout->head_dim;
    if (sl_kv_format_is_quantized(layout->format) && d % SL_STRIP != 0) {
        sl_avx2_fill_values(layout, page, n, tile);
        return;
    }
    switch (layout->format) {
    case SL_KV_F16:
        values_from_16_bits(v, next + layout->v, d, (size_t)n, SL_KV_F16, tile);
        break;
    case SL_KV_BF16:
        values_from_16_bits(v, next + layout->v, d, (size_t)n, SL_KV_BF16, tile);
        break;
    case SL_KV_INT8:
        packed_values(layout, at, n, 8, tile);
        break;
    case SL_KV_INT4:
        packed_values(layout, at, n, 4, tile);
        break;
    case SL_KV_F32:
    case SL_KV_INT2:
    case SL_KV_INT1:
        sl_avx2_fill_values(layout, page, n, tile);
        break;
    }
}
