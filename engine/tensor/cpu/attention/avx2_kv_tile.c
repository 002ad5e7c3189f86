// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts pages to f32 tiles with AVX2: transposed K, and V, in the strips of avx2_kv.h.
 *
 * Design: float formats keep K by token, so K^T needs a transposition: of 16 tokens by 8 channels, done while elements
 *         that have 16 bits still do. Packed formats keep K by channel: a row of codes, with one scale and zero, is a
 *         row of the tile. x^ = fma(code, scale, zero). Codes of one or two bits stand for at most four values, which
 *         are looked up instead.
 */
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/attention/avx2_row.h"
#include "engine/tensor/cpu/simd/avx2_transpose.h"

// --- codes -----------------------------------------------------------------------------------------------------------

// The values that a group of codes stands for.
struct codebook {
    __m256 scale, zero;
    __m256 values; // values of the codes 0..3 (of 0, 1, 0, 1 for one bit), in both halves
};

static inline __attribute__((always_inline)) struct codebook codebook(const uint16_t *pair, int bits) {
    struct codebook b = {_mm256_set1_ps(_cvtsh_ss(pair[0])), _mm256_set1_ps(_cvtsh_ss(pair[1])), _mm256_setzero_ps()};
    if (bits <= 2) {
        __m256 codes = bits == 2 ? _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3) : _mm256_setr_ps(0, 1, 0, 1, 0, 1, 0, 1);
        b.values = _mm256_fmadd_ps(codes, b.scale, b.zero);
    }
    return b;
}

// Decodes the eight codes from code 8 * n of a row on; `bits` is a constant in every call.
static inline __attribute__((always_inline)) __m256 decode8(const uint8_t *row, size_t n, int bits,
                                                            const struct codebook *b) {
    const uint8_t *at = row + n * (size_t)bits;
    if (bits == 8) {
        __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes), b->scale, b->zero);
    }
    uint32_t word = 0;
    memcpy(&word, at, (size_t)bits);
    const __m256i shifts = _mm256_setr_epi32(0, bits, 2 * bits, 3 * bits, 4 * bits, 5 * bits, 6 * bits, 7 * bits);
    __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32((int)word), shifts); // the code is in the low bits
    if (bits <= 2) {
        return _mm256_permutevar_ps(b->values, codes); // reads only the low two bits
    }
    codes = _mm256_and_si256(codes, _mm256_set1_epi32((1 << bits) - 1));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes), b->scale, b->zero);
}

static inline __attribute__((always_inline)) void packed_keys(const struct sl_page_layout *layout, const char *page,
                                                              int bits, float *tile) {
    size_t d = (size_t)layout->head_dim;
    const uint8_t *row = (const uint8_t *)page + layout->k;
    const uint16_t *pair = (const uint16_t *)(page + layout->k_scale);
    for (size_t i = 0; i < d; i++, row += SL_PAGE_SLOTS / 8 * bits, pair += 2) {
        struct codebook b = codebook(pair, bits);
        SL_UNROLL
        for (size_t n = 0; n < SL_PAGE_SLOTS / 8; n++) {
            _mm256_store_ps(tile + ((n / 2) * d + i) * SL_STRIP + n % 2 * 8, decode8(row, n, bits, &b));
        }
    }
}

static inline __attribute__((always_inline)) void packed_values(const struct sl_page_layout *layout, const char *page,
                                                                int n_slots, int bits, float *tile) {
    size_t octets = (size_t)layout->head_dim / 8, in_group = (size_t)sl_v_group(layout->head_dim) / 8;
    const uint8_t *row = (const uint8_t *)page + layout->v;
    const uint16_t *pair = (const uint16_t *)(page + layout->v_scale);
    for (size_t j = 0; j < (size_t)n_slots; j++, row += octets * (size_t)bits) {
        for (size_t first = 0; first < octets; first += in_group, pair += 2) {
            struct codebook b = codebook(pair, bits);
            for (size_t n = first; n < first + in_group; n++) {
                float *to = tile + ((n / 2) * SL_PAGE_SLOTS + j) * SL_STRIP + n % 2 * 8;
                _mm256_store_ps(to, decode8(row, n, bits, &b));
            }
        }
    }
}

// --- floats ----------------------------------------------------------------------------------------------------------

static inline __attribute__((always_inline)) __m256 load8(const char *part, size_t e, enum sl_kv_format format) {
    return format == SL_KV_F32 ? _mm256_load_ps((const float *)part + e)
                               : sl_avx2_widen8(_mm_load_si128((const __m128i *)((const uint16_t *)part + e)), format);
}

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

static void keys_from_f32(const float *k, size_t d, float *tile) {
    for (size_t j = 0; j < SL_PAGE_SLOTS; j += 8) {
        for (size_t i = 0; i < d; i += 8) {
            float *to = tile + ((j / SL_STRIP) * d + i) * SL_STRIP + j % SL_STRIP;
            sl_avx2_transpose_8x8(k + j * d + i, d, to, SL_STRIP);
        }
    }
}

static inline __attribute__((always_inline)) void float_values(const char *v, size_t d, size_t n,
                                                               enum sl_kv_format format, float *tile) {
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < d; i += 8) {
            float *to = tile + ((i / SL_STRIP) * SL_PAGE_SLOTS + j) * SL_STRIP + i % SL_STRIP;
            _mm256_store_ps(to, load8(v, j * d + i, format));
        }
    }
}

// --- by format -------------------------------------------------------------------------------------------------------

void sl_avx2_fill_keys(const struct sl_page_layout *layout, const void *page, float *tile) {
    const char *at = page;
    size_t d = (size_t)layout->head_dim;
    switch (layout->format) {
    case SL_KV_F32:
        keys_from_f32((const float *)(at + layout->k), d, tile);
        break;
    case SL_KV_F16:
        keys_from_16_bits((const uint16_t *)(at + layout->k), d, SL_KV_F16, tile);
        break;
    case SL_KV_BF16:
        keys_from_16_bits((const uint16_t *)(at + layout->k), d, SL_KV_BF16, tile);
        break;
    case SL_KV_INT8:
        packed_keys(layout, at, 8, tile);
        break;
    case SL_KV_INT4:
        packed_keys(layout, at, 4, tile);
        break;
    case SL_KV_INT2:
        packed_keys(layout, at, 2, tile);
        break;
    case SL_KV_INT1:
        packed_keys(layout, at, 1, tile);
        break;
    }
}

void sl_avx2_fill_values(const struct sl_page_layout *layout, const void *page, int n, float *tile) {
    const char *at = page, *v = at + layout->v;
    size_t d = (size_t)layout->head_dim, n_slots = (size_t)n;
    switch (layout->format) {
    case SL_KV_F32:
        float_values(v, d, n_slots, SL_KV_F32, tile);
        break;
    case SL_KV_F16:
        float_values(v, d, n_slots, SL_KV_F16, tile);
        break;
    case SL_KV_BF16:
        float_values(v, d, n_slots, SL_KV_BF16, tile);
        break;
    case SL_KV_INT8:
        packed_values(layout, at, n, 8, tile);
        break;
    case SL_KV_INT4:
        packed_values(layout, at, n, 4, tile);
        break;
    case SL_KV_INT2:
        packed_values(layout, at, n, 2, tile);
        break;
    case SL_KV_INT1:
        packed_values(layout, at, n, 1, tile);
        break;
    }
    for (size_t j = 0; d % SL_STRIP != 0 && j < n_slots; j++) { // half a strip remains
        _mm256_store_ps(tile + (d / SL_STRIP * SL_PAGE_SLOTS + j) * SL_STRIP + 8, _mm256_setzero_ps());
    }
}
