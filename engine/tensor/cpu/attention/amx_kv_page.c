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

#include <string.h>

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
        if ((kv->n_packed > 0 && kv->packed->format == SL_KV_F32) || kv->work->format == SL_KV_F32) {
            return false;
        }
    }
    return args->head_dim % SL_TILE_STEP == 0;
}

// Converts 32 f32 to bf16, rounded to nearest even.
static inline __m512i round32(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

static inline __m512 load_f16(const uint16_t *x) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)x));
}

static inline __m512i f16_to_bf16(__m512i x) {
    return round32(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)));
}

// --- codes -----------------------------------------------------------------------------------------------------------

// The values that the codes of a group stand for.
struct group {
    // for up to 4 bits: the values in bf16, repeated, so that bits above the code do not matter in look_up()
    __m512i values;
    __m512 scale, zero; // for 8 bits
};

// `bits` is a constant in every call of the next three functions.
static inline __attribute__((always_inline)) struct group read_group(const uint16_t *pair, int bits) {
    struct group group = {.scale = _mm512_set1_ps(_cvtsh_ss(pair[0])), .zero = _mm512_set1_ps(_cvtsh_ss(pair[1]))};
    if (bits < 8) {
        __m512i codes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        __m512 x = _mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32((1 << bits) - 1)));
        x = _mm512_fmadd_ps(x, group.scale, group.zero);
        group.values = round32(x, x);
    }
    return group;
}

// Returns true where a page is quantized and its groups are multiples of 32 codes.
static bool of_codes(const struct sl_page_layout *layout) {
    return sl_kv_format_is_quantized(layout->format) && sl_v_group(layout->head_dim) % 32 == 0;
}

// Converts 32 codes of up to 4 bits to bf16. The permutation reads the lowest 5 bits of each word, so shifts bring
// every code of a byte to the bottom of a word.
static inline __attribute__((always_inline)) __m512i look_up(const uint8_t *at, int bits, __m512i values) {
    __m512i x;
    if (bits == 4) {
        x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
        x = _mm512_or_si512(x, _mm512_slli_epi32(x, 16 - 4));
    } else if (bits == 2) {
        x = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)at));
        x = _mm512_or_si512(x, _mm512_slli_epi64(x, 16 - 2));
        x = _mm512_or_si512(x, _mm512_slli_epi64(x, 32 - 4));
    } else {
        uint32_t ones;
        memcpy(&ones, at, sizeof ones);
        x = _mm512_maskz_set1_epi16(ones, 1);
    }
    return _mm512_permutexvar_epi16(x, values);
}

static inline __attribute__((always_inline)) __m512 reckon16(const uint8_t *at, const struct group *group) {
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), group->scale, group->zero);
}

// Converts 32 codes to bf16.
static inline __attribute__((always_inline)) __m512i decode32(const uint8_t *at, int bits, const struct group *group) {
    return bits == 8 ? round32(reckon16(at, group), reckon16(at + 16, group)) : look_up(at, bits, group->values);
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
                x[c] = round32(_mm512_load_ps(from), _mm512_load_ps(from + d * SL_STRIP));
            }
            store_rows(x, d, out + half * 32 * d + i);
        }
    }
}

// Converts codes, 64 of one channel after the other, to rows; `bits` is a constant in every call.
static inline __attribute__((always_inline)) void rows_of_packed_keys(const struct sl_page_layout *layout,
                                                                      const char *page, int bits, uint16_t *out) {
    size_t d = (size_t)layout->head_dim, half = 4 * (size_t)bits; // half: bytes of 32 slots
    const uint8_t *codes = (const uint8_t *)page + layout->k;
    const uint16_t *pairs = (const uint16_t *)(page + layout->k_scale);
    for (size_t i = 0; i < d; i += 8, codes += 8 * 2 * half, pairs += 8 * 2) {
        __m512i x[8], y[8];
        SL_UNROLL
        for (size_t c = 0; c < 8; c++) {
            struct group group = read_group(pairs + 2 * c, bits);
            x[c] = decode32(codes + 2 * c * half, bits, &group);
            y[c] = decode32(codes + (2 * c + 1) * half, bits, &group);
        }
        store_rows(x, d, out + i);
        store_rows(y, d, out + 32 * d + i);
    }
}

bool sl_amx_keys_have_second(const struct sl_attend *args, const struct sl_slot_angles *angles, int head,
                             uint32_t page) {
    return angles == NULL && sl_kv_page_layout(&args->heads.kv[head], page)->format == SL_KV_F16;
}

const uint16_t *sl_amx_load_keys(const struct sl_kv *kv, const struct sl_slot_angles *angles, uint32_t page,
                                 const char *next, struct sl_amx_page_scratch *s, uint16_t *out, uint16_t *second_out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    const uint16_t *k = (const uint16_t *)((const char *)kv->pages[page] + layout->k);
    size_t d = (size_t)layout->head_dim;
    if (angles == NULL && layout->format == SL_KV_BF16) {
        for (size_t e = 0; e < SL_PAGE_SLOTS * d; e += 32) {
            sl_avx512_fetch(next + layout->k + 2 * e, 1);
        }
        return k;
    }
    if (angles == NULL && layout->format == SL_KV_F16) {
        for (size_t e = 0; e < SL_PAGE_SLOTS * d; e += 32) {
            sl_avx512_fetch(next + layout->k + 2 * e, 1);
            __m512i first, second;
            sl_amx_split(load_f16(k + e), load_f16(k + e + 16), &first, &second);
            _mm512_store_si512(out + e, first);
            if (second_out != NULL) {
                _mm512_store_si512(second_out + e, second);
            }
        }
        return out;
    }
    if (angles == NULL && of_codes(layout)) {
        const char *at = kv->pages[page];
        switch (layout->format) {
        case SL_KV_INT8:
            rows_of_packed_keys(layout, at, 8, out);
            break;
        case SL_KV_INT4:
            rows_of_packed_keys(layout, at, 4, out);
            break;
        case SL_KV_INT2:
            rows_of_packed_keys(layout, at, 2, out);
            break;
        case SL_KV_INT1:
            rows_of_packed_keys(layout, at, 1, out);
            break;
        case SL_KV_F32:
        case SL_KV_F16:
        case SL_KV_BF16:
            __builtin_unreachable();
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
            sl_avx512_transpose_32x8(x);
            uint16_t *to = out + (i / SL_TILE * 2 + k) * SL_TILE_HALVES + i % SL_TILE * SL_TILE_STEP;
            SL_UNROLL
            for (size_t c = 0; c < 8; c++) {
                _mm512_store_si512(to + c * SL_TILE_STEP, format == SL_KV_F16 ? f16_to_bf16(x[c]) : x[c]);
            }
        }
    }
}

// Converts codes of n slots, one group of channels after the other, to rows; `bits` is a constant in every call.
static inline __attribute__((always_inline)) void
rows_of_packed_values(const struct sl_page_layout *layout, const char *page, size_t n, int bits, uint16_t *out) {
    size_t d = (size_t)layout->head_dim, group = (size_t)sl_v_group(layout->head_dim);
    const uint8_t *codes = (const uint8_t *)page + layout->v;
    const uint16_t *pair = (const uint16_t *)(page + layout->v_scale);
    for (size_t at = 0; at < n * d; at += group, pair += 2) {
        struct group of = read_group(pair, bits);
        for (size_t e = at; e < at + group; e += 32, codes += 4 * bits) {
            _mm512_store_si512(out + e, decode32(codes, bits, &of));
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
    if (of_codes(layout)) {
        const char *at = kv->pages[page];
        switch (layout->format) {
        case SL_KV_INT8:
            rows_of_packed_values(layout, at, n_slots, 8, s->rows);
            break;
        case SL_KV_INT4:
            rows_of_packed_values(layout, at, n_slots, 4, s->rows);
            break;
        case SL_KV_INT2:
            rows_of_packed_values(layout, at, n_slots, 2, s->rows);
            break;
        case SL_KV_INT1:
            rows_of_packed_values(layout, at, n_slots, 1, s->rows);
            break;
        case SL_KV_F32:
        case SL_KV_F16:
        case SL_KV_BF16:
            __builtin_unreachable();
        }
        v = s->rows;
        next = (const char *)v; // nothing to fetch
    } else if (layout->format != SL_KV_BF16) {
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
