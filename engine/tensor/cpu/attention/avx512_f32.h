// SPDX-License-Identifier: Apache-2.0
// Purpose: what avx512_attend.h asks of a tier whose elements are f32: all but how it reads codes.
#pragma once

#include "engine/tensor/cpu/attention/avx512_kv.h"

#define ROWS_AN_ELEMENT         1
#define MULTIPLY_ADD(w, x, sum) _mm512_fmadd_ps(w, x, sum)
#define load_queries            sl_avx2_load_queries

static inline void elements_of_rows(float *tile, int n_strips, size_t strip_rows, size_t n_rows) {
    (void)tile, (void)n_strips, (void)strip_rows, (void)n_rows; // they are numbers of f32
}

static inline __m512 store_weights(const __m512 x[SL_PAGE_STRIPS], float *weights_out) {
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i++) {
        _mm512_store_ps(weights_out + 16 * i, x[i]);
    }
    return _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
}
