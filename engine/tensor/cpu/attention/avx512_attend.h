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
 *     HAS_INTEGERS(format, head_dim), multiply_integers(p, n, n_groups)    integer/avx512vnni_rows.h alone: true where these
 *                     elements are integers, unless keys are rotated; their product with n vectors
 *     multiply_codes(p, r, format)    the product of up to ROWS rows of A with rows of codes, from p->c = 0 or times its
 *                     factor, without a tile; p->b is not read. false: the tier has no way for them
 *     store_weights(x, weights_out)   writes 64 weights as elements; returns their sum, lane by lane
 *
 * Design: a kernel is up to 6 vectors by 4 strips, 24 sums in registers: 4 loads and 6 broadcasts feed 24
 *         multiply-adds, which are the bottleneck. With few vectors (a decode step) memory is: the next page is prefetched
 *         while a page is worked on, and one tile holds the page's keys until there are weights, then its values. Tiles of
 *         128 channels fit the first-level cache alone, and not together. Codes that a kernel's vectors read once need none.
 */
#pragma once

#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/attention/chain.h"

#define NEAR     24 // vectors whose scores stay in the first-level cache from the product until they are weights
#define TOGETHER 4  // vectors whose maxima and sums are reduced at once

#ifndef HAS_INTEGERS
#define HAS_INTEGERS(format, head_dim)    false
#define multiply_integers(p, n, n_groups) (void)(p)
#endif

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
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    if (angles == NULL && keys_from_codes(layout, kv->pages[page], next, tile)) {
        return;
    }
    sl_avx512_fill_keys(layout, kv->pages[page], next, tile);
    if (angles != NULL) {
        sl_avx512_rotate_keys(angles, of_page, page, tile);
    }
    elements_of_rows(tile, SL_PAGE_STRIPS, (size_t)args->head_dim, (size_t)args->head_dim);
}

static inline __m512 load_seen(__mmask64 seen, int i, const float *scores) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(seen >> 16 * i), scores + 16 * i);
}

// Does what sl_avx2_softmax_add() does for vectors v to v + n, a constant up to TOGETHER, each of which sees a slot of the
// page. Several at once hide each other's latencies.
static inline __attribute__((always_inline)) void softmax_add(const struct sl_kv_block *b, uint32_t page, int v, int n,
                                                              const float *scores, float *weights_out,
                                                              struct sl_attend_scratch *s) {
    __mmask64 seen[TOGETHER];
    __m512 most[TOGETHER], sums[TOGETHER];
    SL_UNROLL
    for (int r = 0; r < TOGETHER; r++) {
        if (r >= n) {
            most[r] = sums[r] = most[0];
            continue;
        }
        struct sl_range range = sl_slots_in_page(b->first[v + r], b->end[v + r], page);
        seen[r] = (range.end < 64 ? (1ull << range.end) - 1 : ~0ull) & ~((1ull << range.begin) - 1);
        const float *row = scores + (size_t)r * SL_PAGE_SLOTS;
        most[r] = _mm512_max_ps(_mm512_max_ps(load_seen(seen[r], 0, row), load_seen(seen[r], 1, row)),
                                _mm512_max_ps(load_seen(seen[r], 2, row), load_seen(seen[r], 3, row)));
    }
    const __mmask8 both = (__mmask8)((1 << 2 * n) - 1), lanes = (__mmask8)((1 << n) - 1);
    __m256 state = _mm256_maskz_loadu_ps(both, &s->states[v]);
    __m128 low = _mm256_castps256_ps128(state), high = _mm256_extractf128_ps(state, 1);
    __m128 before = _mm_shuffle_ps(low, high, 0x88), max = _mm_max_ps(sl_avx512_reduce_four(most, false), before);
    SL_UNROLL
    for (int r = 0; r < n; r++) {
        __m512 x[SL_PAGE_STRIPS];
        SL_UNROLL
        for (int i = 0; i < SL_PAGE_STRIPS; i++) {
            __m512 score = load_seen(seen[r], i, scores + (size_t)r * SL_PAGE_SLOTS);
            x[i] = sl_avx512_exp_weight(_mm512_sub_ps(score, _mm512_set1_ps(max[r])));
        }
        sums[r] = store_weights(x, weights_out + (size_t)r * SL_PAGE_SLOTS);
    }
    __m512 falls = sl_avx512_exp_weight(_mm512_zextps128_ps512(_mm_sub_ps(before, max)));
    __m128 c =
        _mm_mask_blend_ps(_mm_cmp_ps_mask(before, max, _CMP_EQ_OQ), _mm512_castps512_ps128(falls), _mm_set1_ps(1.0f));
    __m128 sum = _mm_add_ps(_mm_mul_ps(_mm_shuffle_ps(low, high, 0xdd), c), sl_avx512_reduce_four(sums, true));
    state = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_unpacklo_ps(max, sum)), _mm_unpackhi_ps(max, sum), 1);
    _mm256_mask_storeu_ps(&s->states[v], both, state);
    _mm_mask_storeu_ps(&s->factors[v], lanes, c);
}

typedef void softmax_fn(const struct sl_kv_block *b, uint32_t page, int v, const float *scores, float *weights_out,
                        struct sl_attend_scratch *s);

#define SOFTMAX(n)                                                                                                     \
    static void softmax_##n(const struct sl_kv_block *b, uint32_t page, int v, const float *scores,                    \
                            float *weights_out, struct sl_attend_scratch *s) {                                         \
        softmax_add(b, page, v, n, scores, weights_out, s);                                                            \
    }
SOFTMAX(1)
SOFTMAX(2)
SOFTMAX(3)
SOFTMAX(4)
static softmax_fn *const softmaxes[TOGETHER] = {softmax_1, softmax_2, softmax_3, softmax_4};

// Writes scores of vectors [v_begin, v_end), and of at least the first n_slots slots, with a tile of rotated keys.
static void score_rotated(const float *q, const float *tile, const struct sl_page_layout *layout, int v_begin,
                          int v_end, int n_slots, float *scores) {
    const size_t n = (size_t)layout->head_dim / ROWS_AN_ELEMENT;
    const struct sl_avx2_product qk = {q, n, tile, n, scores, SL_PAGE_SLOTS, NULL};
    multiply(&qk, v_begin, v_end, (n_slots + SL_STRIP - 1) / SL_STRIP, 0, n);
}

// Does the same with a tile of keys that are not rotated.
static void score(const float *q, const float *tile, const struct sl_page_layout *layout, int v_begin, int v_end,
                  int n_slots, float *scores) {
    if (!HAS_INTEGERS(layout->k_format, layout->head_dim)) {
        score_rotated(q, tile, layout, v_begin, v_end, n_slots, scores);
        return;
    }
    const size_t d = (size_t)layout->head_dim;
    const struct sl_avx2_product qk = {q, d, tile, d, scores, SL_PAGE_SLOTS, NULL},
                                 some = sl_avx2_product_from(&qk, v_begin, 0);
    multiply_integers(&some, v_end - v_begin, 1);
}

static void load_values_of(const struct sl_kv *kv, uint32_t page, const char *next, int n_slots, float *tile) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    if (values_from_codes(layout, kv->pages[page], next, (size_t)n_slots, tile)) {
        return;
    }
    sl_avx512_fill_values(layout, kv->pages[page], next, n_slots, tile);
    elements_of_rows(tile, sl_avx2_n_strips(layout->head_dim), SL_PAGE_SLOTS, (size_t)n_slots);
}

// Does what load_keys_of() and score() do for n vectors.
static bool score_codes(const struct sl_kv_block *b, uint32_t page, const char *next, const float *q, int n,
                        float *scores) {
    const struct sl_kv *kv = &b->args->heads.kv[b->head];
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    if (n > ROWS || b->angles != NULL || !sl_kv_format_is_quantized(layout->k_format) ||
        HAS_INTEGERS(layout->k_format, layout->head_dim)) {
        return false;
    }
    const struct sl_avx2_product qk = {q, (size_t)layout->head_dim, NULL, 0, scores, SL_PAGE_SLOTS, NULL};
    const struct sl_coded_rows r = sl_coded_keys(layout, kv->pages[page], next);
    return multiply_codes(&qk, &r, layout->k_format, n);
}

// Multiplies the weights of n vectors by the page's values, as load_values_of() and multiply() do.
static bool add_codes(const struct sl_avx2_product *pv, const struct sl_kv *kv, uint32_t page, const char *next, int n,
                      int n_slots) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    if (n > ROWS || !sl_kv_format_is_quantized(layout->v_format) || HAS_INTEGERS(layout->v_format, layout->head_dim)) {
        return false;
    }
    const struct sl_coded_rows r = sl_coded_values(layout, kv->pages[page], next, (size_t)n_slots);
    return multiply_codes(pv, &r, layout->v_format, n);
}

// Adds one page to the vectors of a block, some at a time, so that their scores stay in the first-level cache. Slots that
// a vector does not see have weight 0, which does not change its sums.
static void attend_page(const struct sl_kv_block *b, uint32_t page, uint32_t page_end, struct sl_attend_scratch *s) {
    const struct sl_kv *kv = &b->args->heads.kv[b->head];
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    int d = b->args->head_dim, n_strips = sl_avx2_n_strips(d), begin, end;
    int n_page = sl_kv_block_clip(b, page, &begin, &end);
    if (n_page == 0) {
        return;
    }
    const char *next = sl_kv_next_page(kv, page, page_end);
    bool few = end - begin <= NEAR; // they need the keys no more when they need the values
    float *keys = few ? s->v : s->k;
    if (!few) {
        load_keys_of(b->args, b->angles, b->head, page, next, &s->of_page, keys);
        load_values_of(kv, page, next, n_page, s->v);
    }
    const size_t q_stride = (size_t)d / ROWS_AN_ELEMENT, out_stride = (size_t)n_strips * SL_STRIP;
    for (int v = begin, n; v < end; v += n) {
        n = end - v < NEAR ? end - v : NEAR;
        float *scores = b->kept != NULL ? sl_kv_kept(b, page) + (size_t)v * SL_PAGE_SLOTS : s->scores;
        const float *q = s->q + (size_t)v * q_stride;
        if (!few || !score_codes(b, page, next, q, n, scores)) {
            if (few) {
                load_keys_of(b->args, b->angles, b->head, page, next, &s->of_page, keys);
            }
            (b->angles == NULL ? score : score_rotated)(q, keys, layout, 0, n, n_page, scores);
        }
        for (int r = 0, count; r < n; r += count) {
            size_t at = (size_t)r * SL_PAGE_SLOTS;
            count = n - r < TOGETHER ? n - r : TOGETHER;
            softmaxes[count - 1](b, page, v + r, scores + at, s->scores + at, s);
        }
        const struct sl_avx2_product pv = {
            s->scores,  SL_PAGE_SLOTS, s->v, SL_PAGE_SLOTS / ROWS_AN_ELEMENT, s->out + (size_t)v * out_stride,
            out_stride, s->factors + v};
        if (few && add_codes(&pv, kv, page, next, n, n_page)) {
            continue;
        }
        if (few) {
            load_values_of(kv, page, next, n_page, s->v);
        }
        if (HAS_INTEGERS(layout->v_format, d)) {
            multiply_integers(&pv, n, (size_t)d / SL_PAGE_SLOTS);
            continue;
        }
        multiply(&pv, 0, n, n_strips, 0, ((size_t)n_page + ROWS_AN_ELEMENT - 1) / ROWS_AN_ELEMENT);
    }
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
