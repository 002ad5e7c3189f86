// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cpu/dense/amx_pack.h"

#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512_codes.h"
#include "engine/tensor/weights.h"

#define FETCH_AHEAD 8192 // bytes; conversion reads too slowly for hardware prefetching to run far enough ahead

static void pack_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    char *to = panel + c / SL_PANEL_HALF * SL_AMX_TILE_BYTES + c % SL_PANEL_HALF * 4;
    for (int64_t i = 0; i < w->k && row != NULL; i += 2) {
        int64_t step = i / SL_AMX_STEP, pair = i % SL_AMX_STEP / 2;
        memcpy(to + step * SL_AMX_STEP_BYTES + pair * 64, row + 2 * i, (size_t)sl_min(2, w->k - i) * 2);
    }
}

enum sl_status sl_amx_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_amx_steps(matrix) * SL_AMX_STEP_BYTES, pack_row, err);
}

// --- tiles -----------------------------------------------------------------------------------------------------------

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

// Stores a register of pairs; with two terms, what it leaves of the weights, too.
SL_INLINE void store_pairs(int terms, __m512 first, __m512 second, char *out) {
    __m512i pairs = pairs_of(first, second);
    _mm512_store_si512(out, pairs);
    if (terms == 2) {
        __m512 left = _mm512_sub_ps(first, (__m512)_mm512_slli_epi32(pairs, 16));
        const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
        _mm512_store_si512(out + SL_AMX_STEP_BYTES,
                           pairs_of(left, _mm512_sub_ps(second, (__m512)_mm512_and_si512(pairs, upper))));
    }
}

// Stores a register of pairs of f16, truncated, and what this leaves: the two terms hold all bits.
static inline void store_pairs_of_f16(const char *first, const char *second, char *out) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 a = sl_from_f16(first), b = sl_from_f16(second);
    __m512 cut_a = (__m512)_mm512_and_si512((__m512i)a, upper), cut_b = (__m512)_mm512_and_si512((__m512i)b, upper);
    _mm512_store_si512(out, pairs_of(cut_a, cut_b));
    _mm512_store_si512(out + SL_AMX_STEP_BYTES, pairs_of(_mm512_sub_ps(a, cut_a), _mm512_sub_ps(b, cut_b)));
}

// Makes the tiles of `count` steps of a panel of tier avx512, [k][32] f16, from step `first` on.
static void tiles_of_f16(const struct sl_matrix *w, const char *panel, int64_t first, int64_t count, char *buffer) {
    static const char zeros[64] = {0};
    for (int64_t i = first * SL_AMX_STEP; i < (first + count) * SL_AMX_STEP; i += 2) {
        char *to = buffer + (i / SL_AMX_STEP - first) * 2 * SL_AMX_STEP_BYTES + i % SL_AMX_STEP / 2 * 64;
        const char *one = i < w->k ? panel + i * 64 : zeros, *two = i + 1 < w->k ? panel + (i + 1) * 64 : zeros;
        _mm_prefetch(panel + i * 64 + FETCH_AHEAD, _MM_HINT_T0);
        _mm_prefetch(panel + i * 64 + 64 + FETCH_AHEAD, _MM_HINT_T0);
        store_pairs_of_f16(one, two, to);
        store_pairs_of_f16(one + 32, two + 32, to + SL_AMX_TILE_BYTES);
    }
}

// Makes the tiles of `count` groups of a half panel, in both terms if there are two.
SL_INLINE void tiles_of_half(struct sl_code_form form, const char *half, int64_t count, int terms, char *out) {
    const int steps = form.shared / 4;
    for (int64_t g = 0; g < count; g += form.block) {
        __m512 block_scales[2];
        half = sl_load_block_scales(form, half, block_scales);
        for (int i = 0; i < form.block; i++, out += terms * SL_AMX_STEP_BYTES) {
            struct sl_group_scales of = sl_load_scales(form, block_scales, &half);
            char *to = out;
            SL_UNROLL
            for (int step = 0; step < SL_CODE_STEPS; step++, to += 2 * 64) {
                __m512i codes = sl_load_codes(form, half, step);
                __m512 scale = of.scales[step / steps], offset = of.offsets[step / steps], x[4];
                _mm_prefetch(half + step * 64 + FETCH_AHEAD, _MM_HINT_T0);
                SL_UNROLL
                for (int k = 0; k < 4; k++) {
                    x[k] = widened_codes(form, codes, k, scale, offset);
                }
                store_pairs(terms, x[0], x[1], to);
                store_pairs(terms, x[2], x[3], to + 64);
            }
            half += sl_code_group_bytes(form.bits);
        }
    }
}

#define HALVES(name, ...)                                                                                              \
    static void tiles_of_##name(const char *half, int64_t count, int terms, char *out) {                               \
        if (terms == 1) {                                                                                              \
            tiles_of_half((struct sl_code_form){__VA_ARGS__}, half, count, 1, out);                                    \
        } else {                                                                                                       \
            tiles_of_half((struct sl_code_form){__VA_ARGS__}, half, count, 2, out);                                    \
        }                                                                                                              \
    }
SL_CODE_FORMS(HALVES)

// Makes the tiles of `count` groups of panel p from group `first`, the first of a block, on.
static void tiles_of_codes(const struct sl_matrix *w, int64_t p, int64_t first, int64_t count, char *buffer) {
#define ENTRY(name, ...) [SL_##name] = tiles_of_##name,
    static void (*const all[])(const char *half, int64_t count, int terms, char *out) = {SL_CODE_FORMS(ENTRY)};
    for (int h = 0; h < 2; h++) {
        struct sl_code_half half = sl_code_half_at(w, p, h);
        if (half.type != NULL) {
            all[half.dtype](half.data + sl_code_half_bytes(half.type, first * SL_CODE_GROUP), count, sl_amx_terms(w),
                            buffer + h * SL_AMX_TILE_BYTES);
        }
    }
}

const char *sl_amx_tiles(const struct sl_matrix *w, int64_t p, int64_t first, int64_t count, char *buffer) {
    if (sl_code_is(w)) {
        tiles_of_codes(w, p, first, count, buffer);
        return buffer;
    }
    if (w->dtype == SL_F16) {
        tiles_of_f16(w, (const char *)w->packed + p * w->k * 64, first, count, buffer);
        return buffer;
    }
    return (const char *)w->packed + (size_t)(p * sl_amx_steps(w) + first) * SL_AMX_STEP_BYTES;
}
