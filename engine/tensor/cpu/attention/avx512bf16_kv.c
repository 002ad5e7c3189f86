// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX512-BF16, which multiplies pairs of bf16 twice as fast as f32. The formulas are
 *          those of ref_kv.c, the design that of avx512_kv.c.
 *
 * Design: queries, keys, weights and values are rounded to bf16, as tier amx does (amx_kv.c); sums are f32, and the sum for
 *         the division adds the rounded weights. A tile is avx512's with two rows in each: bf16 of rows 2 i and 2 i + 1 of
 *         a column are the low and the high half of an element. So all products are those of avx512_attend.h. An odd last row has a partner of
 *         zeros: unwritten memory may hold infinities, which a weight of 0 does not remove. Codes become bf16 of the same bits
 *         by the tables of avx512_codec.h, two rows at a time.
 *
 * Not here: f32 pages, which must not be rounded, and head sizes that are not multiples of 32. The kernels of tier avx512
 * take those.
 */
#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/attention/fills.h"
#include "engine/tensor/cpu/pages/avx512_codec.h"

#define ROWS_AN_ELEMENT         2
#define MULTIPLY_ADD(w, x, sum) _mm512_dpbf16_ps(sum, (__m512bh)(w), (__m512bh)(x))

#define QUERY_STEP 32 // channels that are converted at once

static bool covers(const struct sl_attend *args) {
    bool rounds = args->head_dim % QUERY_STEP == 0;
    for (int h = 0; h < args->heads.n && rounds; h++) {
        const struct sl_kv *kv = &args->heads.kv[h];
        rounds = sl_kv_format_bits(kv->work->k_format) <= 16 &&
                 (kv->n_packed == 0 || sl_kv_format_bits(kv->packed->k_format) <= 16);
    }
    return rounds;
}

static bool multiply_codes(const struct sl_avx2_product *p, const struct sl_coded_rows *r, enum sl_kv_format format,
                           int n) {
    (void)p, (void)r, (void)format, (void)n; // rows are read in pairs
    return false;
}

// --- pairs -----------------------------------------------------------------------------------------------------------

// Writes q as bf16 [n][d].
static void load_queries(const struct sl_avx2_call *call, int head, int64_t begin, int n,
                         struct sl_page_angles *of_page, float *q) {
    size_t count = (size_t)n * (size_t)call->args.head_dim;
    sl_avx2_load_queries(call, head, begin, n, of_page, q);
    for (size_t e = 0; e < count;
         e += QUERY_STEP) { // in place: each write ends before the data that is still to be read
        _mm512_store_ps(q + e / 2, (__m512)_mm512_cvtne2ps_pbh(_mm512_load_ps(q + e + 16), _mm512_load_ps(q + e)));
    }
}

// Turns the first n_rows rows of each strip of a tile into pairs. strip_rows is even.
static void elements_of_rows(float *tile, int n_strips, size_t strip_rows, size_t n_rows) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int s = 0; s < n_strips; s++) {
        const float *from = tile + (size_t)s * strip_rows * SL_STRIP;
        float *to = tile + (size_t)s * strip_rows / 2 * SL_STRIP; // never ahead of `from`
        for (size_t row = 0; row < n_rows; row += 2, from += 2 * SL_STRIP, to += SL_STRIP) {
            __m512 high = row + 1 < n_rows ? _mm512_load_ps(from + SL_STRIP) : _mm512_setzero_ps();
            __m512bh both = _mm512_cvtne2ps_pbh(high, _mm512_load_ps(from));
            _mm512_store_si512(to, _mm512_permutexvar_epi16(order, (__m512i)both));
        }
    }
}

// Writes 32 columns of two rows, or of a row and zeros, whose codes are computed.
static inline __attribute__((always_inline)) void compute_columns(const uint8_t *codes[2], const float *pairs[2],
                                                                  enum sl_kv_format format, float *to[2]) {
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0),
                  second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const struct sl_bf16_codebook of_low = sl_bf16_codebook(pairs[0], format),
                                  of_high = sl_bf16_codebook(pairs[1], format);
    __m512i a = sl_bf16_decode32(codes[0], format, &of_low), b = sl_bf16_decode32(codes[1], format, &of_high);
    _mm512_store_si512(to[0], _mm512_permutex2var_epi16(a, first, b));
    _mm512_store_si512(to[1], _mm512_permutex2var_epi16(a, second, b));
}

// Does the same by looking up the numbers of both rows' codes at once.
static inline __attribute__((always_inline)) void look_up_columns(const uint8_t *codes[2], const float *pairs[2],
                                                                  enum sl_kv_format format, float *to[2]) {
    const __m512i values = sl_bf16_round32(sl_avx512_numbers(pairs[0], format), sl_avx512_numbers(pairs[1], format));
    size_t strip = sl_row_bytes(SL_STRIP, sl_kv_format_bits(format));
    _mm512_store_si512(to[0], sl_bf16_look_up_rows(codes[0], codes[1], format, values));
    _mm512_store_si512(to[1], sl_bf16_look_up_rows(codes[0] + strip, codes[1] + strip, format, values));
}

// Writes pairs of rows; their columns are a multiple of 32.
static inline __attribute__((always_inline)) void pairs_from_codes(const struct sl_coded_rows *r,
                                                                   enum sl_kv_format format, float *tile) {
    static const float zeros[2] = {0}; // scale and zero of the row that an odd last one is paired with
    _Alignas(64) float wide[SL_WIDE_PAIRS];
    size_t n_groups = r->columns / r->group, row_bytes = sl_row_bytes((int)r->columns, sl_kv_format_bits(format));
    sl_avx512_widen_pairs(r, wide);
    for (size_t row = 0; row < r->n; row += 2, tile += SL_STRIP) {
        bool has_high = row + 1 < r->n;
        const uint8_t *low = r->codes + row * row_bytes, *high = has_high ? low + row_bytes : low;
        for (size_t line = 0; line < 2 * row_bytes; line += 64) {
            sl_avx512_fetch(r->next + row * row_bytes + line, 1);
        }
        for (size_t column = 0; column < r->columns; column += 32) {
            size_t at = sl_row_bytes((int)column, sl_kv_format_bits(format));
            const float *pair = wide + 2 * (row * n_groups + column / r->group);
            const uint8_t *codes[2] = {low + at, high + at};
            const float *pairs[2] = {pair, has_high ? pair + 2 * n_groups : zeros};
            float *strips = tile + column / SL_STRIP * r->strip_rows / 2 * SL_STRIP;
            float *to[2] = {strips, strips + r->strip_rows / 2 * SL_STRIP};
            if (sl_avx512_looks_up(format)) {
                look_up_columns(codes, pairs, format, to);
            } else {
                compute_columns(codes, pairs, format, to);
            }
        }
    }
}

static bool keys_from_codes(const struct sl_page_layout *layout, const char *page, const char *next, float *tile) {
    const struct sl_coded_rows r = sl_coded_keys(layout, page, next);
    if (!sl_bf16_decodes(layout->k_format)) {
        return false;
    }
    SL_KV_WITH_FORMAT(layout->k_format, pairs_from_codes(&r, FORMAT, tile));
    return true;
}

// covers() holds, so groups of channels are multiples of 32.
static bool values_from_codes(const struct sl_page_layout *layout, const char *page, const char *next, size_t n,
                              float *tile) {
    const struct sl_coded_rows r = sl_coded_values(layout, page, next, n);
    if (!sl_bf16_decodes(layout->v_format)) {
        return false;
    }
    SL_KV_WITH_FORMAT(layout->v_format, pairs_from_codes(&r, FORMAT, tile));
    return true;
}

static inline __m512 store_weights(const __m512 x[SL_PAGE_STRIPS], float *weights_out) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i += 2) {
        __m512bh both = _mm512_cvtne2ps_pbh(x[i + 1], x[i]);
        _mm512_store_ps(weights_out + 8 * i, (__m512)both);
        sum = _mm512_dpbf16_ps(sum, both, ones);
    }
    return sum;
}

#include "engine/tensor/cpu/attention/avx512_attend.h"

// --- the entries -----------------------------------------------------------------------------------------------------

static void attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                         const struct sl_kv_partial *partial) {
    if (covers(b->args)) {
        sl_avx2_attend_pages(load_queries, attend_page, b, page_begin, page_end, partial);
    } else {
        sl_avx512_attend_block(b, page_begin, page_end, partial);
    }
}

static const struct sl_kv_kernel attention = {attend_block, SL_ATTEND_BLOCK, fold_kept};

static const struct sl_avx2_scorer *scorer_for(const struct sl_attend *args) {
    return covers(args) ? &scorer : sl_avx512_scorer;
}

#include "engine/tensor/cpu/attention/kv_entries.h"

void sl_avx512bf16_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
}
