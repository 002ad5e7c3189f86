// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see merge_pages.h.
 *
 *      x_c = (e x_c + sum_i exp(cosine_i) x_i) / (e + sum_i exp(cosine_i))
 *          = x_c + sum_i w_i (x_i - x_c) / (e + sum_i w_i),   w_i = exp(cosine_i)
 *
 * Design: keeps the sums of one page of rows at a time, so that into[] may name slots in any order and more than once.
 *         A row that is merged with an equal one keeps its exact bits.
 */
#include "engine/tensor/cpu/evict/merge_pages.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"

struct sums {
    _Alignas(64) float k[SL_PAGE_SLOTS][SL_MAX_HEAD_DIM], v[SL_PAGE_SLOTS][SL_MAX_HEAD_DIM]; // sum_i w_i (x_i - x_c)
    float weight[SL_PAGE_SLOTS]; // e + sum_i w_i; 0: no slot is merged into this one
};

// Merges all i with into[i] in this page, in ascending order. No slot is in both from[] and into[], so writing at the
// end is safe.
static void merge_page(const struct sl_merge_rows *rows, const struct sl_kv *kv, uint32_t page, const uint32_t *from,
                       const uint32_t *into, const float *cosine, uint32_t n) {
    int d = kv->work->head_dim;
    struct sums s;
    _Alignas(64) float row[SL_MAX_HEAD_DIM], target[SL_MAX_HEAD_DIM];
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
        rows->read_k(kv, from[i], row);
        rows->read_k(kv, into[i], target);
        rows->add_difference(s.k[slot], weight, row, target, d);
        rows->read_v(kv, from[i], row);
        rows->read_v(kv, into[i], target);
        rows->add_difference(s.v[slot], weight, row, target, d);
    }
    char *at = kv->pages[page];
    for (uint32_t slot = 0; slot < SL_PAGE_SLOTS; slot++) {
        if (s.weight[slot] > 0.0f) {
            rows->read_k(kv, page * SL_PAGE_SLOTS + slot, row);
            rows->add_quotient(row, s.k[slot], s.weight[slot], d);
            sl_ref_write_row(kv->work, at + kv->work->k, slot, row);
            rows->read_v(kv, page * SL_PAGE_SLOTS + slot, row);
            rows->add_quotient(row, s.v[slot], s.weight[slot], d);
            sl_ref_write_row(kv->work, at + kv->work->v, slot, row);
        }
    }
}

void sl_merge_pages(const struct sl_merge_rows *rows, const struct sl_kv *kv, const uint32_t *from,
                    const uint32_t *into, const float *cosine, uint32_t n) {
    uint32_t first = UINT32_MAX, last = 0; // first, last: pages
    assert(kv->n_packed == 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = into[i] / SL_PAGE_SLOTS;
        first = page < first ? page : first;
        last = page > last ? page : last;
    }
    for (uint32_t page = first; n > 0 && page <= last; page++) {
        merge_page(rows, kv, page, from, into, cosine, n);
    }
}
