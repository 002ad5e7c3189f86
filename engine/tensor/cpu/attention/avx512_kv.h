// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that the AVX-512 files about KV pages share. Include only from files compiled for AVX-512 F,
 *         BW, VL and DQ.
 *
 * Design: tiles are those of avx2_kv.h, where a strip is a register of this width. The code of tier avx2 makes tiles of
 *         the rarer formats, and rotates all of them.
 */
#pragma once

#include "engine/tensor/cpu/attention/avx2_kv.h"

// Do what sl_avx2_fill_keys() and sl_avx2_fill_values() do. They prefetch the same part of page `next` meanwhile: see
// sl_kv_next_page(). `next` may be the page itself.
void sl_avx512_fill_keys(const struct sl_page_layout *layout, const void *page, const char *next, float *tile);
void sl_avx512_fill_values(const struct sl_page_layout *layout, const void *page, const char *next, int n, float *tile);

// Prefetches `lines` cache lines from `at` on into the second-level cache.
static inline __attribute__((always_inline)) void sl_avx512_fetch(const char *at, int lines) {
    SL_UNROLL
    for (int line = 0; line < lines; line++) {
        _mm_prefetch(at + 64 * line, _MM_HINT_T1);
    }
}

// The tier's attention kernel (see kv_blocks.h), for calls that a faster one does not cover. A block has at most
// SL_ATTEND_BLOCK vectors.
void sl_avx512_attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                            const struct sl_kv_partial *partial);

extern const struct sl_avx2_scorer *const sl_avx512_scorer; // for calls that a faster tier does not cover

// Adds rows to statistics with the bits of tier avx2's function, in half its instructions.
void sl_avx512_add_rows(const struct sl_stats_rows *rows, bool square, bool above, sl_kv_page_stats stats);

// Returns exp(x) / 2^n, for n near x / log 2.
static inline __m512 sl_avx512_exp_fraction(__m512 x, __m512 n) {
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
    __m512 p = _mm512_set1_ps(0.00831252019f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0418901569f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.166671146f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.499992315f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
}

// As sl_avx2_exp_weight().
static inline __m512 sl_avx512_exp_weight(__m512 x) {
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 p = sl_avx512_exp_fraction(x, n);
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-86.98f), _CMP_NLT_UQ), p, n);
}
