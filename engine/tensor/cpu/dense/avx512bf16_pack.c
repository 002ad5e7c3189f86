// SPDX-License-Identifier: Apache-2.0
// Purpose: packs weights of tier avx512bf16 into panels, and makes pairs of codes. See avx512bf16_pack.h.
#include "engine/tensor/cpu/dense/avx512bf16_pack.h"

#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512_codes.h"
#include "engine/tensor/weights.h"

#define FETCH_AHEAD 4096 // bytes; conversion reads too slowly for hardware prefetching to run far enough ahead

static void pack_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    for (int64_t i = 0; i < w->k && row != NULL; i += 2) {
        memcpy(panel + i / 2 * SL_PAIR_STEP_BYTES + 4L * c, row + 2 * i, (size_t)sl_min(2, w->k - i) * 2);
    }
}

enum sl_status sl_pairs_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_weight_groups(matrix->k) * SL_PAIR_GROUP_BYTES, pack_row, err);
}

// --- pairs of codes --------------------------------------------------------------------------------------------------

bool sl_pairs_pay(const struct sl_matrix *w) {
    for (int i = 0; i < SL_MAX_PARTS && w->format == SL_WEIGHT_CODES; i++) {
        const struct sl_code_type *type = w->parts[i].n > 0 ? sl_code_type(w->parts[i].dtype) : NULL;
        if (type != NULL && (type->has_offset || type->shared < SL_CODE_GROUP)) {
            return true;
        }
    }
    return false;
}

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
SL_INLINE void store_pairs(const struct sl_pair_layout *layout, int terms, __m512 first, __m512 second, char *out) {
    __m512i pairs = pairs_of(first, second);
    _mm512_store_si512(out, pairs);
    if (terms == 2) {
        __m512 left = _mm512_sub_ps(first, (__m512)_mm512_slli_epi32(pairs, 16));
        const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
        _mm512_store_si512(out + layout->second,
                           pairs_of(left, _mm512_sub_ps(second, (__m512)_mm512_and_si512(pairs, upper))));
    }
}

SL_INLINE void pairs_of_groups(struct sl_code_form form, const char *half, int64_t count,
                               const struct sl_pair_layout *layout, int terms, char *out) {
    const int steps = form.shared / 4;
    for (int64_t g = 0; g < count; g += form.block) {
        __m512 block_scales[2];
        half = sl_load_block_scales(form, half, block_scales);
        for (int i = 0; i < form.block; i++, out += layout->group) {
            struct sl_group_scales of = sl_load_scales(form, block_scales, &half);
            char *to = out;
            SL_UNROLL
            for (int step = 0; step < SL_CODE_STEPS; step++, to += 2 * layout->step) {
                __m512i codes = sl_load_codes(form, half, step);
                __m512 scale = of.scales[step / steps], offset = of.offsets[step / steps], x[4];
                _mm_prefetch(half + step * 64 + FETCH_AHEAD, _MM_HINT_T0);
                SL_UNROLL
                for (int k = 0; k < 4; k++) {
                    x[k] = widened_codes(form, codes, k, scale, offset);
                }
                store_pairs(layout, terms, x[0], x[1], to);
                store_pairs(layout, terms, x[2], x[3], to + layout->step);
            }
            half += sl_code_group_bytes(form.bits);
        }
    }
}

#define PAIRS(name, ...)                                                                                               \
    static void pairs_of_##name(const char *half, int64_t count, const struct sl_pair_layout *layout, char *out) {     \
        if (layout->terms == 1) {                                                                                      \
            pairs_of_groups((struct sl_code_form){__VA_ARGS__}, half, count, layout, 1, out);                          \
        } else {                                                                                                       \
            pairs_of_groups((struct sl_code_form){__VA_ARGS__}, half, count, layout, 2, out);                          \
        }                                                                                                              \
    }
SL_CODE_FORMS(PAIRS)

void sl_pairs_of_half(const struct sl_code_half *half, int64_t first, int64_t count,
                      const struct sl_pair_layout *layout, char *out) {
#define ENTRY(name, ...) [SL_##name] = pairs_of_##name,
    static void (*const all[])(const char *half, int64_t count, const struct sl_pair_layout *layout,
                               char *out) = {SL_CODE_FORMS(ENTRY)};
    all[half->dtype](half->data + sl_code_half_bytes(half->type, first * SL_CODE_GROUP), count, layout, out);
}
