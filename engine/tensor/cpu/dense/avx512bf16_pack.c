// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: packs weights of tier avx512bf16 into panels, and quantized ones into pairs. See avx512bf16_pack.h.
 *
 * Design: a code of 4 bits selects its bf16 from a table. A code of 8 bits is converted to f32, whose upper half is
 *         bf16 and holds all of its bits.
 */
#include "engine/tensor/cpu/dense/avx512bf16_pack.h"

#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512_codes.h"
#include "engine/tensor/weights.h"

#define SCALES_BYTES (SL_PANEL * sizeof(uint16_t))

size_t sl_pairs_packed_bytes(const struct sl_matrix *w) {
    switch (w->format) {
    case SL_WEIGHT_INT8:
        return SCALES_BYTES + SL_PANEL * SL_WEIGHT_GROUP;
    case SL_WEIGHT_INT4:
        return SCALES_BYTES + SL_PANEL * SL_WEIGHT_GROUP / 2;
    case SL_WEIGHT_STORED:
    case SL_WEIGHT_CODES: // of other functions
        break;
    }
    return SL_PAIR_STEPS * SL_PAIR_STEP_BYTES;
}

// --- packing -------------------------------------------------------------------------------------------------------

static void pack_stored_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    for (int64_t i = 0; i < w->k && row != NULL; i += 2) {
        memcpy(panel + i / 2 * SL_PAIR_STEP_BYTES + 4L * c, row + 2 * i, (size_t)sl_min(2, w->k - i) * 2);
    }
}

// Writes a row's codes; an INT4 code goes into its nibble of zeroed memory.
static void pack_quantized_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    for (int64_t g = 0; g < sl_weight_groups(w->k); g++, panel += sl_pairs_packed_bytes(w)) {
        int8_t codes[SL_WEIGHT_GROUP];
        uint8_t *to = (uint8_t *)panel + SCALES_BYTES;
        ((uint16_t *)panel)[c] = sl_panel_quantize(w, p, c, g, codes);
        for (int i = 0; i < SL_WEIGHT_GROUP; i++) {
            int step = i / 2, half = c / 16;
            if (w->format == SL_WEIGHT_INT8) {
                to[step * 64 + half * 32 + i % 2 * 16 + c % 16] = (uint8_t)codes[i];
            } else {
                int word = c % 16 * 2 + i % 2, nibble = step % 2 * 2 + half;
                to[step / 2 * 64 + word * 2 + nibble / 2] |= (uint8_t)((codes[i] & 15) << (nibble % 2 * 4));
            }
        }
    }
}

enum sl_status sl_pairs_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_weight_groups(matrix->k) * sl_pairs_packed_bytes(matrix),
                          matrix->format == SL_WEIGHT_STORED ? pack_stored_row : pack_quantized_row, err);
}

// --- pairs of quantized weights ------------------------------------------------------------------------------------

#define FETCH_AHEAD 4096 // bytes; conversion reads too slowly for hardware prefetching to run far enough ahead

static inline void fetch_ahead(const void *packed) {
    _mm_prefetch((const char *)packed + FETCH_AHEAD, _MM_HINT_T0);
}

static inline void store_scales(const char *packed, char *out) {
    for (int h = 0; h < 2; h++) {
        _mm512_store_ps((float *)(void *)out + 16 * h,
                        _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed + h)));
    }
}

static inline __m512i widened(const __m128i *codes) {
    return (__m512i)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)));
}

static void pairs_of_int8(const char *packed, int64_t count, char *out) {
    const __mmask32 second_of_pairs = 0xaaaaaaaa;
    for (int64_t g = 0; g < count; g++, packed += SCALES_BYTES + SL_PANEL * SL_WEIGHT_GROUP) {
        const __m128i *codes = (const __m128i *)(packed + SCALES_BYTES);
        store_scales(packed, out);
        out += SL_PAIR_SCALES_BYTES;
        for (int s = 0; s < SL_PAIR_STEPS; s++, codes += 4, out += SL_PAIR_STEP_BYTES) {
            fetch_ahead(codes);
            SL_UNROLL
            for (int h = 0; h < 2; h++) {
                __m512i first = _mm512_srli_epi32(widened(codes + 2 * h), 16), second = widened(codes + 2 * h + 1);
                _mm512_store_si512((__m512i *)out + h, _mm512_mask_blend_epi16(second_of_pairs, first, second));
            }
        }
    }
}

static void pairs_of_int4(const char *packed, int64_t count, char *out) {
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    // the table twice: the fifth bit of an index does not matter
    const __m512i table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
    for (int64_t g = 0; g < count; g++, packed += SCALES_BYTES + SL_PANEL * SL_WEIGHT_GROUP / 2) {
        const __m512i *codes = (const __m512i *)(packed + SCALES_BYTES);
        store_scales(packed, out);
        out += SL_PAIR_SCALES_BYTES;
        for (int s = 0; s < SL_PAIR_STEPS; s += 2, codes++, out += 2 * SL_PAIR_STEP_BYTES) {
            __m512i words = _mm512_loadu_si512(codes);
            fetch_ahead(codes);
            SL_UNROLL
            for (int i = 0; i < 4; i++) {
                __m512i index = _mm512_srli_epi16(words, (unsigned)(4 * i));
                _mm512_store_si512((__m512i *)out + i, _mm512_permutexvar_epi16(index, table));
            }
        }
    }
}

void sl_pairs_of_codes(const struct sl_matrix *w, const char *packed, int64_t count, char *out) {
    if (w->format == SL_WEIGHT_INT8) {
        pairs_of_int8(packed, count, out);
    } else {
        pairs_of_int4(packed, count, out);
    }
}

// --- pairs of the codes of a file ------------------------------------------------------------------------------------

// Returns the weights of byte i of a step, as f32, by the formula of engine/tensor/codes.h.
SL_INLINE __m512 widened_codes(struct sl_code_form form, __m512i codes, int i, __m512 scale, __m512 offset) {
    __m512i c = _mm512_and_si512(_mm512_srli_epi32(codes, (unsigned)(8 * i)), _mm512_set1_epi32(255));
    if (form.zero_shift >= 0) {
        c = _mm512_sub_epi32(c, _mm512_set1_epi32(1 << form.zero_shift));
    }
    __m512 x = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(c));
    return form.has_offset ? _mm512_add_ps(x, offset) : x;
}

// Rounds two registers of weights, adjacent in k, to pairs.
SL_INLINE __m512i pairs_of(__m512 first, __m512 second) {
    const __m512i by_turns = _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005,
                                               0x00160006, 0x00170007, 0x00180008, 0x00190009, 0x001a000a, 0x001b000b,
                                               0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    return _mm512_permutexvar_epi16(by_turns, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

SL_INLINE void pairs_of_groups(struct sl_code_form form, const char *half, int64_t count, char *out) {
    const int steps = form.shared / 4;
    for (int64_t g = 0; g < count; g += form.block) {
        __m512 block_scales[2];
        half = sl_load_block_scales(form, half, block_scales);
        for (int i = 0; i < form.block; i++) {
            struct sl_group_scales of = sl_load_scales(form, block_scales, &half);
            SL_UNROLL
            for (int step = 0; step < SL_CODE_STEPS; step++) {
                __m512i codes = sl_load_codes(form, half, step);
                __m512 scale = of.scales[step / steps], offset = of.offsets[step / steps], x[4];
                fetch_ahead(half + step * 64);
                SL_UNROLL
                for (int k = 0; k < 4; k++) {
                    x[k] = widened_codes(form, codes, k, scale, offset);
                }
                _mm512_store_si512(out, pairs_of(x[0], x[1]));
                _mm512_store_si512(out + SL_PAIR_STEP_BYTES, pairs_of(x[2], x[3]));
                out += 2 * SL_PAIR_STEP_BYTES;
            }
            half += sl_code_group_bytes(form.bits);
        }
    }
}

#define PAIRS(name, ...)                                                                                               \
    static void pairs_of_##name(const char *half, int64_t count, char *out) {                                          \
        pairs_of_groups((struct sl_code_form){__VA_ARGS__}, half, count, out);                                         \
    }
SL_CODE_FORMS(PAIRS)

void sl_pairs_of_half(const struct sl_code_half *half, int64_t first, int64_t count, char *out) {
#define ENTRY(name, ...) [SL_##name] = pairs_of_##name,
    static void (*const all[])(const char *half, int64_t count, char *out) = {SL_CODE_FORMS(ENTRY)};
    all[half->dtype](half->data + sl_code_half_bytes(half->type, first * SL_CODE_GROUP), count, out);
}
