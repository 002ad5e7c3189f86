// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention of a tier whose elements are f32: avx512_attend.h with its products of codes. A tier's file includes
 *          this and has the tier's sl_*_fill().
 *
 * Design: the sums of 6 vectors with the 64 columns of a group take 24 registers, the numbers of a row of codes 4. So few
 *         vectors multiply each row of codes as it is decoded: no number is stored, and no tile of 32 KiB passes the
 *         first-level cache. The products and their order are those of chain().
 *
 * The bound: for 64 codes, 4 vectors take 16 multiply-adds of ports 0 and 5. With VBMI, decoding takes six permutations of
 *         port 5, and three shifts and a product of port 0: 13 cycles of both ports (1 vector: 7), whatever the bits of a
 *         code. So every format takes the same time a slot. With scales a code of 4, 3, 2 bits has 4.5, 3.5, 2.5: int3 and
 *         int2 would read 0.78 and 0.56 of int4's bytes a second, with any number of vectors and threads, until memory
 *         gives a core less than these rates. Tiers with VNNI multiply them as integers (integer/avx512vnni_rows.h).
 */
#pragma once

#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/pages/avx512_codec.h"

#define ROWS_AN_ELEMENT         1
#define MULTIPLY_ADD(w, x, sum) _mm512_fmadd_ps(w, x, sum)
#define load_queries            sl_avx2_load_queries

#include "engine/tensor/cpu/attention/chain.h" // ROWS

#ifndef HAS_INTEGERS // else it comes with these
#define keys_from_codes(layout, page, next, tile)      false
#define values_from_codes(layout, page, next, n, tile) false
#endif

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

static inline __attribute__((always_inline)) void
add_rows_of_codes(const struct sl_avx2_product *p, const struct sl_coded_rows *r, enum sl_kv_format format, int n) {
    _Alignas(64) float wide[SL_WIDE_PAIRS];
    const size_t n_groups = r->columns / SL_PAGE_SLOTS, bytes = sl_row_bytes(SL_PAGE_SLOTS, sl_kv_format_bits(format));
    const struct sl_avx512_spread spread = sl_avx512_spread(format);
    sl_avx512_widen_pairs(r, wide);
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *codes = r->codes + g * bytes;
        const char *next = r->next + g * bytes;
        const float *pair = wide + 2 * g, *a = p->a;
        float *c = p->c + g * SL_PAGE_SLOTS;
        __m512 sum[ROWS][SL_PAGE_STRIPS], x[SL_PAGE_STRIPS];
        SL_UNROLL
        for (int v = 0; v < n; v++) {
            SL_UNROLL
            for (int i = 0; i < SL_PAGE_STRIPS; i++) {
                const float *at = c + (size_t)v * p->c_stride + SL_STRIP * i;
                sum[v][i] = p->factor == NULL ? _mm512_setzero_ps()
                                              : _mm512_mul_ps(_mm512_loadu_ps(at), _mm512_set1_ps(p->factor[v]));
            }
        }
        for (size_t e = 0; e < r->n; e++, codes += n_groups * bytes, next += n_groups * bytes, pair += 2 * n_groups) {
            sl_avx512_decode64(codes, pair, format, &spread, x);
            sl_avx512_fetch(next, 1);
            SL_UNROLL
            for (int v = 0; v < n; v++) {
                const __m512 w = _mm512_set1_ps(a[(size_t)v * p->a_stride + e]);
                SL_UNROLL
                for (int i = 0; i < SL_PAGE_STRIPS; i++) {
                    sum[v][i] = MULTIPLY_ADD(w, x[i], sum[v][i]);
                }
            }
        }
        SL_UNROLL
        for (int v = 0; v < n; v++) {
            SL_UNROLL
            for (int i = 0; i < SL_PAGE_STRIPS; i++) {
                _mm512_storeu_ps(c + (size_t)v * p->c_stride + SL_STRIP * i, sum[v][i]);
            }
        }
    }
}

static inline __attribute__((always_inline)) void
add_codes_of(const struct sl_avx2_product *p, const struct sl_coded_rows *r, enum sl_kv_format format, int n) {
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        return add_rows_of_codes(p, r, format, n);
    switch (sl_avx2_integer_bits(format) > 0 ? n : 0) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

static bool multiply_codes(const struct sl_avx2_product *p, const struct sl_coded_rows *r, enum sl_kv_format format,
                           int n) {
    if (sl_avx2_integer_bits(format) == 0 || r->group != SL_PAGE_SLOTS) {
        return false;
    }
    SL_KV_WITH_FORMAT(format, add_codes_of(p, r, FORMAT, n));
    return true;
}

#include "engine/tensor/cpu/attention/avx512_attend.h"

static void attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                         const struct sl_kv_partial *partial) {
    sl_avx2_attend_pages(load_queries, attend_page, b, page_begin, page_end, partial);
}

static const struct sl_kv_kernel attention = {attend_block, SL_ATTEND_BLOCK, fold_kept};

static const struct sl_avx2_scorer rotated_scorer = {load_queries, load_keys, score_rotated, sl_avx512_add_rows};

static const struct sl_avx2_scorer *scorer_for(const struct sl_attend *args) {
    return args->rope == NULL ? &scorer : &rotated_scorer;
}

#include "engine/tensor/cpu/attention/kv_entries.h"
