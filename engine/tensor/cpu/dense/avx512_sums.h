// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the sums of a panel, f32 [rows][SL_PANEL]: how they start, and how they become y through bias, activation
 *          and gate. Include only from files built for AVX-512.
 *
 * Design: a tile of any kernel adds to sums that stay in a cache, never to y. So y is written once, and the way in
 *         which k was cut changes no bit, because f32 in memory is f32 in a register.
 */
#pragma once

#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/simd/avx512_math.h"

// Sets sums to 0, or to y where the product adds to it, for `rows` rows from `row` on of panel p. Fetches the lines of y
// that the sums will be written to: a large y has left the second-level cache.
static inline void sl_sums_start(const struct sl_product *a, int64_t p, int64_t row, int64_t rows, float *sums) {
    const float *y = a->y + row * a->y_stride + p * sl_panel_outputs(a->w);
    __mmask16 lo = a->accumulate ? sl_avx512_lanes(a->outputs - p * SL_PANEL) : 0;
    __mmask16 hi = a->accumulate ? sl_avx512_lanes(a->outputs - p * SL_PANEL - 16) : 0;
    for (int64_t r = 0; r < rows; r++, y += a->y_stride, sums += SL_PANEL) {
        _mm_prefetch((const char *)y, _MM_HINT_T1);
        _mm_prefetch((const char *)(y + 16), _MM_HINT_T1);
        _mm512_store_ps(sums, _mm512_maskz_loadu_ps(lo, y));
        _mm512_store_ps(sums + 16, _mm512_maskz_loadu_ps(hi, y + 16));
    }
}

static inline __attribute__((always_inline)) void sl_sums_finish_as(const struct sl_product *a, int64_t p, int64_t row,
                                                                    int64_t rows, const float *sums,
                                                                    enum sl_activation activation, bool gated) {
    int64_t column = p * (gated ? SL_PANEL_HALF : SL_PANEL), left = a->outputs - column;
    __mmask16 lo = sl_avx512_lanes(left), hi = gated ? lo : sl_avx512_lanes(left - 16);
    const float *bias = a->w->bias;
    __m512 bias_lo = _mm512_setzero_ps(), bias_hi = bias_lo;
    if (bias != NULL) {
        bias_lo = _mm512_maskz_loadu_ps(lo, bias + column);
        bias_hi = _mm512_maskz_loadu_ps(hi, bias + column + (gated ? a->w->n / 2 : 16));
    }
    float *y = a->y + row * a->y_stride + column;
    for (int64_t r = 0; r < rows; r++, y += a->y_stride, sums += SL_PANEL) {
        __m512 first = _mm512_load_ps(sums), second = _mm512_load_ps(sums + 16);
        if (bias != NULL) {
            first = _mm512_add_ps(first, bias_lo);
            second = _mm512_add_ps(second, bias_hi);
        }
        first = sl_avx512_activate(activation, first);
        if (gated) {
            _mm512_mask_storeu_ps(y, lo, _mm512_mul_ps(first, second));
        } else {
            _mm512_mask_storeu_ps(y, lo, first);
            _mm512_mask_storeu_ps(y + 16, hi, sl_avx512_activate(activation, second));
        }
    }
}

// Writes y from the sums as the matrix requires, for `rows` rows from `row` on of panel p.
static inline void sl_sums_finish(const struct sl_product *a, int64_t p, int64_t row, int64_t rows, const float *sums) {
    if (a->w->activation == SL_ACT_NONE && !a->w->gated) {
        sl_sums_finish_as(a, p, row, rows, sums, SL_ACT_NONE, false);
    } else if (a->w->activation == SL_ACT_SILU && a->w->gated) {
        sl_sums_finish_as(a, p, row, rows, sums, SL_ACT_SILU, true);
    } else {
        sl_sums_finish_as(a, p, row, rows, sums, a->w->activation, a->w->gated);
    }
}

// avx512_dense.c: for the weights that tiers avx512bf16 and amx do not multiply, too.
enum sl_status sl_avx512_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);
// For stored matrices. It needs no scratch.
void sl_avx512_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args);
