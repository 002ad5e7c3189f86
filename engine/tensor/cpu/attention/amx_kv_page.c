// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts pages to bf16 tiles. See amx_kv.h.
 *
 * Design: products need K by slot, as float pages keep it: bf16 is used where it is, f16 is converted. They need V by
 *         channel: 8 channels of 32 slots are transposed while they are 16 bits wide (see avx512_kv_tile.c), and then
 *         converted. Codes of up to 4 bits stand for at most 16 numbers. These are rounded to bf16 once for all codes
 *         of a group, which then look them up. Codes of 8 bits are computed one by one, in registers. Keys that must
 *         still be rotated become f32 first and then rows of bf16.
 */
#include "engine/tensor/cpu/attention/amx_kv.h"

#include "engine/tensor/cpu/pages/avx512_codec.h"
#include "engine/tensor/cpu/simd/avx512_transpose.h"

static const struct sl_tile_config whole_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {SL_TILE, SL_TILE, SL_TILE, SL_TILE, SL_TILE, SL_TILE, SL_TILE, SL_TILE},
};

void sl_amx_begin(void) {
    _tile_loadconfig(&whole_tiles);
}

void sl_amx_end(void) {
    _tile_release();
}

bool sl_amx_covers(const struct sl_attend *args) {
    for (int h = 0; h < args->heads.n; h++) {
        const struct sl_kv *kv = &args->heads.kv[h];
        if ((kv->n_packed > 0 && sl_kv_format_bits(kv->packed->k_format) > 16) ||
            sl_kv_format_bits(kv->work->k_format) > 16) {
            return false;
        }
    }
    return args->head_dim % SL_TILE_STEP == 0;
}

// Returns true for halves of codes that become bf16 directly: groups are multiples of 32 codes.
static bool of_codes(const struct sl_page_layout *layout, enum sl_kv_format half) {
    return sl_bf16_decodes(half) && sl_v_group(layout->head_dim) % 32 == 0;
}

// Prefetches the bytes of page `next` that are at the place of those of `page`.
static inline __attribute__((always_inline)) void fetch_same(const char *page, const char *next, const char *at,
                                                             size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) {
        sl_avx512_fetch(next + (at - page) + line, 1);
    }
}

#define PAIRS_BYTES 32 // of eight scales and zeros

static inline void widen_pairs(const char *pairs, float wide_out[16]) {
    _mm512_store_ps(wide_out, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)pairs)));
}

// --- keys ------------------------------------------------------------------------------------------------------------

// Writes registers of 8 channels of 32 slots as rows.
static inline __attribute__((always_inline)) void store_rows(__m512i *x, size_t d, uint16_t *out) {
    sl_avx512_transpose_32x8(x);
    SL_UNROLL
    for (size_t t = 0; t < 8; t++, out += d) { // slots t, t + 8, t + 16, t + 24
        _mm_store_si128((__m128i *)out, _mm512_castsi512_si128(x[t]));
        _mm_store_si128((__m128i *)(out + 8 * d), _mm512_extracti32x4_epi32(x[t], 1));
        _mm_store_si128((__m128i *)(out + 16 * d), _mm512_extracti32x4_epi32(x[t], 2));
        _mm_store_si128((__m128i *)(out + 24 * d), _mm512_extracti32x4_epi32(x[t], 3));
    }
}

// Converts a K^T tile of f32 (avx2_kv.h) to rows.
static void rows_of_keys(const float *tile, size_t d, uint16_t *out) {
    for (size_t half = 0; half < 2; half++) { // 32 slots
        const float *strips = tile + half * 2 * d * SL_STRIP;
        for (size_t i = 0; i < d; i += 8) {
            __m512i x[8];
            SL_UNROLL
            for (size_t c = 0; c < 8; c++) {
                const float *from = strips + (i + c) * SL_STRIP;
                x[c] = sl_bf16_round32(_mm512_load_ps(from), _mm512_load_ps(from + d * SL_STRIP));
            }
            store_rows(x, d, out + half * 32 * d + i);
        }
    }
}

// Converts codes, 64 of one channel after the other, to rows.
static inline __attribute__((always_inline)) void rows_of_packed_keys(const struct sl_page_layout *layout,
                                                                      const char *page, const char *next,
                                                                      enum sl_kv_format format, uint16_t *out) {
    // half: bytes of 32 slots
    size_t d = (size_t)layout->head_dim, half = sl_row_bytes(SL_PAGE_SLOTS / 2, sl_kv_format_bits(format));
    const uint8_t *codes = (const uint8_t *)page + layout->k;
    const char *pairs = page + layout->k_scale;
    bool by_parity = format == SL_KV_INT4; // x has the even slots, y the odd ones; else the first 32, and the last
    for (size_t i = 0; i < d; i += 8, codes += 8 * 2 * half, pairs += PAIRS_BYTES) {
        _Alignas(64) float wide[16];
        __m512i x[8], y[8];
        fetch_same(page, next, (const char *)codes, 8 * 2 * half);
        fetch_same(page, next, pairs, PAIRS_BYTES);
        widen_pairs(pairs, wide);
        SL_UNROLL
        for (size_t c = 0; c < 8; c++) {
            struct sl_bf16_codebook b = sl_bf16_codebook(wide + 2 * c, format);
            if (by_parity) {
                sl_bf16_look_up64(codes + 2 * c * half, b.values, &x[c], &y[c]);
            } else {
                x[c] = sl_bf16_decode32(codes + 2 * c * half, format, &b);
                y[c] = sl_bf16_decode32(codes + (2 * c + 1) * half, format, &b);
            }
        }
        store_rows(x, by_parity ? 2 * d : d, out + i);
        store_rows(y, by_parity ? 2 * d : d, out + (by_parity ? d : 32 * d) + i);
    }
}

bool sl_amx_keys_have_second(const struct sl_attend *args, const struct sl_slot_angles *angles, int head,
                             uint32_t page) {
    return angles == NULL && sl_bf16_rounds(sl_kv_page_layout(&args->heads.kv[head], page)->k_format);
}

const uint16_t *sl_amx_load_keys(const struct sl_kv *kv, const struct sl_slot_angles *angles, uint32_t page,
                                 const char *next, struct sl_amx_page_scratch *s, uint16_t *out, uint16_t *second_out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    const uint16_t *k = (const uint16_t *)((const char *)kv->pages[page] + layout->k);
    size_t d = (size_t)layout->head_dim;
    if (angles == NULL && sl_bf16_is(layout->k_format)) {
        for (size_t e = 0; e < SL_PAGE_SLOTS * d; e += 32) {
            sl_avx512_fetch(next + layout->k + 2 * e, 1);
        }
        return k;
    }
    if (angles == NULL && sl_bf16_rounds(layout->k_format)) {
        for (size_t e = 0; e < SL_PAGE_SLOTS * d; e += 32) {
            sl_avx512_fetch(next + layout->k + 2 * e, 1);
            __m512i first, second;
            const __m256i *from = (const __m256i *)(k + e);
            sl_amx_split(sl_bf16_widen16(_mm256_load_si256(from)), sl_bf16_widen16(_mm256_load_si256(from + 1)), &first,
                         &second);
            _mm512_store_si512(out + e, first);
            if (second_out != NULL) {
                _mm512_store_si512(second_out + e, second);
            }
        }
        return out;
    }
    if (angles == NULL && of_codes(layout, layout->k_format)) {
        SL_KV_WITH_FORMAT(layout->k_format, rows_of_packed_keys(layout, kv->pages[page], next, FORMAT, out));
        return out;
    }
    sl_avx512_fill_keys(layout, kv->pages[page], next, s->tile);
    if (angles != NULL) {
        sl_avx512_rotate_keys(angles, &s->of_page, page, s->tile);
    }
    rows_of_keys(s->tile, d, out);
    return out;
}

// --- values ----------------------------------------------------------------------------------------------------------

static inline __m128i row_or_zero(const uint16_t *v, size_t d, size_t slot, size_t n) {
    return slot < n ? _mm_load_si128((const __m128i *)(v + slot * d)) : _mm_setzero_si128();
}

// The order of the channels of rows: as they are, or in each 64 the even ones before the odd ones.
static inline size_t channel_at(size_t place, bool by_parity) {
    return by_parity ? place / 64 * 64 + place % 32 * 2 + place / 32 % 2 : place;
}

static inline __attribute__((always_inline)) void values_from_16_bits(const uint16_t *v, const char *next, size_t d,
                                                                      size_t n, bool is_bf16, bool by_parity,
                                                                      uint16_t *out) {
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < d; i += 8, next += 512) {
            sl_avx512_fetch(next, 8);
            __m512i x[8];
            SL_UNROLL
            for (size_t t = 0; t < 8; t++) { // slots t, t + 8, t + 16, t + 24
                size_t j = k * 32 + t;
                __m512i r = _mm512_castsi128_si512(row_or_zero(v + i, d, j, n));
                r = _mm512_mask_broadcast_i32x4(r, 0x00f0, row_or_zero(v + i, d, j + 8, n));
                r = _mm512_mask_broadcast_i32x4(r, 0x0f00, row_or_zero(v + i, d, j + 16, n));
                x[t] = _mm512_mask_broadcast_i32x4(r, 0xf000, row_or_zero(v + i, d, j + 24, n));
            }
            sl_avx512_transpose_32x8(x);
            size_t first = channel_at(i, by_parity), apart = by_parity ? 2 : 1;
            uint16_t *to = out + (first / SL_TILE * 2 + k) * SL_TILE_HALVES + first % SL_TILE * SL_TILE_STEP;
            SL_UNROLL
            for (size_t c = 0; c < 8; c++) {
                _mm512_store_si512(to + c * apart * SL_TILE_STEP, is_bf16 ? x[c] : sl_bf16_narrow32(x[c]));
            }
        }
    }
}

// Converts codes of n slots, one group of channels after the other, to rows, perhaps in the order of channel_at().
static inline __attribute__((always_inline)) void rows_of_packed_values(const struct sl_page_layout *layout,
                                                                        const char *page, const char *next, size_t n,
                                                                        enum sl_kv_format format, bool by_parity,
                                                                        uint16_t *out) {
    size_t d = (size_t)layout->head_dim, group = (size_t)sl_v_group(layout->head_dim), n_groups = n * d / group;
    size_t bytes = sl_row_bytes((int)group, sl_kv_format_bits(format));
    const uint8_t *codes = (const uint8_t *)page + layout->v;
    const char *pairs = page + layout->v_scale;
    for (size_t at = 0; at < n_groups; at += 8, pairs += PAIRS_BYTES) { // pages have groups by the eight
        _Alignas(64) float wide[16];
        fetch_same(page, next, (const char *)codes, 8 * bytes);
        fetch_same(page, next, pairs, PAIRS_BYTES);
        widen_pairs(pairs, wide);
        for (size_t g = 0; g < 8 && at + g < n_groups; g++, codes += bytes, out += group) {
            struct sl_bf16_codebook b = sl_bf16_codebook(wide + 2 * g, format);
            for (size_t e = 0; by_parity && e < group; e += 64) {
                __m512i even, odd;
                sl_bf16_look_up64(codes + e / 2, b.values, &even, &odd);
                _mm512_store_si512(out + e, even);
                _mm512_store_si512(out + e + 32, odd);
            }
            for (size_t e = 0; !by_parity && e < group; e += 32) {
                _mm512_store_si512(
                    out + e, sl_bf16_decode32(codes + sl_row_bytes((int)e, sl_kv_format_bits(format)), format, &b));
            }
        }
    }
}

void sl_amx_load_values(const struct sl_kv *kv, uint32_t page, const char *next, int n, struct sl_amx_page_scratch *s,
                        uint16_t *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    const uint16_t *v = (const uint16_t *)((const char *)kv->pages[page] + layout->v);
    size_t d = (size_t)layout->head_dim, n_slots = (size_t)n;
    if (sl_bf16_rounds(layout->v_format)) {
        next += layout->v;
        n == SL_PAGE_SLOTS ? values_from_16_bits(v, next, d, SL_PAGE_SLOTS, false, false, out)
                           : values_from_16_bits(v, next, d, n_slots, false, false, out);
        return;
    }
    bool by_parity = layout->v_format == SL_KV_INT4 && sl_v_group(layout->head_dim) == 64;
    if (by_parity) {
        rows_of_packed_values(layout, kv->pages[page], next, n_slots, SL_KV_INT4, true, s->rows);
        v = s->rows;
        next = (const char *)v; // it is fetched already
    } else if (of_codes(layout, layout->v_format)) {
        SL_KV_WITH_FORMAT(layout->v_format,
                          rows_of_packed_values(layout, kv->pages[page], next, n_slots, FORMAT, false, s->rows));
        v = s->rows;
        next = (const char *)v; // it is fetched already
    } else if (!sl_bf16_is(layout->v_format)) {
        sl_avx512_fill_values(layout, kv->pages[page], next, n, s->tile);
        for (size_t j = 0; j < n_slots; j++) {
            for (size_t i = 0; i < d; i += 32) {
                const float *from = s->tile + i * SL_PAGE_SLOTS + j * SL_STRIP;
                _mm512_store_si512(
                    s->rows + j * d + i,
                    sl_bf16_round32(_mm512_load_ps(from), _mm512_load_ps(from + SL_PAGE_SLOTS * SL_STRIP)));
            }
        }
        v = s->rows;
        next = (const char *)v; // nothing to fetch
    } else {
        next += layout->v;
    }
    if (by_parity && n == SL_PAGE_SLOTS) {
        values_from_16_bits(v, next, d, SL_PAGE_SLOTS, true, true, out);
    } else if (n == SL_PAGE_SLOTS) {
        values_from_16_bits(v, next, d, SL_PAGE_SLOTS, true, false, out);
    } else {
        values_from_16_bits(v, next, d, n_slots, true, by_parity, out);
    }
}

// --- queries and sums ------------------------------------------------------------------------------------------------

void sl_amx_transpose_16x16(__m512 *r) {
    __m512 t[16];
    SL_UNROLL
    for (int i = 0; i < 16; i += 2) { // pairs of rows
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    SL_UNROLL
    // then groups of four: r[i + c] holds columns c, c + 4, c + 8, c + 12 of rows i .. i + 3
    for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]), c = _mm512_castps_pd(t[i + 2]),
                d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    SL_UNROLL
    for (int c = 0; c < 4; c++) { // then quarters
        __m512 low = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88), high = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
        __m512 low2 = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88),
               high2 = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
        t[c] = _mm512_shuffle_f32x4(low, low2, 0x88);
        t[c + 8] = _mm512_shuffle_f32x4(low, low2, 0xdd);
        t[c + 4] = _mm512_shuffle_f32x4(high, high2, 0x88);
        t[c + 12] = _mm512_shuffle_f32x4(high, high2, 0xdd);
    }
    SL_UNROLL
    for (int i = 0; i < 16; i++) {
        r[i] = t[i];
    }
}
