// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX512-BF16, which multiplies pairs of bf16 twice as fast as f32. The formulas are
 *          those of ref_kv.c, the design that of avx512_kv.c.
 *
 * Design: queries, keys, weights and values are rounded to bf16, as tier amx does (amx_kv.c); sums are f32, and the sum for
 *         the division adds the rounded weights. A tile is avx512's with two rows in each: bf16 of rows 2 i and 2 i + 1 of
 *         a column are the low and the high half of an element. So all products are those of avx512_chain.h.
 *
 * Not here: f32 pages, which must not be rounded, and head sizes that are no multiple of 32. The kernels of tier avx512
 * take those.
 */
#include <string.h>

#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/attention/fills.h"

#define MULTIPLY_ADD(w, x, sum) _mm512_dpbf16_ps(sum, (__m512bh)(w), (__m512bh)(x))
#include "engine/tensor/cpu/attention/avx512_chain.h"

#define QUERY_STEP 32 // channels that are converted at once

static bool covers(const struct sl_attend *args) {
    bool rounds = args->head_dim % QUERY_STEP == 0;
    for (int h = 0; h < args->heads.n && rounds; h++) {
        const struct sl_kv *kv = &args->heads.kv[h];
        rounds = sl_kv_format_bits(kv->work->format) <= 16 &&
                 (kv->n_packed == 0 || sl_kv_format_bits(kv->packed->format) <= 16);
    }
    return rounds;
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

// Turns a tile of n_strips strips of strip_rows rows into pairs, of the first n_rows rows of each strip. Both are even.
static void pair_rows(float *tile, int n_strips, size_t strip_rows, size_t n_rows) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int s = 0; s < n_strips; s++) {
        const float *from = tile + (size_t)s * strip_rows * SL_STRIP;
        float *to = tile + (size_t)s * strip_rows / 2 * SL_STRIP; // never ahead of `from`
        for (size_t row = 0; row < n_rows; row += 2, from += 2 * SL_STRIP, to += SL_STRIP) {
            __m512bh both = _mm512_cvtne2ps_pbh(_mm512_load_ps(from + SL_STRIP), _mm512_load_ps(from));
            _mm512_store_si512(to, _mm512_permutexvar_epi16(order, (__m512i)both));
        }
    }
}

static void load_keys_of(const struct sl_attend *args, const struct sl_slot_angles *angles, int head, uint32_t page,
                         const char *next, struct sl_page_angles *of_page, float *tile) {
    const struct sl_kv *kv = &args->heads.kv[head];
    sl_avx512_fill_keys(sl_kv_page_layout(kv, page), kv->pages[page], next, tile);
    if (angles != NULL) {
        sl_avx2_rotate_keys(angles, of_page, page, tile);
    }
    pair_rows(tile, SL_PAGE_STRIPS, (size_t)args->head_dim, (size_t)args->head_dim);
}

// --- attend ----------------------------------------------------------------------------------------------------------

// Does what avx512_kv.c's does, with weights in bf16.
static inline float softmax_add(struct sl_avx2_softmax *s, struct sl_range seen, const float *scores,
                                float *weights_out) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 x[SL_PAGE_STRIPS], most, sum = _mm512_setzero_ps();
    __mmask64 mask = sl_avx512_slots_mask(seen);
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i++) {
        x[i] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(mask >> 16 * i), scores + 16 * i);
    }
    most = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    float max = fmaxf(s->max, sl_avx512_max(most));
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i += 2) {
        __m512 low = sl_avx512_exp_weight(_mm512_sub_ps(x[i], _mm512_set1_ps(max)));
        __m512 high = sl_avx512_exp_weight(_mm512_sub_ps(x[i + 1], _mm512_set1_ps(max)));
        __m512bh both = _mm512_cvtne2ps_pbh(high, low);
        _mm512_store_ps(weights_out + 8 * i, (__m512)both);
        sum = _mm512_dpbf16_ps(sum, both, ones);
    }
    float c = s->max == max ? 1.0f : _mm512_cvtss_f32(sl_avx512_exp_weight(_mm512_set1_ps(s->max - max)));
    s->max = max;
    s->sum = s->sum * c + sl_avx512_sum(sum);
    return c;
}

// Writes the values of the page's first n slots as pairs. An odd last one has a partner of zeros: unwritten memory may
// hold infinities, which a weight of 0 does not remove.
static void load_values(const struct sl_kv *kv, uint32_t page, const char *next, int n, int n_strips, float *tile) {
    sl_avx512_fill_values(sl_kv_page_layout(kv, page), kv->pages[page], next, n, tile);
    for (int strip = 0; strip < n_strips && n % 2 != 0; strip++) {
        _mm512_store_ps(tile + (strip * SL_PAGE_SLOTS + n) * SL_STRIP, _mm512_setzero_ps());
    }
    pair_rows(tile, n_strips, SL_PAGE_SLOTS, (size_t)(n + 1) / 2 * 2);
}

static void attend_page(const struct sl_kv_block *b, uint32_t page, uint32_t page_end, struct sl_attend_scratch *s) {
    const struct sl_kv *kv = &b->args->heads.kv[b->head];
    int d = b->args->head_dim, n_strips = sl_avx2_n_strips(d), begin, end;
    int n_page = sl_kv_block_clip(b, page, &begin, &end);
    if (n_page == 0) {
        return;
    }
    const char *next = sl_kv_next_page(kv, page, page_end);
    load_keys_of(b->args, b->angles, b->head, page, next, &s->of_page, s->k);
    float *scores = b->kept != NULL ? sl_kv_kept(b, page) : s->scores;
    size_t pairs = (size_t)d / 2, slot_pairs = SL_PAGE_SLOTS / 2;
    const struct sl_avx2_product qk = {s->q, pairs, s->k, pairs, scores, SL_PAGE_SLOTS, NULL};
    multiply(&qk, begin, end, (n_page + SL_STRIP - 1) / SL_STRIP, 0, pairs);
    for (int v = begin; v < end; v++) {
        size_t at = (size_t)v * SL_PAGE_SLOTS;
        s->factors[v] =
            softmax_add(&s->states[v], sl_slots_in_page(b->first[v], b->end[v], page), scores + at, s->scores + at);
    }
    load_values(kv, page, next, n_page, n_strips, s->v);
    const struct sl_avx2_product pv = {s->scores, SL_PAGE_SLOTS, s->v, slot_pairs, s->out, (size_t)n_strips * SL_STRIP,
                                       s->factors};
    multiply(&pv, begin, end, n_strips, 0, (size_t)(n_page + 1) / 2);
}

static void attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                         const struct sl_kv_partial *partial) {
    if (covers(b->args)) {
        sl_avx2_attend_pages(load_queries, attend_page, b, page_begin, page_end, partial);
    } else {
        sl_avx512_attend_block(b, page_begin, page_end, partial);
    }
}

static void fold_kept(const struct sl_kv_block *b, const struct sl_fold *what, sl_kv_page_stats *stats) {
    sl_avx2_fold_kept_by(sl_avx512_add_rows, b, what, stats);
}

static const struct sl_kv_kernel attention = {attend_block, SL_ATTEND_BLOCK, fold_kept};

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    sl_kv_attend(stream, calls, n_calls, &attention);
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout) {
    sl_kv_attend_before(stream, args, before_inout, &attention);
}

// --- statistics: of the same scores ----------------------------------------------------------------------------------

static void load_keys(const struct sl_avx2_call *call, int head, uint32_t page, struct sl_page_angles *of_page,
                      float *tile) {
    load_keys_of(&call->args, call->angles, head, page, call->args.heads.kv[head].pages[page], of_page, tile);
}

static void score(const float *q, const float *tile, size_t d, int v_begin, int v_end, int n_slots, float *scores) {
    const struct sl_avx2_product qk = {q, d / 2, tile, d / 2, scores, SL_PAGE_SLOTS, NULL};
    multiply(&qk, v_begin, v_end, (n_slots + SL_STRIP - 1) / SL_STRIP, 0, d / 2);
}

static const struct sl_avx2_scorer scorer = {load_queries, load_keys, score, sl_avx512_add_rows};

static void fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    if (covers(args)) {
        sl_avx2_fold_by(&scorer, stream, args, first_row, what);
    } else {
        sl_avx512_fold(stream, args, first_row, what);
    }
}

static void window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out) {
    if (covers(args)) {
        sl_avx2_window_sums_by(&scorer, stream, args, first_row, sums_out);
    } else {
        sl_avx512_window_sums(stream, args, first_row, sums_out);
    }
}

static void attend_fold(struct sl_stream *stream, const struct sl_attend *args, const struct sl_fold *what) {
    bool is_refs = args->n_heads / args->heads.n > SL_STATS_BLOCK; // fold() leaves such groups to the reference
    if (is_refs || !sl_kv_attend_fold(stream, args, what, &attention)) {
        attend(stream, args, 1);
        fold(stream, args, 0, what);
    }
}

void sl_avx512bf16_kv_fill(struct sl_ops *ops) {
    ops->attend_fold = attend_fold;
    ops->attend = attend;
    ops->attend_before = attend_before;
    ops->fold = fold;
    ops->window_sums = window_sums;
}
