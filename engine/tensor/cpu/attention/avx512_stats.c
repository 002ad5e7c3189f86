// SPDX-License-Identifier: Apache-2.0
// Purpose: adds rows to the statistics of a page with AVX-512. avx2_stats.c does everything else, and has the formulas.
#include "engine/tensor/cpu/attention/avx512_kv.h"

#define WIDE SL_PAGE_STRIPS // registers: rows are read once, from their first score to their last

// Returns exp(score - lse) with the operations of sl_avx2_exp_weight(), and so with its bits.
static inline __m512 weight(const float *scores, const float *lse) {
    const __m512 shift = _mm512_set1_ps(12583039.0f);
    __m512 x = _mm512_sub_ps(_mm512_load_ps(scores), _mm512_set1_ps(*lse));
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), shift), n = _mm512_sub_ps(t, shift);
    __m512 p = sl_avx512_exp_fraction(x, n);
    __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-86.98f), _CMP_NLT_UQ), p, power);
}

// square and above are constants in every call.
static inline __attribute__((always_inline)) void add_rows(const struct sl_stats_rows *rows, bool square, bool above,
                                                           sl_kv_page_stats stats) {
    __m512 sums[WIDE], squares[WIDE], counts[WIDE];
    SL_UNROLL
    for (int i = 0; i < WIDE; i++) {
        sums[i] = _mm512_load_ps(stats[SL_KV_SUM] + SL_STRIP * i);
        squares[i] = _mm512_load_ps(stats[SL_KV_SQUARE] + SL_STRIP * i);
        counts[i] = _mm512_load_ps(stats[SL_KV_ABOVE] + SL_STRIP * i);
    }
    const float *lse = rows->lse, *scores = rows->scores;
    for (int r = 0; r < rows->n; r++) {
        __m512 a[WIDE];
        SL_UNROLL
        for (int i = 0; i < WIDE; i++) {
            a[i] = _mm512_setzero_ps(); // 0 + w is w, because no weight is -0
        }
        for (int g = 0; g < rows->group; g++, lse++, scores += SL_PAGE_SLOTS) {
            SL_UNROLL
            for (int i = 0; i < WIDE; i++) {
                a[i] = _mm512_add_ps(a[i], weight(scores + SL_STRIP * i, lse));
                _mm_prefetch((const char *)(scores + SL_STRIP * i + rows->next), _MM_HINT_T1);
            }
        }
        SL_UNROLL
        for (int i = 0; i < WIDE; i++) {
            sums[i] = _mm512_add_ps(sums[i], a[i]);
            if (square) {
                squares[i] = _mm512_fmadd_ps(a[i], a[i], squares[i]);
            }
            if (above) {
                __mmask16 is_above = _mm512_cmp_ps_mask(a[i], _mm512_set1_ps(rows->even[r]), _CMP_GT_OQ);
                counts[i] = _mm512_mask_add_ps(counts[i], is_above, counts[i], _mm512_set1_ps(1.0f));
            }
        }
    }
    SL_UNROLL
    for (int i = 0; i < WIDE; i++) {
        _mm512_store_ps(stats[SL_KV_SUM] + SL_STRIP * i, sums[i]);
        _mm512_store_ps(stats[SL_KV_SQUARE] + SL_STRIP * i, squares[i]);
        _mm512_store_ps(stats[SL_KV_ABOVE] + SL_STRIP * i, counts[i]);
    }
}

void sl_avx512_add_rows(const struct sl_stats_rows *rows, bool square, bool above, sl_kv_page_stats stats) {
    if (square) { // each way is a loop of its own
        above ? add_rows(rows, true, true, stats) : add_rows(rows, true, false, stats);
    } else {
        above ? add_rows(rows, false, true, stats) : add_rows(rows, false, false, stats);
    }
}
