// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: eviction's functions of cached rows, in plain C: how much the output changes without a slot (CAOTE), which
 *          retained key is the most similar to an evicted one, and the merge of the one into the other (D2O).
 *
 * Design: nothing here allocates: the caller processes several heads at once, and no status could report that memory
 *         ran out. nearest reads a retained key once for a block of evicted ones; merge: see merge_pages.h.
 */
#include <assert.h>
#include <math.h>

#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/evict/evict.h"
#include "engine/tensor/cpu/evict/fills.h"

// --- CAOTE -----------------------------------------------------------------------------------------------------------

// change_out[j] = a_j / max(1 - a_j, 1e-6) ||c - V_j||
static void value_change(const struct sl_kv *kv, const float *weights, bool mean_center, bool add_square,
                         float *change_inout) {
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
        float change = (float)(a / fmax(1.0 - a, 1e-6) * sqrt(squares));
        change_inout[j] = add_square ? change_inout[j] + change * change : change;
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

// Returns cos(a, b) = a . b / (|a| |b|), 0 where a norm is 0.
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

// --- the rows of merge -----------------------------------------------------------------------------------------------

static void add_difference(float *sum, float weight, const float *from, const float *into, int d) {
    for (int i = 0; i < d; i++) {
        sum[i] += weight * (from[i] - into[i]);
    }
}

static void add_quotient(float *row, const float *sum, float weight, int d) {
    for (int i = 0; i < d; i++) {
        row[i] += sum[i] / weight;
    }
}

static const struct sl_evict_kernels kernels = {
    value_change, nearest, {sl_ref_read_k_row, sl_ref_read_v_row, add_difference, add_quotient}};
SL_EVICT_OPS(kernels)

void sl_ref_evict_fill(struct sl_ops *ops) {
    fill_evict(ops);
    sl_ref_scores_fill(ops);
    sl_ref_choose_fill(ops);
    sl_ref_select_fill(ops);
    sl_ref_gather_fill(ops);
    sl_ref_estimate_fill(ops);
}
