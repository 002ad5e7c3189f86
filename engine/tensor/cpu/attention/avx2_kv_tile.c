// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts pages to f32 tiles with AVX2: transposed K, and V, in the strips of avx2_kv.h.
 *
 * Design: float formats keep K by token, so K^T needs a transposition: of 16 tokens by 8 channels, done while elements
 *         that have 16 bits still do. Packed formats keep K by channel: a row of codes, with one scale and zero, is a
 *         row of the tile. avx2_codec.h reads the elements.
 */
#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/pages/avx2_row.h"
#include "engine/tensor/cpu/simd/avx2_transpose.h"

// --- codes -----------------------------------------------------------------------------------------------------------

static inline __attribute__((always_inline)) void packed_keys(const struct sl_page_layout *layout, const char *page,
                                                              enum sl_kv_format format, float *tile) {
    size_t d = (size_t)layout->head_dim, row_bytes = sl_row_bytes(SL_PAGE_SLOTS, sl_kv_format_bits(format));
    const uint8_t *row = (const uint8_t *)page + layout->k;
    const uint16_t *pair = (const uint16_t *)(page + layout->k_scale);
    for (size_t i = 0; i < d; i++, row += row_bytes, pair += 2) {
        struct sl_avx2_codebook b = sl_avx2_codebook(pair, format);
        SL_UNROLL
        for (size_t n = 0; n < SL_PAGE_SLOTS / 8; n++) {
            _mm256_store_ps(tile + ((n / 2) * d + i) * SL_STRIP + n % 2 * 8, sl_avx2_decode8(row, n, format, &b));
        }
    }
}

static inline __attribute__((always_inline)) void packed_values(const struct sl_page_layout *layout, const char *page,
                                                                size_t n_slots, enum sl_kv_format format, float *tile) {
    size_t octets = (size_t)layout->head_dim / 8, in_group = (size_t)sl_v_group(layout->head_dim) / 8;
    const uint8_t *row = (const uint8_t *)page + layout->v;
    const uint16_t *pair = (const uint16_t *)(page + layout->v_scale);
    for (size_t j = 0; j < n_slots; j++, row += octets * (size_t)sl_kv_format_bits(format)) {
        for (size_t first = 0; first < octets; first += in_group, pair += 2) {
            struct sl_avx2_codebook b = sl_avx2_codebook(pair, format);
            for (size_t n = first; n < first + in_group; n++) {
                float *to = tile + ((n / 2) * SL_PAGE_SLOTS + j) * SL_STRIP + n % 2 * 8;
                _mm256_store_ps(to, sl_avx2_decode8(row, n, format, &b));
            }
        }
    }
}

// --- floats ----------------------------------------------------------------------------------------------------------

static inline __attribute__((always_inline)) void keys_from_16_bits(const uint16_t *k, size_t d,
                                                                    enum sl_kv_format format, float *tile) {
    for (size_t strip = 0; strip < SL_PAGE_STRIPS; strip++, k += SL_STRIP * d) {
        for (size_t i = 0; i < d; i += 8) {
            __m256i x[8];
            SL_UNROLL
            for (size_t t = 0; t < 8; t++) {
                __m128i low = _mm_load_si128((const __m128i *)(k + t * d + i));
                __m128i high = _mm_load_si128((const __m128i *)(k + (t + 8) * d + i));
                x[t] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
            }
            SL_UNROLL
            // prefetches rows of the next strip meanwhile, as many as this loop reads
            for (size_t line = 0; line < 4; line++) {
                _mm_prefetch((const char *)(k + SL_STRIP * (d + i) + 32 * line), _MM_HINT_T0);
            }
            sl_avx2_transpose_16x8(x);
            SL_UNROLL
            for (size_t c = 0; c < 8; c++, tile += SL_STRIP) {
                __m128i low = _mm256_castsi256_si128(x[c]), high = _mm256_extracti128_si256(x[c], 1);
                _mm256_store_ps(tile, sl_avx2_widen8(low, format));
                _mm256_store_ps(tile + 8, sl_avx2_widen8(high, format));
            }
        }
    }
}

static inline __attribute__((always_inline)) void keys_by_eights(const char *k, size_t d, enum sl_kv_format format,
                                                                 float *tile) {
    for (size_t j = 0; j < SL_PAGE_SLOTS; j += 8) {
        for (size_t i = 0; i < d; i += 8) {
            float *to = tile + ((j / SL_STRIP) * d + i) * SL_STRIP + j % SL_STRIP;
            sl_avx2_transpose_8x8(k, j * d + i, d, format, to, SL_STRIP);
        }
    }
}

static inline __attribute__((always_inline)) void float_values(const char *v, size_t d, size_t n,
                                                               enum sl_kv_format format, float *tile) {
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < d; i += 8) {
            float *to = tile + ((i / SL_STRIP) * SL_PAGE_SLOTS + j) * SL_STRIP + i % SL_STRIP;
            _mm256_store_ps(to, sl_avx2_load8(v, j * d + i, format));
        }
    }
}

// --- by format -------------------------------------------------------------------------------------------------------

static inline __attribute__((always_inline)) void fill_keys(const struct sl_page_layout *layout, const char *page,
                                                            enum sl_kv_format format, float *tile) {
    size_t d = (size_t)layout->head_dim;
    if (sl_kv_format_is_quantized(format)) {
        packed_keys(layout, page, format, tile);
    } else if (sl_avx2_widens(format)) {
        keys_from_16_bits((const uint16_t *)(page + layout->k), d, format, tile);
    } else {
        keys_by_eights(page + layout->k, d, format, tile);
    }
}

static inline __attribute__((always_inline)) void fill_values(const struct sl_page_layout *layout, const char *page,
                                                              size_t n_slots, enum sl_kv_format format, float *tile) {
    if (sl_kv_format_is_quantized(format)) {
        packed_values(layout, page, n_slots, format, tile);
    } else {
        float_values(page + layout->v, (size_t)layout->head_dim, n_slots, format, tile);
    }
}

void sl_avx2_fill_keys(const struct sl_page_layout *layout, const void *page, float *tile) {
    SL_KV_WITH_FORMAT(layout->k_format, fill_keys(layout, page, FORMAT, tile));
}

void sl_avx2_fill_values(const struct sl_page_layout *layout, const void *page, int n, float *tile) {
    size_t d = (size_t)layout->head_dim, n_slots = (size_t)n;
    SL_KV_WITH_FORMAT(layout->v_format, fill_values(layout, page, n_slots, FORMAT, tile));
    for (size_t j = 0; d % SL_STRIP != 0 && j < n_slots; j++) { // half a strip remains
        _mm256_store_ps(tile + (d / SL_STRIP * SL_PAGE_SLOTS + j) * SL_STRIP + 8, _mm256_setzero_ps());
    }
}
