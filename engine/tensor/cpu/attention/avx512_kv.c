// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX-512. The formulas are those of ref_kv.c, the design that of avx2_kv.c.
 *
 * Design: with few vectors (a decode step) memory is the bottleneck: the next page is prefetched while a page is worked
 *         on.
 */
#include "engine/tensor/cpu/attention/avx512_kv.h"

#include <string.h>

#include "engine/tensor/cpu/attention/fills.h"

#define MULTIPLY_ADD(w, x, sum) _mm512_fmadd_ps(w, x, sum)
#include "engine/tensor/cpu/attention/avx512_chain.h"

// --- attend ----------------------------------------------------------------------------------------------------------

// Does what sl_avx2_softmax_add() does, where `seen` are the slots that count; `seen` is not empty.
static inline float softmax_add(struct sl_avx2_softmax *s, struct sl_range seen, const float *scores,
                                float *weights_out) {
    __m512 x[SL_PAGE_STRIPS], most, sum;
    __mmask64 mask = sl_avx512_slots_mask(seen);
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i++) {
        x[i] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(mask >> 16 * i), scores + 16 * i);
    }
    most = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    float max = fmaxf(s->max, sl_avx512_max(most));
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i++) {
        x[i] = sl_avx512_exp_weight(_mm512_sub_ps(x[i], _mm512_set1_ps(max)));
        _mm512_store_ps(weights_out + 16 * i, x[i]);
    }
    sum = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
    float c = s->max == max ? 1.0f : _mm512_cvtss_f32(sl_avx512_exp_weight(_mm512_set1_ps(s->max - max)));
    s->max = max;
    s->sum = s->sum * c + sl_avx512_sum(sum);
    return c;
}

// Adds one page to the vectors of a block. Slots that a vector does not see have weight 0, which does not change its
// sums.
static void attend_page(const struct sl_kv_block *b, uint32_t page, uint32_t page_end, struct sl_attend_scratch *s) {
    const struct sl_kv *kv = &b->args->heads.kv[b->head];
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    int d = b->args->head_dim, n_strips = sl_avx2_n_strips(d), begin, end;
    int n_page = sl_kv_block_clip(b, page, &begin, &end);
    if (n_page == 0) {
        return;
    }
    const char *next = sl_kv_next_page(kv, page, page_end);
    sl_avx512_fill_keys(layout, kv->pages[page], next, s->k);
    if (b->angles != NULL) {
        sl_avx2_rotate_keys(b->angles, &s->of_page, page, s->k);
    }
    float *scores = b->kept != NULL ? sl_kv_kept(b, page) : s->scores;
    const struct sl_avx2_product qk = {s->q, (size_t)d, s->k, (size_t)d, scores, SL_PAGE_SLOTS, NULL};
    multiply(&qk, begin, end, (n_page + SL_STRIP - 1) / SL_STRIP, 0, (size_t)d);
    for (int v = begin; v < end; v++) {
        size_t at = (size_t)v * SL_PAGE_SLOTS;
        s->factors[v] =
            softmax_add(&s->states[v], sl_slots_in_page(b->first[v], b->end[v], page), scores + at, s->scores + at);
    }
    sl_avx512_fill_values(layout, kv->pages[page], next, n_page, s->v);
    const struct sl_avx2_product pv = {
        s->scores, SL_PAGE_SLOTS, s->v, SL_PAGE_SLOTS, s->out, (size_t)n_strips * SL_STRIP, s->factors};
    multiply(&pv, begin, end, n_strips, 0, (size_t)n_page);
}

void sl_avx512_attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                            const struct sl_kv_partial *partial) {
    sl_avx2_attend_pages(sl_avx2_load_queries, attend_page, b, page_begin, page_end, partial);
}

static void fold_kept(const struct sl_kv_block *b, const struct sl_fold *what, sl_kv_page_stats *stats) {
    sl_avx2_fold_kept_by(sl_avx512_add_rows, b, what, stats);
}

static const struct sl_kv_kernel attention = {sl_avx512_attend_block, SL_ATTEND_BLOCK, fold_kept};

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    sl_kv_attend(stream, calls, n_calls, &attention);
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout) {
    sl_kv_attend_before(stream, args, before_inout, &attention);
}

// --- statistics: those of avx2_stats.c, with scores of this tier -----------------------------------------------------

static void load_keys(const struct sl_avx2_call *call, int head, uint32_t page, struct sl_page_angles *of_page,
                      float *tile) {
    const struct sl_kv *kv = &call->args.heads.kv[head];
    sl_avx512_fill_keys(sl_kv_page_layout(kv, page), kv->pages[page], kv->pages[page], tile);
    if (call->angles != NULL) {
        sl_avx2_rotate_keys(call->angles, of_page, page, tile);
    }
}

static void score(const float *q, const float *tile, size_t d, int v_begin, int v_end, int n_slots, float *scores) {
    const struct sl_avx2_product qk = {q, d, tile, d, scores, SL_PAGE_SLOTS, NULL};
    multiply(&qk, v_begin, v_end, (n_slots + SL_STRIP - 1) / SL_STRIP, 0, d);
}

static const struct sl_avx2_scorer scorer = {sl_avx2_load_queries, load_keys, score, sl_avx512_add_rows};

void sl_avx512_fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    sl_avx2_fold_by(&scorer, stream, args, first_row, what);
}

void sl_avx512_window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                           struct sl_vectors sums_out) {
    sl_avx2_window_sums_by(&scorer, stream, args, first_row, sums_out);
}

static void attend_fold(struct sl_stream *stream, const struct sl_attend *args, const struct sl_fold *what) {
    bool is_refs = args->n_heads / args->heads.n > SL_STATS_BLOCK; // fold() leaves such groups to the reference
    if (is_refs || !sl_kv_attend_fold(stream, args, what, &attention)) {
        attend(stream, args, 1);
        sl_avx512_fold(stream, args, 0, what);
    }
}

void sl_avx512_kv_fill(struct sl_ops *ops) {
    ops->attend_fold = attend_fold;
    ops->attend = attend;
    ops->attend_before = attend_before;
    ops->fold = sl_avx512_fold;
    ops->window_sums = sl_avx512_window_sums;
}
