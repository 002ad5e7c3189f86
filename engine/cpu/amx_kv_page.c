// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: pages as bf16 tiles. See amx_kv.h.
 *
 * Design: K is wanted by slot, as float pages keep it: bf16 is taken as it lies, f16 is converted. V is wanted by
 *         channel: 8 channels of 32 slots are transposed while they are 16 bits wide (see avx512_kv_tile.c), and
 *         converted after it. What is packed, or still to be rotated, becomes f32 first and then rows of bf16.
 */
#include "engine/cpu/amx_kv.h"

#include <string.h>

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
    for (int h = 0; h < args->n_kv_heads; h++) {
        const struct sl_kv *kv = &args->kv[h];
        if ((kv->n_packed > 0 && kv->packed->format == SL_KV_F32) || kv->work->format == SL_KV_F32) {
            return false;
        }
    }
    return args->head_dim % SL_TILE_STEP == 0;
}

// 32 f32 to bf16, rounded to nearest even.
static inline __m512i round32(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

static inline __m512 load_f16(const uint16_t *x) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)x));
}

static inline __m512i f16_to_bf16(__m512i x) {
    return round32(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)));
}

// Within every quarter of the registers 8 rows of 8 become columns: see avx2_kv_tile.c.
static inline __attribute__((always_inline)) void transpose_8x8_quarters(__m512i *x) {
    SL_UNROLL
    for (int step = 0; step < 3; step++) {
        __m512i y[8];
        SL_UNROLL
        for (int t = 0; t < 4; t++) {
            y[2 * t] = _mm512_unpacklo_epi16(x[t], x[t + 4]);
            y[2 * t + 1] = _mm512_unpackhi_epi16(x[t], x[t + 4]);
        }
        SL_UNROLL
        for (int t = 0; t < 8; t++) {
            x[t] = y[t];
        }
    }
}

// --- keys ------------------------------------------------------------------------------------------------------------

// A K^T tile of f32 (avx2_kv.h) to rows.
static void rows_of_keys(const float *tile, size_t d, uint16_t *out) {
    for (size_t half = 0; half < 2; half++) { // 32 slots
        const float *strips = tile + half * 2 * d * SL_STRIP;
        for (size_t i = 0; i < d; i += 8) {
            __m512i x[8];
            SL_UNROLL
            for (size_t c = 0; c < 8; c++) {
                const float *from = strips + (i + c) * SL_STRIP;
                x[c] = round32(_mm512_load_ps(from), _mm512_load_ps(from + d * SL_STRIP));
            }
            transpose_8x8_quarters(x);
            SL_UNROLL
            for (size_t t = 0; t < 8; t++) { // slots t, t + 8, t + 16, t + 24
                uint16_t *to = out + (half * 32 + t) * d + i;
                _mm_store_si128((__m128i *)to, _mm512_castsi512_si128(x[t]));
                _mm_store_si128((__m128i *)(to + 8 * d), _mm512_extracti32x4_epi32(x[t], 1));
                _mm_store_si128((__m128i *)(to + 16 * d), _mm512_extracti32x4_epi32(x[t], 2));
                _mm_store_si128((__m128i *)(to + 24 * d), _mm512_extracti32x4_epi32(x[t], 3));
            }
        }
    }
}

const uint16_t *sl_amx_load_keys(const struct sl_attend *args, const struct sl_slot_angles *angles, int head,
                                 uint32_t page, const char *next, struct sl_amx_page_scratch *s, uint16_t *out) {
    const struct sl_kv *kv = &args->kv[head];
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    const uint16_t *k = (const uint16_t *)((const char *)kv->pages[page] + layout->k);
    size_t d = (size_t)args->head_dim;
    if (angles == NULL && layout->format == SL_KV_BF16) {
        for (size_t e = 0; e < SL_PAGE_SLOTS * d; e += 32) {
            sl_avx512_fetch(next + layout->k + 2 * e, 1);
        }
        return k;
    }
    if (angles == NULL && layout->format == SL_KV_F16) {
        for (size_t e = 0; e < SL_PAGE_SLOTS * d; e += 32) {
            sl_avx512_fetch(next + layout->k + 2 * e, 1);
            _mm512_store_si512(out + e, round32(load_f16(k + e), load_f16(k + e + 16)));
        }
        return out;
    }
    sl_avx512_fill_keys(layout, kv->pages[page], next, s->tile);
    if (angles != NULL) {
        sl_avx2_rotate_keys(angles, &s->of_page, page, s->tile);
    }
    rows_of_keys(s->tile, d, out);
    return out;
}

// --- values ----------------------------------------------------------------------------------------------------------

static inline __m128i row_or_zero(const uint16_t *v, size_t d, size_t slot, size_t n) {
    return slot < n ? _mm_load_si128((const __m128i *)(v + slot * d)) : _mm_setzero_si128();
}

static inline __attribute__((always_inline)) void
values_from_16_bits(const uint16_t *v, const char *next, size_t d, size_t n, enum sl_kv_format format, uint16_t *out) {
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
            transpose_8x8_quarters(x);
            uint16_t *to = out + (i / SL_TILE * 2 + k) * SL_TILE_HALVES + i % SL_TILE * SL_TILE_STEP;
            SL_UNROLL
            for (size_t c = 0; c < 8; c++) {
                _mm512_store_si512(to + c * SL_TILE_STEP, format == SL_KV_F16 ? f16_to_bf16(x[c]) : x[c]);
            }
        }
    }
}

void sl_amx_load_values(const struct sl_kv *kv, uint32_t page, const char *next, int n, struct sl_amx_page_scratch *s,
                        uint16_t *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    const uint16_t *v = (const uint16_t *)((const char *)kv->pages[page] + layout->v);
    size_t d = (size_t)layout->head_dim, n_slots = (size_t)n;
    if (layout->format == SL_KV_F16) {
        next += layout->v;
        n == SL_PAGE_SLOTS ? values_from_16_bits(v, next, d, SL_PAGE_SLOTS, SL_KV_F16, out)
                           : values_from_16_bits(v, next, d, n_slots, SL_KV_F16, out);
        return;
    }
    if (layout->format != SL_KV_BF16) {
        sl_avx512_fill_values(layout, kv->pages[page], next, n, s->tile);
        for (size_t j = 0; j < n_slots; j++) {
            for (size_t i = 0; i < d; i += 32) {
                const float *from = s->tile + i * SL_PAGE_SLOTS + j * SL_STRIP;
                _mm512_store_si512(s->rows + j * d + i,
                                   round32(_mm512_load_ps(from), _mm512_load_ps(from + SL_PAGE_SLOTS * SL_STRIP)));
            }
        }
        v = s->rows;
        next = (const char *)v; // nothing to fetch
    } else {
        next += layout->v;
    }
    n == SL_PAGE_SLOTS ? values_from_16_bits(v, next, d, SL_PAGE_SLOTS, SL_KV_BF16, out)
                       : values_from_16_bits(v, next, d, n_slots, SL_KV_BF16, out);
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
    for (int i = 0; i < 16; i += 4) { // then fours: r[i + c] holds columns c, c + 4, c + 8, c + 12 of rows i .. i + 3
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
