// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what eviction asks of the cached rows, in plain C: how much the output changes without a slot (CAOTE), which
 *          retained key is the most similar to an evicted one, and the merge of the one into the other (D2O).
 *
 * Design: nothing here allocates: several heads are served at once by their caller, and no status could say that
 *         memory ran out. nearest reads a retained key once for a block of evicted ones; merge sums into a page's worth
 *         of rows, page by page, so that into[] may name slots in any order and more than once.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "tensor/cpu/attention/kv_page.h"
#include "tensor/cpu/attention/ref_kv_slots.h"
#include "tensor/cpu/evict/fills.h"

// --- CAOTE -----------------------------------------------------------------------------------------------------------

// change_out[j] = a_j / max(1 - a_j, 1e-6) ||c - V_j||
static void value_change(const struct sl_kv *kv, const float *weights, bool mean_center, float *change_out) {
    int d = kv->work->head_dim;
    double sum = 0.0, center[SL_MAX_HEAD_DIM] = {0};
    float row[SL_MAX_HEAD_DIM];
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        sum += (double)weights[j];
    }
    double equal = 1.0 / kv->n_slots;
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        double share = mean_center || sum == 0.0 ? equal : (double)weights[j] / sum;
        sl_ref_read_v_row(kv, j, row);
        for (int i = 0; i < d; i++) {
            center[i] += share * (double)row[i];
        }
    }
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        double a = sum == 0.0 ? equal : (double)weights[j] / sum, squares = 0.0;
        sl_ref_read_v_row(kv, j, row);
        for (int i = 0; i < d; i++) {
            squares += (center[i] - (double)row[i]) * (center[i] - (double)row[i]);
        }
        change_out[j] = (float)(a / fmax(1.0 - a, 1e-6) * sqrt(squares));
    }
}

// --- D2O -------------------------------------------------------------------------------------------------------------

#define BLOCK 32 // evicted keys that share one reading of a retained key

static double dot(const float *a, const float *b, int d) {
    double sum = 0.0;
    for (int i = 0; i < d; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

// cos(a, b) = a . b / (|a| |b|), 0 where a norm is 0
static double cosine_of(double product, double norm_a, double norm_b) {
    return norm_a > 0.0 && norm_b > 0.0 ? product / (norm_a * norm_b) : 0.0;
}

static void nearest(const struct sl_kv *kv, const uint32_t *evicted, uint32_t n_evicted, const uint32_t *kept,
                    uint32_t n_kept, uint32_t *nearest_out, float *cosine_out) {
    int d = kv->work->head_dim;
    float keys[BLOCK][SL_MAX_HEAD_DIM], key[SL_MAX_HEAD_DIM];
    double norms[BLOCK], best[BLOCK];
    assert(n_kept > 0 || n_evicted == 0);
    for (uint32_t first = 0; first < n_evicted; first += BLOCK) {
        uint32_t n = n_evicted - first < BLOCK ? n_evicted - first : BLOCK;
        for (uint32_t e = 0; e < n; e++) {
            sl_ref_read_k_row(kv, evicted[first + e], keys[e]);
            norms[e] = sqrt(dot(keys[e], keys[e], d));
        }
        for (uint32_t c = 0; c < n_kept; c++) {
            sl_ref_read_k_row(kv, kept[c], key);
            double norm = sqrt(dot(key, key, d));
            for (uint32_t e = 0; e < n; e++) {
                double cosine = cosine_of(dot(keys[e], key, d), norms[e], norm);
                if (c == 0 || cosine > best[e]) { // the first of equals stays
                    best[e] = cosine;
                    nearest_out[first + e] = kept[c];
                }
            }
        }
        for (uint32_t e = 0; e < n; e++) {
            cosine_out[first + e] = (float)best[e];
        }
    }
}

// What is added to the slots of one page.
struct sums {
    float k[SL_PAGE_SLOTS][SL_MAX_HEAD_DIM], v[SL_PAGE_SLOTS][SL_MAX_HEAD_DIM]; // sum_i w_i (x_i - x_c)
    float weight[SL_PAGE_SLOTS];                                                // e + sum_i w_i; 0: not merged into
};

// sum[i] += weight * (from[i] - into[i])
static void add_difference(float *sum, float weight, const float *from, const float *into, int d) {
    for (int i = 0; i < d; i++) {
        sum[i] += weight * (from[i] - into[i]);
    }
}

// x_c = x_c + sums / weight: what is merged with its equal stays as it is, to the bit
static void write_back(const struct sl_page_layout *layout, char *part, uint32_t slot, float *row, const float *sums,
                       float weight) {
    for (int i = 0; i < layout->head_dim; i++) {
        row[i] += sums[i] / weight;
    }
    sl_ref_write_row(layout, part, slot, row);
}

// All i with into[i] in this page. Nobody's from[] is in into[], so writing at the end of a page reads nothing twice.
static void merge_page(const struct sl_kv *kv, uint32_t page, const uint32_t *from, const uint32_t *into,
                       const float *cosine, uint32_t n) {
    struct sums s;
    int d = kv->work->head_dim;
    float row[SL_MAX_HEAD_DIM], target[SL_MAX_HEAD_DIM];
    memset(s.weight, 0, sizeof s.weight);
    for (uint32_t i = 0; i < n; i++) {
        if (into[i] / SL_PAGE_SLOTS != page) {
            continue;
        }
        uint32_t slot = into[i] % SL_PAGE_SLOTS;
        if (s.weight[slot] == 0.0f) {
            s.weight[slot] = expf(1.0f);
            memset(s.k[slot], 0, (size_t)d * sizeof s.k[slot][0]);
            memset(s.v[slot], 0, (size_t)d * sizeof s.v[slot][0]);
        }
        float weight = expf(cosine[i]);
        s.weight[slot] += weight;
        sl_ref_read_k_row(kv, from[i], row);
        sl_ref_read_k_row(kv, into[i], target);
        add_difference(s.k[slot], weight, row, target, d);
        sl_ref_read_v_row(kv, from[i], row);
        sl_ref_read_v_row(kv, into[i], target);
        add_difference(s.v[slot], weight, row, target, d);
    }
    char *at = kv->pages[page];
    for (uint32_t slot = 0; slot < SL_PAGE_SLOTS; slot++) {
        if (s.weight[slot] > 0.0f) {
            sl_ref_read_k_row(kv, page * SL_PAGE_SLOTS + slot, target);
            write_back(kv->work, at + kv->work->k, slot, target, s.k[slot], s.weight[slot]);
            sl_ref_read_v_row(kv, page * SL_PAGE_SLOTS + slot, target);
            write_back(kv->work, at + kv->work->v, slot, target, s.v[slot], s.weight[slot]);
        }
    }
}

// x_c = (e x_c + sum_i exp(cosine_i) x_i) / (e + sum_i exp(cosine_i)) = x_c + sum_i w_i (x_i - x_c) / (e + sum_i w_i)
static void merge(const struct sl_kv *kv, const uint32_t *from, const uint32_t *into, const float *cosine, uint32_t n) {
    assert(kv->n_packed == 0);
    for (uint32_t page = 0; n > 0 && page < sl_pages_for(kv->n_slots); page++) {
        merge_page(kv, page, from, into, cosine, n);
    }
}

void sl_ref_evict_fill(struct sl_ops *ops) {
    ops->value_change = value_change;
    ops->nearest = nearest;
    ops->merge = merge;
}
