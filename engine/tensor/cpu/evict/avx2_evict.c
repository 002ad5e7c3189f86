// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: value_change, nearest and the rows of merge with AVX2; the formulas are those of ref_evict.c.
 *
 * Design: value_change reads the V tiles twice: for the center, then for the distances from it. nearest keeps a block
 *         of evicted keys and a tile of retained ones in f32, row by row, and multiplies eight pairs of rows at a time.
 *         All products are eight sums over every eighth channel, added up in one order, so that no cosine depends on
 *         which rows are multiplied together. All scratch is on the stack and bounded.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/attention/avx2_row.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/evict/evict.h"
#include "engine/tensor/cpu/evict/fills.h"
#include "engine/tensor/cpu/evict/merge_pages.h"

#define MAX_WIDE ((SL_MAX_HEAD_DIM + SL_STRIP - 1) / SL_STRIP * SL_STRIP)

// --- CAOTE -----------------------------------------------------------------------------------------------------------

struct values {
    _Alignas(64) float tile[SL_PAGE_SLOTS * MAX_WIDE];
    float center[MAX_WIDE];
    double sums[MAX_WIDE];
};

static int load_values(const struct sl_kv *kv, uint32_t page, struct values *v) {
    uint32_t left = kv->n_slots - page * SL_PAGE_SLOTS;
    int n = left < SL_PAGE_SLOTS ? (int)left : SL_PAGE_SLOTS;
    sl_avx2_fill_values(sl_kv_page_layout(kv, page), kv->pages[page], n, v->tile);
    return n;
}

// Computes center = sum_j weights[j] V_j / sum, or the mean where weights is NULL; f32 within a page, f64 over the
// pages.
static void find_center(const struct sl_kv *kv, const float *weights, double sum, struct values *v) {
    int n_strips = sl_avx2_n_strips(kv->work->head_dim);
    memset(v->sums, 0, sizeof v->sums);
    for (uint32_t page = 0; page < sl_pages_for(kv->n_slots); page++) {
        int n = load_values(kv, page, v);
        for (int strip = 0; strip < n_strips; strip++) {
            const float *at = v->tile + strip * SL_PAGE_SLOTS * SL_STRIP;
            __m256 a = _mm256_setzero_ps(), b = _mm256_setzero_ps();
            for (int j = 0; j < n; j++, at += SL_STRIP) {
                __m256 w = _mm256_set1_ps(weights == NULL ? 1.0f : weights[page * SL_PAGE_SLOTS + (uint32_t)j]);
                a = _mm256_fmadd_ps(w, _mm256_load_ps(at), a);
                b = _mm256_fmadd_ps(w, _mm256_load_ps(at + 8), b);
            }
            _Alignas(32) float part[SL_STRIP];
            _mm256_store_ps(part, a);
            _mm256_store_ps(part + 8, b);
            for (int i = 0; i < SL_STRIP; i++) {
                v->sums[strip * SL_STRIP + i] += (double)part[i];
            }
        }
    }
    for (int i = 0; i < n_strips * SL_STRIP; i++) {
        v->center[i] = (float)(v->sums[i] / sum);
    }
}

// Writes distances[t] = || center - V_j ||, j = first + t < n, t < 8.
static void distances8(const struct values *v, int first, int n, int n_strips, float *distances) {
    __m256 squares[8];
    for (int t = 0; t < 8; t++) {
        const float *at = v->tile + (first + t) * SL_STRIP;
        __m256 a = _mm256_setzero_ps(), b = _mm256_setzero_ps();
        for (int strip = 0; first + t < n && strip < n_strips; strip++, at += SL_PAGE_SLOTS * SL_STRIP) {
            __m256 x = _mm256_sub_ps(_mm256_load_ps(v->center + strip * SL_STRIP), _mm256_load_ps(at));
            __m256 y = _mm256_sub_ps(_mm256_load_ps(v->center + strip * SL_STRIP + 8), _mm256_load_ps(at + 8));
            a = _mm256_fmadd_ps(x, x, a);
            b = _mm256_fmadd_ps(y, y, b);
        }
        squares[t] = _mm256_add_ps(a, b);
    }
    _mm256_storeu_ps(distances, _mm256_sqrt_ps(sl_avx2_sum8(squares)));
}

static void value_change(const struct sl_kv *kv, const float *weights, bool mean_center, bool add_square,
                         float *change_inout) {
    int n_strips = sl_avx2_n_strips(kv->work->head_dim);
    struct values v;
    double sum = 0.0;
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        sum += (double)weights[j];
    }
    bool equal = sum == 0.0;
    find_center(kv, mean_center || equal ? NULL : weights, mean_center || equal ? kv->n_slots : sum, &v);
    for (uint32_t page = 0; page < sl_pages_for(kv->n_slots); page++) {
        int n = load_values(kv, page, &v);
        for (int first = 0; first < n; first += 8) {
            float distances[8];
            uint32_t slot = page * SL_PAGE_SLOTS + (uint32_t)first;
            distances8(&v, first, n, n_strips, distances);
            for (int t = 0; t < 8 && first + t < n; t++, slot++) {
                double a = equal ? 1.0 / kv->n_slots : (double)weights[slot] / sum;
                float change = (float)(a / fmax(1.0 - a, 1e-6) * (double)distances[t]);
                change_inout[slot] = add_square ? change_inout[slot] + change * change : change;
            }
        }
    }
}

// --- D2O -------------------------------------------------------------------------------------------------------------

#define EVICTED 128 // keys of a block
#define KEPT    64  // keys of a tile: a multiple of 8

struct search {
    _Alignas(64) float evicted[EVICTED * SL_MAX_HEAD_DIM], kept[KEPT * SL_MAX_HEAD_DIM]; // [][d]
    float inverse[KEPT];    // 1 / |K| of kept, 0 for zero keys
    float best[EVICTED][2]; // the largest K_e . K / |K| so far, twice
    uint32_t at[EVICTED];   // the slot it belongs to
    const uint32_t *slots;  // of the tile's keys
    uint32_t n_slots;
};

// Returns 1 / |row|, 0 for a zero row.
static float inverse_norm(const float *row, size_t d) {
    __m256 squares = _mm256_setzero_ps();
    for (size_t i = 0; i < d; i += 8) {
        __m256 x = _mm256_load_ps(row + i);
        squares = _mm256_fmadd_ps(x, x, squares);
    }
    float sum = sl_avx2_sum(squares);
    return sum > 0.0f ? 1.0f / sqrtf(sum) : 0.0f;
}

// Returns a . b of n_a by n_b rows, eight products, in lane e * n_b + c = a[e] . b[c]; both are constants in every
// call.
static inline __attribute__((always_inline)) __m256 products(const float *a, int n_a, const float *b, int n_b,
                                                             size_t d) {
    __m256 sum[8];
    SL_UNROLL
    for (int t = 0; t < 8; t++) {
        sum[t] = _mm256_setzero_ps();
    }
    for (size_t i = 0; i < d; i += 8) {
        SL_UNROLL
        for (int t = 0; t < 8; t++) {
            sum[t] = _mm256_fmadd_ps(_mm256_load_ps(a + (size_t)(t / n_b) * d + i),
                                     _mm256_load_ps(b + (size_t)(t % n_b) * d + i), sum[t]);
        }
    }
    (void)n_a; // 8 / n_b
    return sl_avx2_sum8(sum);
}

// Updates the best of evicted keys [e, e + 8 / n_columns) with retained ones [c, c + n_columns): strictly larger scores
// replace it, in order.
static void keep_best(struct search *s, uint32_t e, uint32_t c, uint32_t n_columns, __m256 scores, __m256 best) {
    if (_mm256_movemask_ps(_mm256_cmp_ps(scores, best, _CMP_GT_OQ)) == 0) {
        return;
    }
    _Alignas(32) float score[8];
    _mm256_store_ps(score, scores);
    for (uint32_t t = 0; t < 8; t++) {
        uint32_t row = e + t / n_columns, column = c + t % n_columns;
        if (column < s->n_slots && score[t] > s->best[row][0]) {
            s->best[row][0] = s->best[row][1] = score[t];
            s->at[row] = s->slots[column];
        }
    }
}

// Compares a tile of retained keys with n evicted ones.
static void search_tile(struct search *s, uint32_t n, size_t d) {
    uint32_t e = 0;
    for (; e + 4 <= n; e += 4) {
        for (uint32_t c = 0; c < s->n_slots; c += 2) {
            __m256 inverse = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)(s->inverse + c)));
            __m256 scores = _mm256_mul_ps(products(s->evicted + e * d, 4, s->kept + c * d, 2, d), inverse);
            keep_best(s, e, c, 2, scores, _mm256_loadu_ps(s->best[e]));
        }
    }
    for (; e < n; e++) {
        for (uint32_t c = 0; c < s->n_slots; c += 8) {
            __m256 inverse = _mm256_load_ps(s->inverse + c);
            __m256 scores = _mm256_mul_ps(products(s->evicted + e * d, 1, s->kept + c * d, 8, d), inverse);
            keep_best(s, e, c, 8, scores, _mm256_set1_ps(s->best[e][0]));
        }
    }
}

static void nearest(const struct sl_kv *kv, const uint32_t *evicted, uint32_t n_evicted, const uint32_t *kept,
                    uint32_t n_kept, uint32_t *nearest_out, float *cosine_out) {
    size_t d = (size_t)kv->work->head_dim;
    struct search s;
    assert(n_kept > 0 || n_evicted == 0);
    for (uint32_t first = 0; first < n_evicted; first += EVICTED) {
        uint32_t n = n_evicted - first < EVICTED ? n_evicted - first : EVICTED;
        for (uint32_t e = 0; e < n; e++) {
            sl_avx2_read_k_row(kv, evicted[first + e], s.evicted + e * d);
            s.best[e][0] = s.best[e][1] = -INFINITY;
            s.at[e] = kept[0];
        }
        for (uint32_t tile = 0; tile < n_kept; tile += KEPT) {
            uint32_t n_tile = n_kept - tile < KEPT ? n_kept - tile : KEPT;
            for (uint32_t c = 0; c < n_tile; c++) {
                sl_avx2_read_k_row(kv, kept[tile + c], s.kept + c * d);
                s.inverse[c] = inverse_norm(s.kept + c * d, d);
            }
            for (uint32_t c = n_tile; c % 8 != 0; c++) { // fill up to whole eights; their scores are not read
                memset(s.kept + c * d, 0, d * sizeof *s.kept);
                s.inverse[c] = 0.0f;
            }
            s.slots = kept + tile;
            s.n_slots = n_tile;
            search_tile(&s, n, d);
        }
        for (uint32_t e = 0; e < n; e++) {
            nearest_out[first + e] = s.at[e];
            cosine_out[first + e] = s.best[e][0] * inverse_norm(s.evicted + e * d, d);
        }
    }
}

static void add_difference(float *sum, float weight, const float *from, const float *into, int d) {
    for (int i = 0; i < d; i += 8) {
        __m256 x = _mm256_sub_ps(_mm256_load_ps(from + i), _mm256_load_ps(into + i));
        _mm256_store_ps(sum + i, _mm256_fmadd_ps(_mm256_set1_ps(weight), x, _mm256_load_ps(sum + i)));
    }
}

static void add_quotient(float *row, const float *sum, float weight, int d) {
    for (int i = 0; i < d; i += 8) {
        __m256 x = _mm256_div_ps(_mm256_load_ps(sum + i), _mm256_set1_ps(weight));
        _mm256_store_ps(row + i, _mm256_add_ps(_mm256_load_ps(row + i), x));
    }
}

static void merge(const struct sl_kv *kv, const uint32_t *from, const uint32_t *into, const float *cosine, uint32_t n) {
    static const struct sl_merge_rows rows = {sl_avx2_read_k_row, sl_avx2_read_v_row, add_difference, add_quotient};
    sl_merge_pages(&rows, kv, from, into, cosine, n);
}

static const struct sl_evict_kernels kernels = {value_change, nearest, merge};
SL_EVICT_OPS(kernels)

void sl_avx2_evict_fill(struct sl_ops *ops) {
    fill_evict(ops);
    sl_avx2_select_fill(ops);
}
