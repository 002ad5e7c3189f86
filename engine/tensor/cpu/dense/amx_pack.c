// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: packs weights of tiers amx and amx2 into panels, and quantized ones into tiles. See amx_pack.h.
 *
 * Design: a quantized weight is scale * code, exact in f32, rounded to bf16 once, or split into two terms. It has the
 *         same bits wherever its tile is made. INT8 puts the byte code + 128 into the bits of the f32 2^15, which adds
 *         it. scale * (2^15 + 128) has 20 bits, so subtracting it again is exact.
 */
#include "engine/tensor/cpu/dense/amx_pack.h"

#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/simd/avx2_math.h"
#include "engine/tensor/weights.h"

#define INLINE static inline __attribute__((always_inline))

#define SCALES_BYTES (SL_PANEL * sizeof(uint16_t))

size_t sl_amx_packed_step_bytes(const struct sl_matrix *w) {
    switch (w->format) {
    case SL_WEIGHT_INT8:
        return SCALES_BYTES + SL_PANEL * SL_AMX_STEP;
    case SL_WEIGHT_INT4:
        return SCALES_BYTES + SL_PANEL * SL_AMX_STEP / 2;
    case SL_WEIGHT_STORED:
    case SL_WEIGHT_CODES: // of other functions
        break;
    }
    return SL_AMX_STEP_BYTES;
}

// --- packing -------------------------------------------------------------------------------------------------------

static void pack_stored_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    char *to = panel + c / SL_PANEL_HALF * SL_AMX_TILE_BYTES + c % SL_PANEL_HALF * 4;
    for (int64_t i = 0; i < w->k && row != NULL; i += 2) {
        int64_t step = i / SL_AMX_STEP, pair = i % SL_AMX_STEP / 2;
        memcpy(to + step * SL_AMX_STEP_BYTES + pair * 64, row + 2 * i, (size_t)sl_min(2, w->k - i) * 2);
    }
}

static void pack_quantized_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int half = c / SL_PANEL_HALF, column = c % SL_PANEL_HALF;
    for (int64_t g = 0; g < sl_amx_steps(w); g++, panel += sl_amx_packed_step_bytes(w)) {
        int8_t codes[SL_WEIGHT_GROUP];
        uint8_t *to = (uint8_t *)panel + SCALES_BYTES;
        ((uint16_t *)panel)[c] = sl_panel_quantize(w, p, c, g, codes);
        for (int i = 0; i < SL_WEIGHT_GROUP; i++) {
            int pair = i / 2, at = 2 * column + i % 2; // position in a row of a tile
            if (w->format == SL_WEIGHT_INT8) {
                to[(pair * 2 + half) * 32 + at] = (uint8_t)(codes[i] + 128);
            } else {
                int nibble = pair % 2 * 4 + half * 2 + at / 16, word = at % 16;
                to[pair / 2 * 64 + 4 * word + nibble / 2] |= (uint8_t)((codes[i] & 15) << (nibble % 2 * 4));
            }
        }
    }
}

enum sl_status sl_amx_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_amx_steps(matrix) * sl_amx_packed_step_bytes(matrix),
                          matrix->format == SL_WEIGHT_STORED ? pack_stored_row : pack_quantized_row, err);
}

// --- tiles of quantized weights ------------------------------------------------------------------------------------

#define FETCH_AHEAD 8192 // bytes

// Prefetches explicitly: conversion reads too slowly for hardware prefetching to run far enough ahead.
static inline void fetch_ahead(const void *packed) {
    _mm_prefetch((const char *)packed + FETCH_AHEAD, _MM_HINT_T0);
}

// Loads scales in the order of a tile's row, each twice: of its first half, its second half, and the same of the other
// tile.
static inline void load_scales(const char *packed, __m512 scales[4]) {
    const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int h = 0; h < 2; h++) {
        __m512 of_tile = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed + h));
        scales[2 * h] = _mm512_permutexvar_ps(first, of_tile);
        scales[2 * h + 1] = _mm512_permutexvar_ps(second, of_tile);
    }
}

// Stores a row of a tile, rounded; with two terms, truncated, and a row of the second term's tile. The two terms hold
// at least 16 bits of a weight's 11 to 18.
INLINE void store_row(__m512 lo, __m512 hi, int n_terms, char *row) {
    if (n_terms == 1) {
        _mm512_store_si512(row, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        return;
    }
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 first_lo = (__m512)_mm512_and_si512((__m512i)lo, upper);
    __m512 first_hi = (__m512)_mm512_and_si512((__m512i)hi, upper);
    _mm512_store_si512(row, (__m512i)_mm512_cvtne2ps_pbh(first_hi, first_lo));
    _mm512_store_si512(row + SL_AMX_STEP_BYTES,
                       (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(hi, first_hi), _mm512_sub_ps(lo, first_lo)));
}

INLINE __m512 int8_codes(const __m128i *codes, __m512 scale, __m512 offset) {
    const __m512i base = _mm512_set1_epi32(0x47000000); // 2^15: the lowest bit of its second byte is worth 1
    const __mmask64 second_bytes = 0x2222222222222222;
    const __m512i spread = _mm512_slli_epi32( // moves byte i of each 16 into lane i
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 8);
    __m512i x = _mm512_broadcast_i32x4(_mm_loadu_si128(codes));
    return _mm512_fmsub_ps((__m512)_mm512_mask_shuffle_epi8(base, second_bytes, x, spread), scale, offset);
}

INLINE void tiles_of_int8(const char *packed, int64_t count, int n_terms, char *buffer) {
    const __m512 zero_code = _mm512_set1_ps(32768.0f + 128.0f);
    for (int64_t s = 0; s < count; s++, packed += SCALES_BYTES + SL_PANEL * SL_AMX_STEP) {
        const __m128i *codes = (const __m128i *)(packed + SCALES_BYTES);
        __m512 scales[4], offsets[4];
        load_scales(packed, scales);
        SL_UNROLL
        for (int i = 0; i < 4; i++) {
            offsets[i] = _mm512_mul_ps(scales[i], zero_code);
        }
        for (int pair = 0; pair < SL_AMX_STEP / 2; pair++, buffer += 64, codes += 4) {
            fetch_ahead(codes); // fetches a cache line
            SL_UNROLL
            for (int h = 0; h < 2; h++) {
                store_row(int8_codes(codes + 2 * h, scales[2 * h], offsets[2 * h]),
                          int8_codes(codes + 2 * h + 1, scales[2 * h + 1], offsets[2 * h + 1]), n_terms,
                          buffer + h * SL_AMX_TILE_BYTES);
            }
        }
        buffer += n_terms * SL_AMX_STEP_BYTES - SL_AMX_TILE_BYTES;
    }
}

INLINE __m512 int4_codes(__m512i words, int nibble, __m512 scale) { // the permutation reads only the lowest nibble
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(words, (unsigned)(4 * nibble)), values), scale);
}

INLINE void tiles_of_int4(const char *packed, int64_t count, int n_terms, char *buffer) {
    for (int64_t s = 0; s < count; s++, packed += SCALES_BYTES + SL_PANEL * SL_AMX_STEP / 2) {
        const __m512i *pairs = (const __m512i *)(packed + SCALES_BYTES);
        __m512 scales[4];
        load_scales(packed, scales);
        for (int pair = 0; pair < SL_AMX_STEP / 2; pair += 2, buffer += 128, pairs++) {
            __m512i words = _mm512_loadu_si512(pairs);
            fetch_ahead(pairs);
            SL_UNROLL
            for (int i = 0; i < 8; i += 2) {
                store_row(int4_codes(words, i, scales[i % 4]), int4_codes(words, i + 1, scales[i % 4 + 1]), n_terms,
                          buffer + i / 4 * 64 + i % 4 / 2 * SL_AMX_TILE_BYTES);
            }
        }
        buffer += n_terms * SL_AMX_STEP_BYTES - SL_AMX_TILE_BYTES;
    }
}

static void tiles_of_f16(const char *packed, int64_t count, char *buffer) {
    for (int64_t s = 0; s < count; s++, buffer += SL_AMX_STEP_BYTES) {
        SL_UNROLL
        for (int row = 0; row < SL_PANEL; row++, buffer += 64, packed += 64) {
            fetch_ahead(packed);
            store_row(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed)),
                      _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed + 1)), 2, buffer);
        }
    }
}

const char *sl_amx_tiles(const struct sl_matrix *w, const char *packed, int64_t count, char *buffer) {
    switch (w->format) {
    case SL_WEIGHT_INT8:
        if (sl_amx_terms(w) == 1) {
            tiles_of_int8(packed, count, 1, buffer);
        } else {
            tiles_of_int8(packed, count, 2, buffer);
        }
        return buffer;
    case SL_WEIGHT_INT4:
        if (sl_amx_terms(w) == 1) {
            tiles_of_int4(packed, count, 1, buffer);
        } else {
            tiles_of_int4(packed, count, 2, buffer);
        }
        return buffer;
    case SL_WEIGHT_STORED:
    case SL_WEIGHT_CODES: // of other functions
        break;
    }
    if (w->dtype == SL_F16) {
        tiles_of_f16(packed, count, buffer);
        return buffer;
    }
    return packed;
}
