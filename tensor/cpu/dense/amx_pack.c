// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: weights of tier amx into panels, and quantized ones into tiles. See amx_pack.h.
 *
 * Design: a quantized weight is scale * code, exact in f32, rounded to bf16 once: the same wherever its tile is made. INT4
 *         rounds the 16 values that a group can have and picks from them. INT8 puts the byte code + 128 into the bits of
 *         the f32 2^15, where it adds itself; scale * (2^15 + 128) has 20 bits, so taking it off again is exact.
 */
#include "tensor/cpu/dense/amx_pack.h"

#include <immintrin.h>
#include <string.h>

#include "tensor/cpu/simd/avx2_math.h"
#include "tensor/weights.h"

#define SCALES_BYTES (SL_PANEL * sizeof(uint16_t))

size_t sl_amx_packed_step_bytes(const struct sl_matrix *w) {
    switch (w->format) {
    case SL_WEIGHT_INT8:
        return SCALES_BYTES + SL_PANEL * SL_AMX_STEP;
    case SL_WEIGHT_INT4:
        return SCALES_BYTES + SL_PANEL * SL_AMX_STEP / 2;
    case SL_WEIGHT_STORED:
        break;
    }
    return SL_AMX_STEP_BYTES;
}

// --- packing -------------------------------------------------------------------------------------------------------

static void pack_stored_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    for (int64_t i = 0; i < w->k && row != NULL; i += SL_AMX_STEP) {
        memcpy(panel + (i / SL_AMX_STEP * SL_PANEL + c) * 2 * SL_AMX_STEP, row + 2 * i,
               (size_t)sl_min(SL_AMX_STEP, w->k - i) * 2);
    }
}

static void pack_quantized_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    for (int64_t g = 0; g < sl_amx_steps(w); g++, panel += sl_amx_packed_step_bytes(w)) {
        int8_t codes[SL_WEIGHT_GROUP];
        uint8_t *to = (uint8_t *)panel + SCALES_BYTES;
        ((uint16_t *)panel)[c] = sl_panel_quantize(w, p, c, g, codes);
        if (w->format == SL_WEIGHT_INT8) {
            for (int i = 0; i < SL_WEIGHT_GROUP; i++) {
                to[c * SL_WEIGHT_GROUP + i] = (uint8_t)(codes[i] + 128);
            }
            continue;
        }
        for (int i = 0; i < SL_WEIGHT_GROUP; i++) {
            to[c / 4 * 64 + 2 * i + c % 4 / 2] |= (uint8_t)((codes[i] & 15) << (c % 2 * 4));
        }
    }
}

enum sl_status sl_amx_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_amx_steps(matrix) * sl_amx_packed_step_bytes(matrix),
                          matrix->format == SL_WEIGHT_STORED ? pack_stored_row : pack_quantized_row, err);
}

// --- tiles of quantized weights ------------------------------------------------------------------------------------

#define FETCH_AHEAD 8192 // bytes

// Weights come from memory, and converting them is too slow a reader for the processor to run ahead of far enough.
static inline void fetch_ahead(const void *packed) {
    _mm_prefetch((const char *)packed + FETCH_AHEAD, _MM_HINT_T0);
}

static inline void load_scales(const char *packed, float scales[SL_PANEL]) {
    _mm512_storeu_ps(scales, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed)));
    _mm512_storeu_ps(scales + 16, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed + 1)));
}

static void tiles_of_int8(const char *packed, int64_t count, char *buffer) {
    const __m512i base = _mm512_set1_epi32(0x47000000); // 2^15: the lowest bit of its second byte is worth 1
    const __mmask64 second_bytes = 0x2222222222222222;
    const __m512i spread = _mm512_slli_epi32( // byte i of each 16 into lane i
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 8);
    const __m512 zero_code = _mm512_set1_ps(32768.0f + 128.0f);
    for (int64_t s = 0; s < count; s++, packed += SCALES_BYTES + SL_PANEL * SL_AMX_STEP) {
        float scales[SL_PANEL], offsets[SL_PANEL];
        load_scales(packed, scales);
        _mm512_storeu_ps(offsets, _mm512_mul_ps(_mm512_loadu_ps(scales), zero_code));
        _mm512_storeu_ps(offsets + 16, _mm512_mul_ps(_mm512_loadu_ps(scales + 16), zero_code));
        const __m128i *codes = (const __m128i *)(packed + SCALES_BYTES);
        SL_UNROLL
        for (int c = 0; c < SL_PANEL; c++, buffer += 64, codes += 2) {
            __m512 scale = _mm512_set1_ps(scales[c]), offset = _mm512_set1_ps(offsets[c]);
            __m512i lo = _mm512_broadcast_i32x4(_mm_loadu_si128(codes));
            __m512i hi = _mm512_broadcast_i32x4(_mm_loadu_si128(codes + 1));
            lo = _mm512_mask_shuffle_epi8(base, second_bytes, lo, spread);
            hi = _mm512_mask_shuffle_epi8(base, second_bytes, hi, spread);
            __m512bh row = _mm512_cvtne2ps_pbh(_mm512_fmsub_ps((__m512)hi, scale, offset),
                                               _mm512_fmsub_ps((__m512)lo, scale, offset));
            _mm512_store_si512((__m512i *)buffer, (__m512i)row);
            if (c % 2 == 0) { // a cache line
                fetch_ahead(codes);
            }
        }
    }
}

static void tiles_of_int4(const char *packed, int64_t count, char *buffer) {
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    for (int64_t s = 0; s < count; s++, packed += SCALES_BYTES + SL_PANEL * SL_AMX_STEP / 2) {
        float scales[SL_PANEL];
        load_scales(packed, scales);
        const __m512i *quads = (const __m512i *)(packed + SCALES_BYTES);
        for (int c = 0; c < SL_PANEL; c += 4) {
            __m512i words = _mm512_loadu_si512(quads + c / 4);
            fetch_ahead(quads + c / 4);
            SL_UNROLL
            for (int i = 0; i < 4; i++, buffer += 64) {
                __m512 scaled = _mm512_mul_ps(values, _mm512_set1_ps(scales[c + i]));
                __m512i table = (__m512i)_mm512_cvtne2ps_pbh(scaled, scaled); // twice: the fifth bit does not matter
                __m512i index = _mm512_srli_epi16(words, (unsigned)(4 * i));
                _mm512_store_si512((__m512i *)buffer, _mm512_permutexvar_epi16(index, table));
            }
        }
    }
}

const char *sl_amx_tiles(const struct sl_matrix *w, const char *packed, int64_t count, char *buffer) {
    switch (w->format) {
    case SL_WEIGHT_INT8:
        tiles_of_int8(packed, count, buffer);
        return buffer;
    case SL_WEIGHT_INT4:
        tiles_of_int4(packed, count, buffer);
        return buffer;
    case SL_WEIGHT_STORED:
        break;
    }
    return packed;
}
