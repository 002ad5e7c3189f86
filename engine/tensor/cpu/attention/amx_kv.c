// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AMX: products of bf16 with sums of f32. The formulas are those of ref_kv.c.
 *
 * Design: everything is transposed. S^T = K Q^T has the slots as rows and 16 query vectors, a column, as columns. So
 *         the maximum, the exponential and the sum of a softmax run down registers of 16 vectors and never across one.
 *         Two rows of weights, rounded to bf16, interleave to form the B that O^T = V^T P^T takes. K is used as the
 *         pages keep it; V is transposed when a page is read. Both are read once for all vectors of a block.
 *
 *             span of pages -> bf16 K and V^T
 *             for each pair of columns:  S^T of the span, to memory -> softmax -> P^T -> O^T += V^T P^T
 *
 *         Scores are in units of log 2, so that a weight is 2^(s - max). The integer part of the exponent goes into the
 *         exponent of the result; a cubic for the fraction is right to 2^-13.7; the weight is then rounded to 2^-9. The
 *         sum for the division adds the rounded weights.
 *
 *         Bits: a span covers fixed slots, and slots that a vector does not see add zeros. So neither the vectors that
 *         are computed together nor the pages that only other vectors see change a bit. The order in which an element
 *         of a tile is summed does not depend on the tile's location.
 *
 * Not here: f32 pages, which must not be rounded, and head sizes that are not whole steps: the kernel of tier avx512
 *         covers them.
 */
#include "engine/tensor/cpu/attention/amx_kv.h"

#include <float.h>
#include <string.h>

#include "engine/tensor/cpu/attention/fills.h"

#define MAX_SPAN   4 // pages
#define SPAN_SLOTS (MAX_SPAN * SL_PAGE_SLOTS)

// Returns the pages of a span, which depends only on d. Short heads get as many pages as keep the data of a pair of
// columns, 56 KiB at d = 64, near the first-level cache. Longer heads do not fit there, and each span costs a read and
// a write of O^T.
static uint32_t span_pages(size_t d) {
    return d <= 64 ? 2 : MAX_SPAN;
}

// The working memory of one block. Only tier amx2 uses second terms.
struct scratch {
    _Alignas(64) uint16_t q[2][SL_BLOCK_FLOATS];               // terms of [columns][steps] tiles of B: Q^T
    uint16_t k[2][MAX_SPAN * SL_PAGE_SLOTS * SL_MAX_HEAD_DIM]; // terms of [pages][64][d]
    uint16_t v[MAX_SPAN * SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];    // [pages] of sl_amx_load_values()
    float scores[2][SPAN_SLOTS * SL_TILE];                     // [2 columns][slots][16]: S^T
    uint16_t weights[2][SPAN_SLOTS * SL_TILE];                 // [2 columns][steps] tiles of B: P^T
    float out[SL_BLOCK_FLOATS];                                // [columns][d][16]: O^T
    float max[SL_BLOCK_VECTORS], sum[SL_BLOCK_VECTORS];        // of the vectors; max -FLT_MAX: no slot yet
    // as in the block; the entries after the last vector repeat it
    uint32_t first[SL_BLOCK_VECTORS], end[SL_BLOCK_VECTORS];
    struct sl_amx_page_scratch page;
};

// Pages [page, page + n) of a span, in scratch.
struct span {
    uint32_t page;
    int n;
    const uint16_t *k[MAX_SPAN], *second_k[MAX_SPAN]; // second_k NULL: there is no second term
};

// Q^T of a column; `second` is NULL where there is one term.
struct column {
    const uint16_t *first, *second;
};

// --- products --------------------------------------------------------------------------------------------------------

#define INLINE static inline __attribute__((always_inline))

// Adds 32 rows of K, from k on, times two columns to sums 0 to 3.
INLINE void meet_two(const uint16_t *k, size_t d, const uint16_t *q0, const uint16_t *q1) {
    _tile_loadd(4, k, 2 * d);
    _tile_loadd(6, q0, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, k + SL_TILE * d, 2 * d);
    _tile_dpbf16ps(1, 5, 6);
    _tile_loadd(7, q1, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
}

// Writes S^T of two columns and a page, 32 slots at a time.
INLINE void score_two(const uint16_t *k, const uint16_t *second_k, size_t d, struct column q0, struct column q1,
                      float *scores0, float *scores1) {
    sl_amx_written();
    for (size_t j = 0; j < SL_PAGE_SLOTS; j += 2 * SL_TILE) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (size_t i = 0; i < d; i += SL_TILE_STEP) {
            meet_two(k + j * d + i, d, q0.first + i * SL_TILE, q1.first + i * SL_TILE);
            if (q0.second != NULL) {
                meet_two(k + j * d + i, d, q0.second + i * SL_TILE, q1.second + i * SL_TILE);
            }
            if (second_k != NULL) {
                meet_two(second_k + j * d + i, d, q0.first + i * SL_TILE, q1.first + i * SL_TILE);
            }
        }
        _tile_stored(0, scores0 + j * SL_TILE, 64);
        _tile_stored(1, scores0 + (j + SL_TILE) * SL_TILE, 64);
        _tile_stored(2, scores1 + j * SL_TILE, 64);
        _tile_stored(3, scores1 + (j + SL_TILE) * SL_TILE, 64);
    }
}

// Adds 64 rows of K, from k on, times a column to sums 0 to 3.
INLINE void meet_one(const uint16_t *k, size_t d, const uint16_t *q) {
    _tile_loadd(6, q, 64);
    _tile_loadd(4, k, 2 * d);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, k + SL_TILE * d, 2 * d);
    _tile_dpbf16ps(1, 5, 6);
    _tile_loadd(4, k + 2 * SL_TILE * d, 2 * d);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(5, k + 3 * SL_TILE * d, 2 * d);
    _tile_dpbf16ps(3, 5, 6);
}

// Writes S^T of one column and a page.
INLINE void score_one(const uint16_t *k, const uint16_t *second_k, size_t d, struct column q, float *scores) {
    sl_amx_written();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t i = 0; i < d; i += SL_TILE_STEP) {
        meet_one(k + i, d, q.first + i * SL_TILE);
        if (q.second != NULL) {
            meet_one(k + i, d, q.second + i * SL_TILE);
        }
        if (second_k != NULL) {
            meet_one(second_k + i, d, q.first + i * SL_TILE);
        }
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + SL_TILE * SL_TILE, 64);
    _tile_stored(2, scores + 2 * SL_TILE * SL_TILE, 64);
    _tile_stored(3, scores + 3 * SL_TILE * SL_TILE, 64);
}

// Adds V^T P^T of the span to O^T of two columns, 32 channels at a time.
static void add_two(const struct scratch *s, int n_pages, size_t d, float *out0, float *out1) {
    sl_amx_written();
    for (size_t i = 0; i < d; i += 2 * SL_TILE, out0 += 2 * SL_TILE * SL_TILE, out1 += 2 * SL_TILE * SL_TILE) {
        _tile_loadd(0, out0, 64);
        _tile_loadd(1, out0 + SL_TILE * SL_TILE, 64);
        _tile_loadd(2, out1, 64);
        _tile_loadd(3, out1 + SL_TILE * SL_TILE, 64);
        for (int step = 0; step < 2 * n_pages; step++) {
            const uint16_t *v =
                s->v + (size_t)(step / 2) * SL_PAGE_SLOTS * d + (i / SL_TILE * 2 + (size_t)(step % 2)) * SL_TILE_HALVES;
            _tile_loadd(4, v, 64);
            _tile_loadd(6, s->weights[0] + step * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, v + 2 * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(1, 5, 6);
            _tile_loadd(7, s->weights[1] + step * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, out0, 64);
        _tile_stored(1, out0 + SL_TILE * SL_TILE, 64);
        _tile_stored(2, out1, 64);
        _tile_stored(3, out1 + SL_TILE * SL_TILE, 64);
    }
}

static void add_one(const struct scratch *s, int n_pages, size_t d, float *out) {
    sl_amx_written();
    for (size_t i = 0; i < d; i += 2 * SL_TILE, out += 2 * SL_TILE * SL_TILE) {
        _tile_loadd(0, out, 64);
        _tile_loadd(1, out + SL_TILE * SL_TILE, 64);
        for (int step = 0; step < 2 * n_pages; step++) {
            const uint16_t *v =
                s->v + (size_t)(step / 2) * SL_PAGE_SLOTS * d + (i / SL_TILE * 2 + (size_t)(step % 2)) * SL_TILE_HALVES;
            _tile_loadd(4, v, 64);
            _tile_loadd(6, s->weights[0] + step * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, v + 2 * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        _tile_stored(0, out, 64);
        _tile_stored(1, out + SL_TILE * SL_TILE, 64);
    }
}

// --- softmax ---------------------------------------------------------------------------------------------------------

// Returns 2^x for x <= 0, with a relative error of 2^-13.7; 0 for minus infinity.
static inline __m512 exp2_weight(__m512 x) {
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0780245215f), f, _mm512_set1_ps(0.226067171f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695833504f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999925196f));
    return _mm512_scalef_ps(p, x); // scalef takes the floor of x
}

// Returns 2^x for x <= 0 to the precision of f32.
static inline __m512 exp2_factor(__m512 x) {
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.00187757669f), f, _mm512_set1_ps(0.00898934063f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0558263175f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240153611f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693153083f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99999994f));
    return _mm512_scalef_ps(p, x);
}

// Writes minus infinity for each slot from `slot` on that a vector of the column does not see.
static void mask_scores(float *scores, int n_slots, uint32_t slot, __m512i first, __m512i end) {
    for (int j = 0; j < n_slots; j++, scores += SL_TILE) {
        __m512i here = _mm512_set1_epi32((int)(slot + (uint32_t)j));
        __mmask16 seen = _mm512_cmplt_epu32_mask(here, end) & _mm512_cmple_epu32_mask(first, here);
        _mm512_store_ps(scores, _mm512_mask_load_ps(_mm512_set1_ps(-INFINITY), seen, scores));
    }
}

// Returns, per lane, the largest of `most` and n_slots rows, a multiple of 4.
static __m512 greatest(const float *scores, int n_slots, __m512 most) {
    __m512 m[4] = {most, most, most, most};
    for (int j = 0; j < n_slots; j += 4, scores += 4 * SL_TILE) {
        SL_UNROLL
        for (int t = 0; t < 4; t++) {
            m[t] = _mm512_max_ps(m[t], _mm512_load_ps(scores + t * SL_TILE));
        }
    }
    return _mm512_max_ps(_mm512_max_ps(m[0], m[1]), _mm512_max_ps(m[2], m[3]));
}

// Replaces the scores of a column by weights, and scales the earlier sums to the new maximum.
static void weigh(const float *scores, int n_slots, size_t d, float *max, float *sum, float *out, uint16_t *weights) {
    __m512 old = _mm512_load_ps(max), most = greatest(scores, n_slots, old), total = _mm512_load_ps(sum);
    __mmask16 changed = _mm512_cmp_ps_mask(old, most, _CMP_NEQ_OQ);
    if (changed != 0) { // factors of vectors whose maximum has not changed are 1
        __m512 c = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), changed, exp2_factor(_mm512_sub_ps(old, most)));
        for (size_t i = 0; i < d; i++) {
            _mm512_store_ps(out + i * SL_TILE, _mm512_mul_ps(_mm512_load_ps(out + i * SL_TILE), c));
        }
        total = _mm512_mul_ps(total, c);
        _mm512_store_ps(max, most);
    }
    const __m512i half = _mm512_set1_epi32(0x8000);
    __m512 added[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int j = 0; j < n_slots; j += 4, scores += 4 * SL_TILE, weights += 4 * SL_TILE) {
        SL_UNROLL
        for (int t = 0; t < 2; t++) {
            __m512 a = exp2_weight(_mm512_sub_ps(_mm512_load_ps(scores + 2 * t * SL_TILE), most));
            __m512 b = exp2_weight(_mm512_sub_ps(_mm512_load_ps(scores + (2 * t + 1) * SL_TILE), most));
            __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16);
            __m512i high = _mm512_add_epi32(_mm512_castps_si512(b), half);
            __m512i pair = _mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
            _mm512_store_si512(weights + 2 * t * SL_TILE, pair);
            added[t] = _mm512_dpbf16_ps(added[t], (__m512bh)pair, (__m512bh)_mm512_set1_epi16(0x3f80)); // ones
        }
    }
    _mm512_store_ps(sum, _mm512_add_ps(total, _mm512_add_ps(added[0], added[1])));
}

// --- a block ---------------------------------------------------------------------------------------------------------

// Packs tiles of 16 rows of 32 numbers: transposes pairs of channels as if they were numbers of 32 bits.
static void turn_pairs(__m512i *pairs, uint16_t *tile) {
    sl_amx_transpose_16x16((__m512 *)pairs);
    for (int t = 0; t < SL_TILE; t++) {
        _mm512_store_si512(tile + t * SL_TILE_STEP, pairs[t]);
    }
}

// Packs scaled queries into tiles, with one term or two.
static void pack_queries(const struct sl_kv_block *b, bool two_terms, struct scratch *s) {
    const struct sl_avx2_call call = {.args = *b->args, .angles = b->angles, .group = b->group};
    size_t d = (size_t)b->args->head_dim, n_steps = d / SL_TILE_STEP;
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    for (int v = 0; v < b->n; v += SL_TILE) {
        int n = b->n - v < SL_TILE ? b->n - v : SL_TILE;
        float *rows = s->page.tile; // [16][d]
        sl_avx2_load_queries(&call, b->head, b->begin + v, n, &s->page.of_page, rows);
        for (size_t step = 0; step < n_steps; step++) {
            __m512i pairs[2][SL_TILE];
            memset(pairs, 0, sizeof pairs);
            for (int t = 0; t < n; t++) {
                const float *row = rows + (size_t)t * d + step * SL_TILE_STEP;
                sl_amx_split(_mm512_mul_ps(_mm512_load_ps(row), log2e), _mm512_mul_ps(_mm512_load_ps(row + 16), log2e),
                             &pairs[0][t], &pairs[1][t]);
            }
            size_t at = ((size_t)(v / SL_TILE) * n_steps + step) * SL_TILE_HALVES;
            turn_pairs(pairs[0], s->q[0] + at);
            if (two_terms) {
                turn_pairs(pairs[1], s->q[1] + at);
            }
        }
    }
}

static void begin_block(const struct sl_kv_block *b, bool two_terms, struct scratch *s) {
    int n_wide = (b->n + SL_TILE - 1) / SL_TILE * SL_TILE;
    s->page.of_page.page = -1;
    pack_queries(b, two_terms, s);
    memset(s->out, 0, (size_t)n_wide * (size_t)b->args->head_dim * sizeof *s->out);
    for (int v = 0; v < n_wide; v++) {
        s->first[v] = b->first[v < b->n ? v : b->n - 1];
        s->end[v] = b->end[v < b->n ? v : b->n - 1];
        s->max[v] = -FLT_MAX;
        s->sum[v] = 0.0f;
    }
}

static struct span load_span(const struct sl_kv_block *b, bool two_terms, uint32_t page, uint32_t page_end,
                             struct scratch *s) {
    struct span span = {.page = page};
    size_t floats = SL_PAGE_SLOTS * (size_t)b->args->head_dim;
    uint32_t pages = span_pages((size_t)b->args->head_dim), stop = (page / pages + 1) * pages;
    for (stop = stop < page_end ? stop : page_end; page < stop; page++, span.n++) {
        int n = sl_slots_in_page(0, b->end[b->n - 1], page).end; // the last vector sees the most slots
        size_t at = (size_t)span.n * floats;
        const char *next = sl_kv_next_page(&b->args->heads.kv[b->head], page, page_end);
        bool second = two_terms && sl_amx_keys_have_second(b->args, b->angles, b->head, page);
        span.second_k[span.n] = second ? s->k[1] + at : NULL;
        span.k[span.n] = sl_amx_load_keys(&b->args->heads.kv[b->head], b->angles, page, next, &s->page, s->k[0] + at,
                                          second ? s->k[1] + at : NULL);
        sl_amx_load_values(&b->args->heads.kv[b->head], page, next, n, &s->page, s->v + at);
    }
    return span;
}

// Returns true where a vector of the column sees a slot of the span.
static bool sees(const struct scratch *s, int column, const struct span *span) {
    uint32_t begin = span->page * SL_PAGE_SLOTS, end = begin + (uint32_t)span->n * SL_PAGE_SLOTS;
    return s->end[column * SL_TILE + SL_TILE - 1] > begin && s->first[column * SL_TILE] < end;
}

static void weigh_column(struct scratch *s, int column, int of_pair, size_t d, const struct span *span) {
    int v = column * SL_TILE, n_slots = span->n * SL_PAGE_SLOTS;
    uint32_t begin = span->page * SL_PAGE_SLOTS;
    if (s->first[v + SL_TILE - 1] > begin || s->end[v] < begin + (uint32_t)n_slots) {
        mask_scores(s->scores[of_pair], n_slots, begin, _mm512_loadu_si512(s->first + v),
                    _mm512_loadu_si512(s->end + v));
    }
    weigh(s->scores[of_pair], n_slots, d, s->max + v, s->sum + v, s->out + (size_t)v * d, s->weights[of_pair]);
}

static struct column column_of(const struct scratch *s, int column, bool two_terms, size_t d) {
    size_t at = (size_t)column * d * SL_TILE;
    return (struct column){s->q[0] + at, two_terms ? s->q[1] + at : NULL};
}

static void score_span(const struct span *span, int column, bool two, bool two_terms, size_t d, struct scratch *s) {
    struct column q0 = column_of(s, column, two_terms, d), q1 = column_of(s, column + two, two_terms, d);
    size_t page_scores = SL_PAGE_SLOTS * SL_TILE;
    for (int p = 0; p < span->n; p++) {
        float *scores = s->scores[0] + (size_t)p * page_scores, *scores1 = s->scores[1] + (size_t)p * page_scores;
        if (two) {
            score_two(span->k[p], span->second_k[p], d, q0, q1, scores, scores1);
        } else {
            score_one(span->k[p], span->second_k[p], d, q0, scores);
        }
    }
}

static void attend_span(const struct span *span, int n_columns, bool two_terms, size_t d, struct scratch *s) {
    for (int column = 0; column < n_columns;) {
        if (!sees(s, column, span)) {
            column++;
            continue;
        }
        float *out = s->out + (size_t)column * d * SL_TILE;
        bool two = column + 1 < n_columns && sees(s, column + 1, span);
        score_span(span, column, two, two_terms, d, s);
        weigh_column(s, column, 0, d, span);
        if (two) {
            weigh_column(s, column + 1, 1, d, span);
            add_two(s, span->n, d, out, out + d * SL_TILE);
        } else {
            add_one(s, span->n, d, out);
        }
        column += two ? 2 : 1;
    }
}

static void end_block(const struct sl_kv_block *b, struct scratch *s, const struct sl_kv_partial *partial) {
    size_t d = (size_t)b->args->head_dim;
    for (int v = 0; v < b->n; v += SL_TILE) {
        int n = b->n - v < SL_TILE ? b->n - v : SL_TILE;
        for (size_t i = 0; i < d; i += SL_TILE) {
            __m512 rows[SL_TILE];
            for (size_t t = 0; t < SL_TILE; t++) {
                rows[t] = _mm512_load_ps(s->out + ((size_t)v * d + (i + t) * SL_TILE));
            }
            sl_amx_transpose_16x16(rows);
            for (int t = 0; t < n; t++) {
                _mm512_storeu_ps(partial->out + (size_t)(v + t) * d + i, rows[t]);
            }
        }
    }
    for (int v = 0; v < b->n; v++) {
        partial->max[v] = s->sum[v] > 0.0f ? s->max[v] * (float)M_LN2 : -INFINITY;
        partial->sum[v] = s->sum[v];
    }
}

INLINE void attend_block_of(const struct sl_kv_block *b, bool two_terms, uint32_t page_begin, uint32_t page_end,
                            const struct sl_kv_partial *partial) {
    if (!sl_amx_covers(b->args)) {
        sl_avx512_attend_block(b, page_begin, page_end, partial);
        return;
    }
    struct scratch s;
    sl_amx_begin();
    begin_block(b, two_terms, &s);
    for (uint32_t page = page_begin; page < page_end;) {
        struct span span = load_span(b, two_terms, page, page_end, &s);
        attend_span(&span, (b->n + SL_TILE - 1) / SL_TILE, two_terms, (size_t)b->args->head_dim, &s);
        page += (uint32_t)span.n;
    }
    end_block(b, &s, partial);
    sl_amx_end();
}

static void attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                         const struct sl_kv_partial *partial) {
    attend_block_of(b, false, page_begin, page_end, partial);
}

static void attend_block_in_two(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                                const struct sl_kv_partial *partial) {
    attend_block_of(b, true, page_begin, page_end, partial);
}

// Chooses large blocks, which suit the tiles, where the tile kernel covers all calls.
static const struct sl_kv_kernel *kernel_for(const struct sl_attend *calls, int n_calls, bool two_terms) {
    static const struct sl_kv_kernel kernels[2][2] = {
        {{attend_block, SL_ATTEND_BLOCK, NULL}, {attend_block, SL_BLOCK_VECTORS, NULL}},
        {{attend_block_in_two, SL_ATTEND_BLOCK, NULL}, {attend_block_in_two, SL_BLOCK_VECTORS, NULL}},
    };
    bool covered = true;
    for (int i = 0; i < n_calls; i++) {
        covered = covered && sl_amx_covers(&calls[i]);
    }
    return &kernels[two_terms][covered];
}

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    sl_kv_attend(stream, calls, n_calls, kernel_for(calls, n_calls, false));
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout) {
    sl_kv_attend_before(stream, args, before_inout, kernel_for(args, 1, false));
}

static void attend_in_two(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    sl_kv_attend(stream, calls, n_calls, kernel_for(calls, n_calls, true));
}

static void attend_before_in_two(struct sl_stream *stream, const struct sl_attend *args,
                                 const struct sl_softmax *before_inout) {
    sl_kv_attend_before(stream, args, before_inout, kernel_for(args, 1, true));
}

void sl_amx_kv_fill(struct sl_ops *ops) {
    ops->attend_fold = NULL; // tiles make scores again faster than memory keeps them
    ops->attend = attend;
    ops->attend_before = attend_before;
    ops->fold = sl_amx_fold;
    ops->window_sums = sl_amx_window_sums;
}

// Statistics use tier avx512's scores, which are as precise as the scores that lse was made of.
void sl_amx2_kv_fill(struct sl_ops *ops) {
    ops->attend_fold = NULL;
    ops->attend = attend_in_two;
    ops->attend_before = attend_before_in_two;
    ops->fold = sl_avx512_fold;
    ops->window_sums = sl_avx512_window_sums;
}
