// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts pages to f32 tiles with AVX-512; avx2_kv_tile.c converts the other formats.
 *
 * Design: K of 16 bits is transposed 32 tokens by 8 channels at a time, where avx2_kv_tile.c takes 16 tokens: the four
 *         parts of a register take four runs of 8 tokens. A row of codes of a channel becomes a row of the tile.
 */
#include "engine/tensor/cpu/pages/avx512_codec.h"
#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/simd/avx512_transpose.h"

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
                _mm512_store_ps(to, sl_avx512_widen16(_mm512_castsi512_si256(x[c]), format));
                _mm512_store_ps(to + d * SL_STRIP, sl_avx512_widen16(_mm512_extracti64x4_epi64(x[c], 1), format));
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
                            sl_avx512_widen16(_mm256_maskz_loadu_epi16(mask, v + i), format));
        }
    }
}

// Groups are in_group strips: a constant, because a loop over strips would cost as much as their codes.
static inline __attribute__((always_inline)) void from_groups(const struct sl_coded_rows *r, size_t in_group,
                                                              enum sl_kv_format format, float *tile) {
    _Alignas(64) float wide[SL_WIDE_PAIRS];
    const float *pair = wide;
    size_t strips = r->columns / SL_STRIP, row_bytes = sl_row_bytes((int)r->columns, sl_kv_format_bits(format));
    sl_avx512_widen_pairs(r, wide);
    for (size_t row = 0; row < r->n; row++, tile += SL_STRIP) {
        const uint8_t *codes = r->codes + row * row_bytes;
        for (size_t line = 0; line < row_bytes; line += 64) {
            sl_avx512_fetch(r->next + row * row_bytes + line, 1);
        }
        for (size_t first = 0; first < strips; first += in_group, pair += 2) {
            const struct sl_avx512_codebook b = sl_avx512_codebook(pair, format);
            SL_UNROLL
            for (size_t i = 0; i < in_group; i++) {
                _mm512_store_ps(tile + (first + i) * r->strip_rows * SL_STRIP,
                                sl_avx512_decode16(codes, first + i, format, &b));
            }
        }
    }
}

static inline __attribute__((always_inline)) void from_codes(const struct sl_coded_rows *r, enum sl_kv_format format,
                                                             float *tile) {
    if (r->group == SL_PAGE_SLOTS) {
        from_groups(r, SL_PAGE_STRIPS, format, tile);
    } else {
        from_groups(r, r->group / SL_STRIP, format, tile);
    }
}

static inline __attribute__((always_inline)) void fill_keys(const struct sl_page_layout *layout, const char *page,
                                                            const char *next, enum sl_kv_format format, float *tile) {
    if (!sl_avx512_reads(format)) {
        sl_avx2_fill_keys(layout, page, tile);
    } else if (sl_kv_format_is_quantized(format)) {
        const struct sl_coded_rows r = sl_coded_keys(layout, page, next);
        from_codes(&r, format, tile);
    } else {
        keys_from_16_bits((const uint16_t *)(page + layout->k), next + layout->k, (size_t)layout->head_dim, format,
                          tile);
    }
}

static inline __attribute__((always_inline)) void fill_values(const struct sl_page_layout *layout, const char *page,
                                                              const char *next, size_t n, enum sl_kv_format format,
                                                              float *tile) {
    size_t d = (size_t)layout->head_dim;
    if (!sl_avx512_reads(format) || (sl_kv_format_is_quantized(format) && d % SL_STRIP != 0)) {
        sl_avx2_fill_values(layout, page, (int)n, tile);
    } else if (sl_kv_format_is_quantized(format)) {
        const struct sl_coded_rows r = sl_coded_values(layout, page, next, n);
        from_codes(&r, format, tile);
    } else {
        values_from_16_bits((const uint16_t *)(page + layout->v), next + layout->v, d, n, format, tile);
    }
}

void sl_avx512_fill_keys(const struct sl_page_layout *layout, const void *page, const char *next, float *tile) {
    SL_KV_WITH_FORMAT(layout->k_format, fill_keys(layout, page, next, FORMAT, tile));
}

void sl_avx512_fill_values(const struct sl_page_layout *layout, const void *page, const char *next, int n,
                           float *tile) {
    SL_KV_WITH_FORMAT(layout->v_format, fill_values(layout, page, next, (size_t)n, FORMAT, tile));
}

void sl_avx512_rotate_keys(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t page,
                           float *tile) {
    sl_page_angles_turn(angles, of_page, page);
    size_t half = (size_t)angles->half, d = (size_t)angles->rope->head_dim;
    for (size_t i = 0; i < half; i++) {
        __m512d pc = _mm512_set1_pd(of_page->cosines[i]), ps = _mm512_set1_pd(of_page->sines[i]);
        for (size_t j = 0; j < SL_PAGE_SLOTS; j += 8) {
            __m512d jc = _mm512_loadu_pd(angles->cosines[i] + j), js = _mm512_loadu_pd(angles->sines[i] + j);
            __m256 c = _mm512_cvtpd_ps(_mm512_sub_pd(_mm512_mul_pd(pc, jc), _mm512_mul_pd(ps, js)));
            __m256 s = _mm512_cvtpd_ps(_mm512_add_pd(_mm512_mul_pd(ps, jc), _mm512_mul_pd(pc, js)));
            float *row = tile + (j / SL_STRIP * d + i) * SL_STRIP + j % SL_STRIP, *pair = row + half * SL_STRIP;
            __m256 a = _mm256_load_ps(row), b = _mm256_load_ps(pair);
            _mm256_store_ps(row, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            _mm256_store_ps(pair, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
        }
    }
}
