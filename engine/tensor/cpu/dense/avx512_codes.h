// SPDX-License-Identifier: Apache-2.0
// Purpose: reads the codes of half panels (code_panels.h) into registers. Include only from files built for AVX-512.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/simd/avx512_math.h"

#define SL_INLINE static inline __attribute__((always_inline))

// Loads step `step` of a group: 4 codes, as bytes, of 16 rows.
SL_INLINE __m512i sl_load_codes(struct sl_code_form form, const char *codes, int step) {
    if (form.bits == 8) {
        return _mm512_loadu_si512(codes + step * 64);
    }
    __m512i pair = _mm512_loadu_si512(codes + step / 2 * 64);
    __m512i nibbles = _mm512_and_si512(step % 2 == 0 ? pair : _mm512_srli_epi16(pair, 4), _mm512_set1_epi8(15));
    const char *high = codes + 4 * 64;
    if (form.bits == 5) {
        __mmask64 bits;
        memcpy(&bits, high + step * 8, sizeof bits);
        return _mm512_mask_add_epi8(nibbles, bits, nibbles, _mm512_set1_epi8(16));
    }
    if (form.bits == 6) {
        __m512i planes = _mm512_loadu_si512(high + step / 4 * 64);
        const int at = step % 4 * 2; // bits at, at + 1 of a byte become bits 4 and 5
        __m512i shifted = at <= 4 ? _mm512_slli_epi16(planes, (unsigned)(4 - at)) : _mm512_srli_epi16(planes, 2);
        return _mm512_ternarylogic_epi32(nibbles, shifted, _mm512_set1_epi8(0x30), 0xf8); // a | b & c
    }
    return nibbles;
}

SL_INLINE __m512 sl_from_f16(const char *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

// The scales and offsets of a group: one of each, or two where 16 weights share them.
struct sl_group_scales {
    __m512 scales[2], offsets[2];
};

// Loads the scales of the group at *group, and moves *group to its codes. block_scales: D and O of a block.
SL_INLINE struct sl_group_scales sl_load_scales(struct sl_code_form form, const __m512 block_scales[2],
                                                const char **group) {
    struct sl_group_scales out;
    const int shares = SL_CODE_GROUP / form.shared;
    SL_UNROLL
    for (int i = 0; i < shares; i++) {
        if (form.block == 1) {
            out.scales[i] = block_scales[0];
            out.offsets[i] = block_scales[1];
        } else {
            __m512i s = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)*group));
            out.scales[i] = _mm512_mul_ps(block_scales[0], _mm512_cvtepi32_ps(s));
            *group += SL_HALF;
            out.offsets[i] = _mm512_setzero_ps();
            if (form.has_offset) {
                __m512i o = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)*group));
                out.offsets[i] = _mm512_mul_ps(block_scales[1], _mm512_cvtepi32_ps(o));
                *group += SL_HALF;
            }
        }
    }
    return out;
}

SL_INLINE const char *sl_load_block_scales(struct sl_code_form form, const char *block, __m512 out[2]) {
    out[0] = sl_from_f16(block);
    out[1] = form.has_offset ? sl_from_f16(block + 32) : _mm512_setzero_ps();
    return block + (form.has_offset ? 64 : 32);
}
