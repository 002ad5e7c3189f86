// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: value_change, nearest and the rows of merge with AVX2; the formulas are those of ref_evict.c.
 *
 * Design: value_change reads the V tiles twice: for the center, then for the distances from it. nearest multiplies a
 *         block of evicted keys by tiles of retained ones, transposed, as attention does with queries and keys. A
 *         product is eight sums over every eighth channel, added up in one order, so that no cosine depends on which
 *         rows are multiplied together. All scratch is on the stack and bounded.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/pages/avx2_row.h"
#include "engine/tensor/cpu/evict/evict.h"
#include "engine/tensor/cpu/evict/fills.h"

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

#define EVICTED_FLOATS (128 * SL_MAX_HEAD_DIM) // keys of a block
#define KEPT           64                      // keys of a tile
#define ROWS           6                       // evicted keys of one kernel: 6 by 16 sums take 12 of 16 registers

struct search {
    // Channel 8 i + l of a key is number l * d / 8 + i: each eighth of a row is a chain of one sum.
    _Alignas(64) float evicted[EVICTED_FLOATS]; // [][d]
    float kept[KEPT * SL_MAX_HEAD_DIM];         // [KEPT / SL_STRIP][d][SL_STRIP]
    float inverse[KEPT];                        // 1 / |K| of kept, 0 for zero keys
    float best[SL_NEAREST_BLOCK];               // the largest K_e . K / |K| so far
    float inverse_evicted[SL_NEAREST_BLOCK];    // 1 / |K_e|
    uint32_t at[SL_NEAREST_BLOCK];              // the slot it belongs to
    const uint32_t *slots;                      // of the tile's keys
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

// Adds to `sum` chain l of the products of n_rows evicted keys and a strip; n_rows is a constant in every call.
static inline __attribute__((always_inline)) void add_chain(const float *a, const float *b, int n_rows, size_t d,
                                                            size_t l, __m256 sum[ROWS][2]) {
    SL_UNROLL
    for (int r = 0; r < n_rows; r++) {
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    }
    for (size_t e = l * (d / 8); e < (l + 1) * (d / 8); e++) {
        __m256 b0 = _mm256_load_ps(b + e * SL_STRIP), b1 = _mm256_load_ps(b + e * SL_STRIP + 8);
        SL_UNROLL
        for (int r = 0; r < n_rows; r++) {
            __m256 w = _mm256_broadcast_ss(a + (size_t)r * d + e);
            sum[r][0] = _mm256_fmadd_ps(w, b0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(w, b1, sum[r][1]);
        }
    }
}

// Writes products_out[r] = K_r . K of a strip's keys, ((0+1)+(2+3)) + ((4+5)+(6+7)) of the eight chains.
static inline __attribute__((always_inline)) void multiply(const float *a, const float *b, int n_rows, size_t d,
                                                           __m256 products_out[ROWS][2]) {
    __m256 chains[8][ROWS][2];
    for (size_t l = 0; l < 8; l++) {
        __m256 sum[ROWS][2];
        add_chain(a, b, n_rows, d, l, sum);
        SL_UNROLL
        for (int r = 0; r < n_rows; r++) {
            chains[l][r][0] = sum[r][0];
            chains[l][r][1] = sum[r][1];
        }
    }
    SL_UNROLL
    for (int r = 0; r < n_rows; r++) {
        SL_UNROLL
        for (int x = 0; x < 2; x++) {
            __m256 low = _mm256_add_ps(_mm256_add_ps(chains[0][r][x], chains[1][r][x]),
                                       _mm256_add_ps(chains[2][r][x], chains[3][r][x]));
            __m256 high = _mm256_add_ps(_mm256_add_ps(chains[4][r][x], chains[5][r][x]),
                                        _mm256_add_ps(chains[6][r][x], chains[7][r][x]));
            products_out[r][x] = _mm256_add_ps(low, high);
        }
    }
}

// Returns the scores of eight retained keys: 0 for keys without a length, also where they hold a NaN.
static inline __m256 scores_of(__m256 products, const float *inverse) {
    __m256 by = _mm256_load_ps(inverse);
    return _mm256_and_ps(_mm256_mul_ps(products, by), _mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_GT_OQ));
}

// Updates the best of evicted key e with the retained keys of a strip: strictly larger scores replace it, in order.
static void keep_best(struct search *s, uint32_t e, uint32_t column, const __m256 *products) {
    __m256 best = _mm256_broadcast_ss(&s->best[e]);
    __m256 low = scores_of(products[0], s->inverse + column), high = scores_of(products[1], s->inverse + column + 8);
    __m256 above = _mm256_or_ps(_mm256_cmp_ps(low, best, _CMP_GT_OQ), _mm256_cmp_ps(high, best, _CMP_GT_OQ));
    if (_mm256_movemask_ps(above) == 0) {
        return;
    }
    _Alignas(32) float scores[SL_STRIP];
    _mm256_store_ps(scores, low);
    _mm256_store_ps(scores + 8, high);
    for (uint32_t t = 0; t < SL_STRIP && column + t < s->n_slots; t++) {
        if (scores[t] > s->best[e]) {
            s->best[e] = scores[t];
            s->at[e] = s->slots[column + t];
        }
    }
}

// Compares n_rows evicted keys, a constant in every call, with the strip that begins at a column.
static inline __attribute__((always_inline)) void search_rows(struct search *s, uint32_t e, int n_rows, uint32_t column,
                                                              size_t d) {
    __m256 products[ROWS][2];
    multiply(s->evicted + e * d, s->kept + column * d, n_rows, d, products);
    for (int r = 0; r < n_rows; r++) {
        keep_best(s, e + (uint32_t)r, column, products[r]);
    }
}

// Compares a tile of retained keys with n evicted ones.
static void search_tile(struct search *s, uint32_t n, size_t d) {
    for (uint32_t column = 0; column < s->n_slots; column += SL_STRIP) {
        uint32_t e = 0;
        for (; e + ROWS <= n; e += ROWS) {
            search_rows(s, e, ROWS, column, d);
        }
        for (; e < n; e++) {
            search_rows(s, e, 1, column, d);
        }
    }
}

// Reads the key of a slot in the order of the chains. Returns 1 / |K|.
static float load_evicted(const struct sl_kv *kv, uint32_t slot, float *out) {
    _Alignas(64) float row[SL_MAX_HEAD_DIM];
    size_t d = (size_t)kv->work->head_dim;
    sl_avx2_read_k_row(kv, slot, row);
    for (size_t i = 0; i < d; i++) {
        out[i % 8 * (d / 8) + i / 8] = row[i];
    }
    return inverse_norm(row, d);
}

// Reads eight keys, the first n of slots[] and zeros, into half a strip. Writes 1 / |K| of each.
static void load_kept(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, float *out, float *inverse_out) {
    _Alignas(64) float rows[8 * SL_MAX_HEAD_DIM];
    size_t d = (size_t)kv->work->head_dim;
    memset(rows + (n < 8 ? n : 8) * d, 0, (n < 8 ? 8 - n : 0) * d * sizeof *rows);
    for (uint32_t c = 0; c < 8; c++) {
        if (c < n) {
            sl_avx2_read_k_row(kv, slots[c], rows + c * d);
        }
        inverse_out[c] = inverse_norm(rows + c * d, d);
    }
    for (size_t i = 0; i < d / 8; i++) { // channel 8 i + l becomes number l * d / 8 + i
        sl_avx2_transpose_8x8((const char *)rows, 8 * i, d, SL_KV_F32, out + i * SL_STRIP, d / 8 * SL_STRIP);
    }
}

// Reads a tile of n keys; whole strips are filled with zeros, whose scores are not read.
static void load_tile(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, struct search *s) {
    size_t d = (size_t)kv->work->head_dim;
    s->slots = slots;
    s->n_slots = n;
    for (uint32_t c = 0; c < (n + SL_STRIP - 1) / SL_STRIP * SL_STRIP; c += 8) {
        load_kept(kv, slots + c, c < n ? n - c : 0, s->kept + c / SL_STRIP * SL_STRIP * d + c % SL_STRIP,
                  s->inverse + c);
    }
}

static void nearest(const struct sl_kv *kv, const uint32_t *evicted, uint32_t n_evicted, const uint32_t *kept,
                    uint32_t n_kept, uint32_t *nearest_out, float *cosine_out) {
    size_t d = (size_t)kv->work->head_dim;
    uint32_t block = EVICTED_FLOATS / (uint32_t)d < SL_NEAREST_BLOCK ? EVICTED_FLOATS / (uint32_t)d : SL_NEAREST_BLOCK;
    struct search s;
    assert(n_kept > 0 || n_evicted == 0);
    for (uint32_t first = 0; first < n_evicted; first += block) {
        uint32_t n = n_evicted - first < block ? n_evicted - first : block;
        for (uint32_t e = 0; e < n; e++) {
            s.inverse_evicted[e] = load_evicted(kv, evicted[first + e], s.evicted + e * d);
            s.best[e] = -INFINITY;
            s.at[e] = kept[0];
        }
        for (uint32_t tile = 0; tile < n_kept; tile += KEPT) {
            load_tile(kv, kept + tile, n_kept - tile < KEPT ? n_kept - tile : KEPT, &s);
            search_tile(&s, n, d);
        }
        for (uint32_t e = 0; e < n; e++) {
            nearest_out[first + e] = s.at[e];
            cosine_out[first + e] = s.inverse_evicted[e] > 0 ? s.best[e] * s.inverse_evicted[e] : 0;
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

static const struct sl_evict_kernels kernels = {
    value_change, nearest, {sl_avx2_read_k_row, sl_avx2_read_v_row, add_difference, add_quotient}};
SL_EVICT_OPS(kernels)

void sl_avx2_evict_fill(struct sl_ops *ops) {
    fill_evict(ops);
    sl_avx2_select_fill(ops);
    sl_avx2_quantize_fill(ops);
}
