// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: value_change, nearest and the rows of merge with AVX2; the formulas are those of ref_evict.c.
 *
 * Design: value_change reads the V tiles twice: for the center, then for the distances from it. All scratch is on the
 *         stack and bounded.
 */
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

#include "engine/tensor/cpu/evict/nearest.h"

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
