// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AMX: products of bf16 with sums of f32. The formulas are those of ref_kv.c.
 *
 * Design: everything is transposed. S^T = K Q^T has the slots as rows and 16 query vectors, a column, as columns. So
 *         the maximum, the exponential and the sum of a softmax run down registers of 16 vectors and never across one.
 *         Two rows of weights, rounded to bf16, interleave to form the B that O^T = V^T P^T takes. K is used as the
 *         pages keep it; V is transposed when a page is read. Both are read once for all vectors of a block.
 *
 *             run of pages -> bf16 K and V^T, in the second-level cache
 *             for each pair of columns, each job of pages:  S^T - base, to memory -> P^T -> O^T += V^T P^T
 *
 *         Scores are in units of log 2, so that a weight is 2^(s - base); the sums of tiles begin at -base. The base of a
 *         vector is the maximum of the first job that it sees. It moves to a later job's maximum only when the weights of
 *         that job would exceed 2^20: a softmax is the same for any base that its sums can hold, so no pass over the scores
 *         looks for a maximum. The integer part of the exponent goes into the exponent of the result; a cubic for the
 *         fraction is right to 2^-13.7; the weight is then rounded to 2^-9. The sum for the division adds the rounded
 *         weights.
 *
 *         Bits: a job covers fixed slots, slots that a vector does not see add zeros, and each lane moves its own base. So
 *         neither the vectors that are computed together nor the pages that only other vectors see change a bit. The order
 *         in which an element of a tile is summed does not depend on the tile's location.
 *
 * Not here: f32 pages, which must not be rounded, and head sizes that are not whole steps: the kernel of tier avx512
 *         covers them.
 */
#include "engine/tensor/cpu/attention/amx_kv.h"

#include <string.h>

#include "engine/tensor/cpu/attention/fills.h"

#define RUN_PAGES    8
#define JOB_PAGES    4
#define RUN_CHANNELS (4 * SL_MAX_HEAD_DIM) // of a slot, over the pages of a run
#define MOST_ADDED   0x1p20f               // weights of a job; more move the base
#define PAGE_SCORES  (SL_PAGE_SLOTS * SL_TILE)

// Returns the pages of a run: their tiles stay in the second-level cache for all columns.
static uint32_t run_pages(size_t d) {
    return RUN_CHANNELS / d < RUN_PAGES ? (uint32_t)(RUN_CHANNELS / d) : RUN_PAGES;
}

// Returns the pages of a job, a divisor of run_pages(). A job costs a read and a write of O^T of a column; short heads have
// room in the first-level cache for one page of two columns.
static uint32_t job_pages(size_t d) {
    return d <= 64 ? 1 : JOB_PAGES;
}

// The working memory of one block. Only tier amx2 uses second terms.
struct scratch {
    _Alignas(64) uint16_t q[2][SL_BLOCK_FLOATS];     // terms of [columns][steps] tiles of B: Q^T
    uint16_t k[2][SL_PAGE_SLOTS * RUN_CHANNELS];     // terms of [pages][64][d]
    uint16_t v[SL_PAGE_SLOTS * RUN_CHANNELS];        // [pages] of sl_amx_load_values()
    float scores[2][2][JOB_PAGES * PAGE_SCORES];     // [2 jobs][2 columns][slots][16]: S^T
    uint16_t weights[2][2][JOB_PAGES * PAGE_SCORES]; // [2 jobs][2 columns][slots / 32] tiles of B: P^T
    float out[SL_BLOCK_FLOATS];                      // [columns][d][16]: O^T
    // Each vector has the negated base of its weights, and their sum. A sum of 0 means that it has seen no slot; its base is 0.
    float minus_base[SL_BLOCK_VECTORS], sum[SL_BLOCK_VECTORS];
    // as in the block; the entries after the last vector repeat it
    uint32_t first[SL_BLOCK_VECTORS], end[SL_BLOCK_VECTORS];
    struct sl_amx_page_scratch page;
};

// Pages [page, page + n) of a run, in scratch.
struct run {
    uint32_t page;
    int n;
    const uint16_t *k[RUN_PAGES], *second_k[RUN_PAGES]; // second_k NULL: there is no second term
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

// Q^T of a column, and the base of its scores; `second` is NULL where there is one term.
struct column {
    const uint16_t *first, *second;
    const float *minus_base;
};

// Writes S^T - base of two columns and a page, 32 slots at a time. second_k may be NULL.
static void score_two(const uint16_t *k, const uint16_t *second_k, size_t d, struct column q0, struct column q1,
                      float *scores0, float *scores1) {
    sl_amx_written();
    for (size_t j = 0; j < SL_PAGE_SLOTS; j += 2 * SL_TILE) {
        _tile_loadd(0, q0.minus_base, 0); // in each row
        _tile_loadd(1, q0.minus_base, 0);
        _tile_loadd(2, q1.minus_base, 0);
        _tile_loadd(3, q1.minus_base, 0);
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

// Does so for one column.
static void score_one(const uint16_t *k, const uint16_t *second_k, size_t d, struct column q, float *scores) {
    sl_amx_written();
    _tile_loadd(0, q.minus_base, 0);
    _tile_loadd(1, q.minus_base, 0);
    _tile_loadd(2, q.minus_base, 0);
    _tile_loadd(3, q.minus_base, 0);
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

// Returns the tile of channels i .. and slots 32 step .. of pages of sl_amx_load_values().
INLINE const uint16_t *values_at(const uint16_t *v, int step, size_t d, size_t i) {
    return v + (size_t)(step / 2) * SL_PAGE_SLOTS * d + (i / SL_TILE * 2 + (size_t)(step % 2)) * SL_TILE_HALVES;
}

// Adds V^T P^T of n pages to O^T of two columns, 32 channels at a time.
static void add_two(const uint16_t *v, const uint16_t *weights0, const uint16_t *weights1, int n_pages, size_t d,
                    float *out0, float *out1) {
    sl_amx_written();
    for (size_t i = 0; i < d; i += 2 * SL_TILE, out0 += 2 * SL_TILE * SL_TILE, out1 += 2 * SL_TILE * SL_TILE) {
        _tile_loadd(0, out0, 64);
        _tile_loadd(1, out0 + SL_TILE * SL_TILE, 64);
        _tile_loadd(2, out1, 64);
        _tile_loadd(3, out1 + SL_TILE * SL_TILE, 64);
        for (int step = 0; step < 2 * n_pages; step++) {
            const uint16_t *at = values_at(v, step, d, i);
            _tile_loadd(4, at, 64);
            _tile_loadd(6, weights0 + step * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, at + 2 * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(1, 5, 6);
            _tile_loadd(7, weights1 + step * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, out0, 64);
        _tile_stored(1, out0 + SL_TILE * SL_TILE, 64);
        _tile_stored(2, out1, 64);
        _tile_stored(3, out1 + SL_TILE * SL_TILE, 64);
    }
}

static void add_one(const uint16_t *v, const uint16_t *weights, int n_pages, size_t d, float *out) {
    sl_amx_written();
    for (size_t i = 0; i < d; i += 2 * SL_TILE, out += 2 * SL_TILE * SL_TILE) {
        _tile_loadd(0, out, 64);
        _tile_loadd(1, out + SL_TILE * SL_TILE, 64);
        for (int step = 0; step < 2 * n_pages; step++) {
            const uint16_t *at = values_at(v, step, d, i);
            _tile_loadd(4, at, 64);
            _tile_loadd(6, weights + step * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, at + 2 * SL_TILE_HALVES, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        _tile_stored(0, out, 64);
        _tile_stored(1, out + SL_TILE * SL_TILE, 64);
    }
}

// --- softmax ---------------------------------------------------------------------------------------------------------

// Returns (1 + e) 2^x + half a unit of bf16, |e| < 2^-13.7; 0 for minus infinity. So its upper half is 2^x as bf16.
static inline __m512 exp2_weight(__m512 x) {
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0780245215f), f, _mm512_set1_ps(0.226067171f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695833504f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999925196f + 0x1p-8f));
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

// Writes the weights of n slots, a multiple of 4; returns their sums.
static __m512 weigh(const float *scores, int n_slots, uint16_t *weights) {
    __m512 added[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int j = 0; j < n_slots; j += 4, scores += 4 * SL_TILE, weights += 4 * SL_TILE) {
        SL_UNROLL
        for (int t = 0; t < 2; t++) {
            __m512i a = _mm512_castps_si512(exp2_weight(_mm512_load_ps(scores + 2 * t * SL_TILE)));
            __m512i b = _mm512_castps_si512(exp2_weight(_mm512_load_ps(scores + (2 * t + 1) * SL_TILE)));
            __m512i pair = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
            _mm512_store_si512(weights + 2 * t * SL_TILE, pair);
            added[t] = _mm512_dpbf16_ps(added[t], (__m512bh)pair, (__m512bh)_mm512_set1_epi16(0x3f80)); // ones
        }
    }
    return _mm512_add_ps(added[0], added[1]);
}

// Returns, per lane, the largest of n scores.
static __m512 greatest(const float *scores, int n_slots) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int j = 0; j < n_slots; j++) {
        most = _mm512_max_ps(most, _mm512_load_ps(scores + j * SL_TILE));
    }
    return most;
}

static void subtract(float *scores, int n_slots, __m512 x) {
    for (int j = 0; j < n_slots; j++) {
        _mm512_store_ps(scores + j * SL_TILE, _mm512_sub_ps(_mm512_load_ps(scores + j * SL_TILE), x));
    }
}

// Adds x to the base of a column: scales the earlier sums. Those of lanes whose x is 0 stay as they are.
static void move_base(__m512 x, size_t d, float *minus_base, float *sum, float *out) {
    __mmask16 some =
        _mm512_cmp_ps_mask(_mm512_load_ps(sum), _mm512_setzero_ps(), _CMP_NEQ_UQ); // else all of them are 0
    some = _mm512_mask_cmp_ps_mask(some, x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    _mm512_store_ps(minus_base, _mm512_sub_ps(_mm512_load_ps(minus_base), x));
    __m512 c = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), some, exp2_factor(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    for (size_t i = 0; some != 0 && i < d; i++) {
        _mm512_store_ps(out + i * SL_TILE, _mm512_mul_ps(_mm512_load_ps(out + i * SL_TILE), c));
    }
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), c));
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
        s->minus_base[v] = 0.0f;
        s->sum[v] = 0.0f;
    }
}

static struct run load_run(const struct sl_kv_block *b, bool two_terms, uint32_t page, uint32_t page_end,
                           struct scratch *s) {
    struct run run = {.page = page};
    size_t floats = SL_PAGE_SLOTS * (size_t)b->args->head_dim;
    const struct sl_kv *kv = &b->args->heads.kv[b->head];
    uint32_t pages = run_pages((size_t)b->args->head_dim), stop = (page / pages + 1) * pages;
    for (stop = stop < page_end ? stop : page_end; page < stop; page++, run.n++) {
        int n = sl_slots_in_page(0, b->end[b->n - 1], page).end; // the last vector sees the most slots
        size_t at = (size_t)run.n * floats;
        const char *next = kv->pages[page + pages < page_end ? page + pages : page]; // of the next run
        bool second = two_terms && sl_amx_keys_have_second(b->args, b->angles, b->head, page);
        run.second_k[run.n] = second ? s->k[1] + at : NULL;
        run.k[run.n] =
            sl_amx_load_keys(kv, b->angles, page, next, &s->page, s->k[0] + at, second ? s->k[1] + at : NULL);
        sl_amx_load_values(kv, page, next, n, &s->page, s->v + at);
    }
    return run;
}

// Pages of a run and two columns.
struct job {
    int page, n;  // of the run
    bool sees[2]; // whether a vector of the column sees a slot of the pages
};

static bool sees(const struct scratch *s, int column, uint32_t page, int n_pages) {
    uint32_t begin = page * SL_PAGE_SLOTS, end = begin + (uint32_t)n_pages * SL_PAGE_SLOTS;
    return s->end[column * SL_TILE + SL_TILE - 1] > begin && s->first[column * SL_TILE] < end;
}

static void score_job(const struct run *run, const struct job *job, int first, bool two_terms, size_t d,
                      struct scratch *s, int parity) {
    struct column q[2];
    for (int c = 0; c < 2; c++) {
        size_t at = (size_t)(first + c) * d * SL_TILE;
        q[c] = (struct column){s->q[0] + at, two_terms ? s->q[1] + at : NULL, s->minus_base + (first + c) * SL_TILE};
    }
    float *scores0 = s->scores[parity][0], *scores1 = s->scores[parity][1];
    for (int p = job->page; p < job->page + job->n; p++, scores0 += PAGE_SCORES, scores1 += PAGE_SCORES) {
        if (job->sees[0] && job->sees[1]) {
            score_two(run->k[p], run->second_k[p], d, q[0], q[1], scores0, scores1);
        } else if (job->sees[0]) {
            score_one(run->k[p], run->second_k[p], d, q[0], scores0);
        } else if (job->sees[1]) {
            score_one(run->k[p], run->second_k[p], d, q[1], scores1);
        }
    }
}

static void add_job(const struct job *job, int first, size_t d, struct scratch *s, int parity) {
    const uint16_t *v = s->v + (size_t)job->page * SL_PAGE_SLOTS * d;
    float *out0 = s->out + (size_t)first * SL_TILE * d, *out1 = out0 + SL_TILE * d;
    if (job->sees[0] && job->sees[1]) {
        add_two(v, s->weights[parity][0], s->weights[parity][1], job->n, d, out0, out1);
    } else if (job->sees[0]) {
        add_one(v, s->weights[parity][0], job->n, d, out0);
    } else if (job->sees[1]) {
        add_one(v, s->weights[parity][1], job->n, d, out1);
    }
}

// next: the job whose scores are computed already, or NULL.
static void weigh_job(const struct run *run, const struct job *job, const struct job *next, int column, size_t d,
                      struct scratch *s, int parity) {
    int v = column * SL_TILE, n_slots = job->n * SL_PAGE_SLOTS;
    float *scores = s->scores[parity][column & 1];
    uint16_t *weights = s->weights[parity][column & 1];
    uint32_t begin = (run->page + (uint32_t)job->page) * SL_PAGE_SLOTS;
    if (s->first[v + SL_TILE - 1] > begin || s->end[v] < begin + (uint32_t)n_slots) {
        mask_scores(scores, n_slots, begin, _mm512_loadu_si512(s->first + v), _mm512_loadu_si512(s->end + v));
    }
    __m512 added = weigh(scores, n_slots, weights);
    __mmask16 lanes = _mm512_cmp_ps_mask(added, _mm512_set1_ps(MOST_ADDED), _CMP_NLT_UQ) |
                      _mm512_cmp_ps_mask(_mm512_load_ps(s->sum + v), _mm512_setzero_ps(), _CMP_EQ_OQ);
    if (lanes != 0) {
        __m512 most = greatest(scores, n_slots);
        lanes &=
            _mm512_cmp_ps_mask(most, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ); // else the vector sees none of the slots
        most = _mm512_maskz_mov_ps(lanes, most);
        subtract(scores, n_slots, most);
        if (next != NULL && next->sees[column & 1]) {
            subtract(s->scores[!parity][column & 1], next->n * SL_PAGE_SLOTS, most);
        }
        move_base(most, d, s->minus_base + v, s->sum + v, s->out + (size_t)v * d);
        added = weigh(scores, n_slots, weights);
    }
    _mm512_store_ps(s->sum + v, _mm512_add_ps(_mm512_load_ps(s->sum + v), added));
}

// Lists the jobs of a run and two columns; returns their number.
static int list_jobs(const struct run *run, int first, int n_columns, size_t d, const struct scratch *s,
                     struct job *jobs) {
    int n = 0, pages = (int)job_pages(d);
    for (int page = 0, of_job; page < run->n; page += of_job, n++) {
        of_job = pages - (int)(run->page + (uint32_t)page) % pages; // jobs cover fixed pages
        of_job = of_job < run->n - page ? of_job : run->n - page;
        jobs[n] = (struct job){page, of_job, {false, false}};
        for (int c = 0; c < 2 && first + c < n_columns; c++) {
            jobs[n].sees[c] = sees(s, first + c, run->page + (uint32_t)page, of_job);
        }
    }
    return n;
}

/*
 * Adds a run to all columns that see some of it: two columns at a time, which stay in the first-level cache with a page.
 * A product of tiles takes long to end, and then waits in the cache for the softmax: so the scores of the job after, and
 * the values of the job before, are multiplied before a job's softmax.
 */
static void attend_run(const struct run *run, int n_columns, bool two_terms, size_t d, struct scratch *s) {
    for (int first = 0; first < n_columns; first += 2) {
        struct job jobs[RUN_PAGES];
        int n = list_jobs(run, first, n_columns, d, s, jobs);
        for (int i = -1; i <= n; i++) {
            int parity = i & 1;
            if (i + 1 < n) {
                score_job(run, &jobs[i + 1], first, two_terms, d, s, !parity);
            }
            if (i > 0) {
                add_job(&jobs[i - 1], first, d, s, !parity);
            }
            for (int c = 0; i >= 0 && i < n && c < 2; c++) {
                if (jobs[i].sees[c]) {
                    weigh_job(run, &jobs[i], i + 1 < n ? &jobs[i + 1] : NULL, first + c, d, s, parity);
                }
            }
        }
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
        partial->max[v] = s->sum[v] > 0.0f ? -s->minus_base[v] * (float)M_LN2 : -INFINITY;
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
        struct run run = load_run(b, two_terms, page, page_end, &s);
        attend_run(&run, (b->n + SL_TILE - 1) / SL_TILE, two_terms, (size_t)b->args->head_dim, &s);
        page += (uint32_t)run.n;
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
    sl_avx512_kv_fill(ops);
    ops->attend_fold = NULL;
    ops->attend = attend_in_two;
    ops->attend_before = attend_before_in_two;
}
