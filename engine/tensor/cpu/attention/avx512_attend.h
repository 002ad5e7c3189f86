// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX-512, for the tiers whose products have other elements: f32, or a pair of bf16 of
 *          two rows in the place of one. Each includes it once, after it has defined
 *
 *     ROWS_AN_ELEMENT                 1 or 2
 *     MULTIPLY_ADD(w, x, sum)         the sum plus the products of a broadcast element of A and a row of a strip
 *     load_queries                    a sl_load_queries_fn that writes elements
 *     elements_of_rows(tile, n_strips, strip_rows, n_rows)    makes elements of a tile of f32, in place
 *     keys_from_codes(layout, page, next, tile), values_from_codes(layout, page, next, n, tile)
 *                     write elements of a page without a tile of f32; false: the tier has no way for the format
 *     store_weights(x, weights_out)   writes 64 weights as elements; returns their sum, lane by lane
 *
 * Design: a kernel is up to 6 vectors by 4 strips, 24 sums in registers: 4 loads and 6 broadcasts feed 24
 *         multiply-adds, which are the bottleneck. With few vectors (a decode step) memory is: the next page is prefetched
 *         while a page is worked on.
 */
#pragma once

#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/attention/chain.h"

typedef void chain_fn(const struct sl_avx2_product *p, size_t begin, size_t end);

#define CHAIN(rows, strips)                                                                                            \
    static void chain_##rows##_##strips(const struct sl_avx2_product *p, size_t begin, size_t end) {                   \
        chain(p, begin, end, rows, strips);                                                                            \
    }
#define CHAINS(rows) CHAIN(rows, 1) CHAIN(rows, 2) CHAIN(rows, 3) CHAIN(rows, 4)
CHAINS(1)
CHAINS(2)
CHAINS(3)
CHAINS(4)
CHAINS(5)
CHAINS(6)
#define NAMES(rows)                                                                                                    \
    { chain_##rows##_1, chain_##rows##_2, chain_##rows##_3, chain_##rows##_4 }
static chain_fn *const chains[ROWS][WIDE] = {NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6)};

// Multiplies as sl_avx2_multiply(), with the same chains of sums. It takes some strips at a time, so that they stay in
// the first-level cache for all rows.
static void multiply(const struct sl_avx2_product *p, int row_begin, int row_end, int n_strips, size_t begin,
                     size_t end) {
    for (int s = 0; s < n_strips; s += WIDE) {
        int n = n_strips - s < WIDE ? n_strips - s : WIDE;
        for (int v = row_begin; v < row_end; v += ROWS) {
            int n_rows = row_end - v < ROWS ? row_end - v : ROWS;
            const struct sl_avx2_product part = sl_avx2_product_from(p, v, s);
            chains[n_rows - 1][n - 1](&part, begin, end);
        }
    }
}

// --- a page ----------------------------------------------------------------------------------------------------------

static void load_keys_of(const struct sl_attend *args, const struct sl_slot_angles *angles, int head, uint32_t page,
                         const char *next, struct sl_page_angles *of_page, float *tile) {
    const struct sl_kv *kv = &args->heads.kv[head];
    if (angles == NULL && keys_from_codes(sl_kv_page_layout(kv, page), kv->pages[page], next, tile)) {
        return;
    }
    sl_avx512_fill_keys(sl_kv_page_layout(kv, page), kv->pages[page], next, tile);
    if (angles != NULL) {
        sl_avx2_rotate_keys(angles, of_page, page, tile);
    }
    elements_of_rows(tile, SL_PAGE_STRIPS, (size_t)args->head_dim, (size_t)args->head_dim);
}

// Does what sl_avx2_softmax_add() does, where `seen` are the slots that count; `seen` is not empty.
static inline float softmax_add(struct sl_avx2_softmax *s, struct sl_range seen, const float *scores,
                                float *weights_out) {
    __m512 x[SL_PAGE_STRIPS], most;
    __mmask64 mask = (seen.end < 64 ? (1ull << seen.end) - 1 : ~0ull) & ~((1ull << seen.begin) - 1);
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i++) {
        x[i] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(mask >> 16 * i), scores + 16 * i);
    }
    most = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    float max = fmaxf(s->max, sl_avx512_max(most));
    SL_UNROLL
    for (int i = 0; i < SL_PAGE_STRIPS; i++) {
        x[i] = sl_avx512_exp_weight(_mm512_sub_ps(x[i], _mm512_set1_ps(max)));
    }
    __m512 sum = store_weights(x, weights_out);
    float c = s->max == max ? 1.0f : _mm512_cvtss_f32(sl_avx512_exp_weight(_mm512_set1_ps(s->max - max)));
    s->max = max;
    s->sum = s->sum * c + sl_avx512_sum(sum);
    return c;
}

// Writes scores of vectors [v_begin, v_end), and of at least the first n_slots slots.
static void score(const float *q, const float *tile, size_t d, int v_begin, int v_end, int n_slots, float *scores) {
    const size_t n = d / ROWS_AN_ELEMENT;
    const struct sl_avx2_product qk = {q, n, tile, n, scores, SL_PAGE_SLOTS, NULL};
    multiply(&qk, v_begin, v_end, (n_slots + SL_STRIP - 1) / SL_STRIP, 0, n);
}

// Adds one page to the vectors of a block. Slots that a vector does not see have weight 0, which does not change its
// sums.
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
    score(s->q, s->k, (size_t)d, begin, end, n_page, scores);
    for (int v = begin; v < end; v++) {
        size_t at = (size_t)v * SL_PAGE_SLOTS;
        s->factors[v] =
            softmax_add(&s->states[v], sl_slots_in_page(b->first[v], b->end[v], page), scores + at, s->scores + at);
    }
    if (!values_from_codes(sl_kv_page_layout(kv, page), kv->pages[page], next, (size_t)n_page, s->v)) {
        sl_avx512_fill_values(sl_kv_page_layout(kv, page), kv->pages[page], next, n_page, s->v);
        elements_of_rows(s->v, n_strips, SL_PAGE_SLOTS, (size_t)n_page);
    }
    const struct sl_avx2_product pv = {
        s->scores, SL_PAGE_SLOTS, s->v, SL_PAGE_SLOTS / ROWS_AN_ELEMENT, s->out, (size_t)n_strips * SL_STRIP,
        s->factors};
    multiply(&pv, begin, end, n_strips, 0, ((size_t)n_page + ROWS_AN_ELEMENT - 1) / ROWS_AN_ELEMENT);
}

// --- statistics: those of avx2_stats.c, with scores of this tier -----------------------------------------------------

static void load_keys(const struct sl_avx2_call *call, int head, uint32_t page, struct sl_page_angles *of_page,
                      float *tile) {
    load_keys_of(&call->args, call->angles, head, page, call->args.heads.kv[head].pages[page], of_page, tile);
}

static void fold_kept(const struct sl_kv_block *b, const struct sl_fold *what, sl_kv_page_stats *stats) {
    sl_avx2_fold_kept_by(sl_avx512_add_rows, b, what, stats);
}

static const struct sl_avx2_scorer scorer = {load_queries, load_keys, score, sl_avx512_add_rows};
