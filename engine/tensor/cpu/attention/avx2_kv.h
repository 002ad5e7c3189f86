// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that the AVX2 files about KV pages share. Include only from files compiled for AVX2, FMA and
 *          F16C.
 *
 * Vocabulary: strip  SL_STRIP columns of a tile, row after row without gaps: what the kernel of avx2_kv.c reads
 *             tile   a page's K or V in f32 as strips: K^T is SL_PAGE_SLOTS columns (tokens) of d rows (channels),
 *                    V is d columns (channels), rounded up to whole strips, of SL_PAGE_SLOTS rows (tokens)
 */
#pragma once

#include "engine/tensor/cpu/attention/kv_blocks.h"
#include "engine/tensor/cpu/simd/avx2_math.h"

#define SL_STRIP       16 // columns: two registers
#define SL_PAGE_STRIPS (SL_PAGE_SLOTS / SL_STRIP)

static inline int sl_avx2_n_strips(int head_dim) {
    return (head_dim + SL_STRIP - 1) / SL_STRIP;
}

// Writes tile[SL_PAGE_STRIPS][d][SL_STRIP] = K^T of all the page's slots. Slots that were never written have undefined
// contents.
void sl_avx2_fill_keys(const struct sl_page_layout *layout, const void *page, float *tile);

// Writes tile[sl_avx2_n_strips(d)][SL_PAGE_SLOTS][SL_STRIP] = V of the page's first n slots; columns beyond d are 0.
void sl_avx2_fill_values(const struct sl_page_layout *layout, const void *page, int n, float *tile);

// out[n_rows][d] = in[n_rows][d] rotated by one slot
void sl_avx2_rotate_queries(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t slot,
                            const float *in, int n_rows, float *out);
void sl_avx2_rotate_keys(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t page,
                         float *tile);

// --- products (avx2_kv.c) --------------------------------------------------------------------------------------------

// C[v][x] = factor[v] C[v][x] + sum_e A[v][e] B[e][x], e ascending; without factor C is overwritten.
struct sl_avx2_product {
    const float *a; // [n_rows][a_stride]
    size_t a_stride;
    const float *b; // strips of strip_rows rows, of which a product uses some
    size_t strip_rows;
    float *c; // [n_rows][c_stride]
    size_t c_stride;
    const float *factor; // [n_rows] or NULL
};

// Returns the part of a product from a row and a strip on.
static inline struct sl_avx2_product sl_avx2_product_from(const struct sl_avx2_product *p, int row, int strip) {
    struct sl_avx2_product part = *p;
    part.a += (size_t)row * p->a_stride;
    part.b += (size_t)strip * p->strip_rows * SL_STRIP;
    part.c += (size_t)row * p->c_stride + (size_t)strip * SL_STRIP;
    part.factor = p->factor == NULL ? NULL : p->factor + row;
    return part;
}

// Computes rows [row_begin, row_end) of C, the first n_strips strips, over e in [begin, end).
void sl_avx2_multiply(const struct sl_avx2_product *p, int row_begin, int row_end, int n_strips, size_t begin,
                      size_t end);

// --- a call of an operation on attention (avx2_kv.c) -----------------------------------------------------------------

// The query vectors of a KV head: (row, query head) pairs, row by row.
struct sl_avx2_call {
    struct sl_attend args;
    const struct sl_slot_angles *angles; // NULL: keys are rotated already
    int group;                           // query heads for each KV head
};

// `angles` is the caller's memory for call->angles, filled when args->rope is set.
void sl_avx2_call_init(struct sl_avx2_call *call, const struct sl_attend *args, struct sl_slot_angles *angles);

// Writes q[n][d] = query vectors [begin, begin + n) of a KV head, scaled and rotated.
typedef void sl_load_queries_fn(const struct sl_avx2_call *call, int head, int64_t begin, int n,
                                struct sl_page_angles *of_page, float *q);
sl_load_queries_fn sl_avx2_load_queries;

// Writes the K^T tile of a page of a KV head, rotated.
void sl_avx2_load_keys(const struct sl_avx2_call *call, int head, uint32_t page, struct sl_page_angles *of_page,
                       float *tile);

// --- attention of a block (avx2_kv.c) ---------------------------------------------------------------------------------

#define SL_ATTEND_BLOCK 384 // query vectors: a multiple of the kernels' rows; their scratch fits the second-level cache
#define SL_ATTEND_WIDE  ((SL_MAX_HEAD_DIM + SL_STRIP - 1) / SL_STRIP * SL_STRIP)

// The running softmax of one query vector over tiles, see ref_softmax.h. The weighted values are kept elsewhere.
struct sl_avx2_softmax {
    float max, sum;
};

// The working memory of one block.
struct sl_attend_scratch {
    _Alignas(64) float q[SL_BLOCK_FLOATS];                   // [n_vectors][d]
    float k[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];                // K^T tile
    float v[SL_PAGE_SLOTS * SL_ATTEND_WIDE];                 // V tile
    float scores[SL_ATTEND_BLOCK * SL_PAGE_SLOTS];           // [n_vectors][SL_PAGE_SLOTS] unless kept, then the weights
    float out[SL_BLOCK_FLOATS + SL_ATTEND_BLOCK * SL_STRIP]; // [n_vectors][d in whole strips]
    float factors[SL_ATTEND_BLOCK];                          // c of sl_avx2_softmax_add()
    struct sl_page_angles of_page;
    struct sl_avx2_softmax states[SL_ATTEND_BLOCK];
};

// Adds one page to the vectors of a block; `page_end` is the end of the split.
typedef void sl_attend_page_fn(const struct sl_kv_block *b, uint32_t page, uint32_t page_end,
                               struct sl_attend_scratch *s);

// A sl_kv_block_fn with AVX2.
void sl_avx2_attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                          const struct sl_kv_partial *partial);

// Implements a sl_kv_block_fn with a tier's functions for queries and for one page. Only attend_page reads s->q.
void sl_avx2_attend_pages(sl_load_queries_fn *load_queries, sl_attend_page_fn *attend_page, const struct sl_kv_block *b,
                          uint32_t page_begin, uint32_t page_end, const struct sl_kv_partial *partial);

// --- entries of the table in other files -----------------------------------------------------------------------------

void sl_avx2_append(struct sl_stream *stream, const struct sl_attend *calls, int n_calls);

/*
 * Statistics with scores that a tier computes itself. The shared code does not read the converted queries and keys,
 * which must fit into as many floats as there are numbers.
 */
#define SL_STATS_BLOCK 96 // query vectors at a time: a multiple of the kernels' rows

// Rows whose attention is added to the statistics of a page.
struct sl_stats_rows {
    const float *scores; // [n][group][SL_PAGE_SLOTS], masked
    const float *lse;    // [n][group]
    const float *even;   // [n] group / slots that the row sees; infinity for one slot
    int n, group;
    size_t next; // from a score to that of the next page, if scores are kept: to prefetch
};
// Adds rows in order. square, above: whether these statistics are wanted.
typedef void sl_add_rows_fn(const struct sl_stats_rows *rows, bool square, bool above, sl_kv_page_stats stats);

typedef void sl_score_fn(const float *q, const float *tile, const struct sl_page_layout *layout, int v_begin, int v_end,
                         int n_slots, float *scores);

struct sl_avx2_scorer {
    // converts n <= SL_STATS_BLOCK vectors, as sl_avx2_load_queries()
    sl_load_queries_fn *load_queries;
    // converts a page, as sl_avx2_load_keys()
    void (*load_keys)(const struct sl_avx2_call *call, int head, uint32_t page, struct sl_page_angles *of_page,
                      float *tile);
    // Writes scores[SL_STATS_BLOCK][SL_PAGE_SLOTS] of the vectors [v_begin, v_end) and the first n_slots slots of a page of
    // the layout. May write more scores.
    sl_score_fn *score;
    sl_add_rows_fn *add_rows; // all tiers' give the same bits
};
void sl_avx2_fold_by(const struct sl_avx2_scorer *by, struct sl_stream *stream, const struct sl_attend *args,
                     int first_row, const struct sl_fold *what);
void sl_avx2_window_sums_by(const struct sl_avx2_scorer *by, struct sl_stream *stream, const struct sl_attend *args,
                            int first_row, struct sl_vectors sums_out);
// Statistics of kept scores: sl_kv_kernel.fold
void sl_avx2_fold_kept_by(sl_add_rows_fn *add, const struct sl_kv_block *b, const struct sl_fold *what,
                          sl_kv_page_stats *stats);

// --- small things ----------------------------------------------------------------------------------------------------

/*
 * Returns exp of values that are at most slightly above 0; 0 below -86.98; a NaN stays NaN. Like sl_avx2_exp(), in
 * fewer instructions: adding 1.5 * 2^23 + 127 rounds x / ln 2 to an integer n, and leaves n + 127, an exponent, in the
 * low bits. 1 + f + c2 f^2 + .. + c5 f^5 is fitted (least largest relative error, 1.05e-7); Taylor would need one power
 * more.
 */
static inline __m256 sl_avx2_exp_weight(__m256 x) {
    const __m256 shift = _mm256_set1_ps(12583039.0f);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), shift), n = _mm256_sub_ps(t, shift);
    __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), f);
    __m256 p = _mm256_set1_ps(0.00831252019f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0418901569f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.166671146f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.499992315f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-86.98f), _CMP_LT_OQ), _mm256_mul_ps(p, power));
}

// Writes minus infinity for the scores of a page that are not in the range.
static inline void sl_avx2_mask(float *scores, struct sl_range range) {
    for (int j = 0; j < range.begin; j++) {
        scores[j] = -INFINITY;
    }
    for (int j = range.end; j < SL_PAGE_SLOTS; j++) {
        scores[j] = -INFINITY;
    }
}

// Returns the largest of the 8 lanes.
static inline float sl_avx2_max(__m256 x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// Makes weights exp(s - max') of the scores of a tile (unseen ones masked), in the same memory or elsewhere. Returns c,
// by which the caller must scale the earlier sums.
static inline float sl_avx2_softmax_add(struct sl_avx2_softmax *s, const float *scores, float *weights_out) {
    __m256 most = _mm256_set1_ps(s->max);
    SL_UNROLL
    for (int j = 0; j < SL_PAGE_SLOTS; j += 8) {
        most = _mm256_max_ps(most, _mm256_load_ps(scores + j));
    }
    float max = sl_avx2_max(most);
    __m256 sum = _mm256_setzero_ps(), shift = _mm256_set1_ps(max);
    SL_UNROLL
    for (int j = 0; j < SL_PAGE_SLOTS; j += 8) {
        __m256 p = sl_avx2_exp_weight(_mm256_sub_ps(_mm256_load_ps(scores + j), shift));
        _mm256_store_ps(weights_out + j, p);
        sum = _mm256_add_ps(sum, p);
    }
    float c = s->max == max ? 1.0f : _mm256_cvtss_f32(sl_avx2_exp_weight(_mm256_set1_ps(s->max - max)));
    s->max = max;
    s->sum = s->sum * c + sl_avx2_sum(sum);
    return c;
}
