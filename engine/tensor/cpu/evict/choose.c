// SPDX-License-Identifier: Apache-2.0
// Purpose: protects slots whatever their score, and computes each head's budget, in plain C, for every tier.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/evict/fills.h"
#include "engine/tensor/cpu/evict/select.h"

// --- protection ------------------------------------------------------------------------------------------------------

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void protect(struct sl_stream *stream, const struct sl_kv_heads *heads, const struct sl_protection *protections,
                    struct sl_vectors x_inout) {
    (void)stream; // writes as many values as slots are protected: a few
    for (int h = 0; h < heads->n; h++) {
        int64_t n = heads->kv[h].n_slots;
        float *x = sl_vector(x_inout, h);
        for (int64_t j = 0; j < least(protections[h].n_first, n); j++) {
            x[j] = INFINITY;
        }
        for (int64_t j = n - least(protections[h].n_newest, n); j < n; j++) {
            x[j] = INFINITY;
        }
    }
}

static void spare(struct sl_stream *, const struct sl_kv_heads *heads, struct sl_lists listed, struct sl_counts n,
                  struct sl_vectors x_inout) {
    for (int h = 0; h < heads->n; h++) {
        for (uint32_t i = 0; i < sl_count(n, h); i++) {
            sl_vector(x_inout, h)[sl_list(listed, h)[i]] = INFINITY;
        }
    }
}

// --- budgets of heads ------------------------------------------------------------------------------------------------

// Keys (sl_score_key()) use memory that may have been declared as float, so memcpy moves them.
static void write_keys(const float *scores, uint32_t n, float *keys) {
    for (uint32_t j = 0; j < n; j++) {
        uint32_t key = sl_score_key(scores[j]);
        memcpy(&keys[j], &key, sizeof key);
    }
}

static uint32_t count_above(const float *keys, uint32_t n, uint32_t key) {
    uint32_t count = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t k;
        memcpy(&k, &keys[j], sizeof k);
        count += k > key;
    }
    return count;
}

static uint32_t count_infinite(const float *scores, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t j = 0; j < n; j++) {
        count += isinf(scores[j]) && scores[j] > 0;
    }
    return count;
}

// Returns how many slots are kept in all when heads keep the slots above `key`, but each never fewer than least_of[h].
static uint64_t kept_above(const struct sl_kv_heads *heads, struct sl_vectors keys, const uint32_t *least_of,
                           uint32_t key) {
    uint64_t sum = 0;
    for (int h = 0; h < heads->n; h++) {
        uint32_t above = count_above(sl_vector(keys, h), heads->kv[h].n_slots, key);
        sum += above > least_of[h] ? above : least_of[h];
    }
    return sum;
}

static void budgets(struct sl_stream *, const struct sl_kv_heads *heads, struct sl_vectors scores, uint32_t budget,
                    struct sl_vectors work, struct sl_counts kept_out) {
    uint32_t *kept = kept_out.device; // at first the number that every head keeps at least
    uint64_t total = 0, all = (uint64_t)heads->n * budget;
    for (int h = 0; h < heads->n; h++) {
        uint32_t n = heads->kv[h].n_slots, n_infinite = count_infinite(sl_vector(scores, h), n);
        write_keys(sl_vector(scores, h), n, sl_vector(work, h));
        uint32_t fifth = budget / 5, at_least = fifth > n_infinite ? fifth : n_infinite;
        at_least = at_least < budget ? at_least : budget;
        kept[h] = at_least < n ? at_least : n;
        total += n;
    }
    total = total < all ? total : all;
    uint32_t low = 0, high = UINT32_MAX; // low ends as the lowest key above which no more than the total is kept
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (kept_above(heads, work, kept, middle) <= total) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    uint64_t left = total - kept_above(heads, work, kept, low);
    for (int h = 0; h < heads->n; h++) { // slots that are exactly at the key are kept in order
        uint32_t n = heads->kv[h].n_slots, above = count_above(sl_vector(work, h), n, low);
        uint32_t up_to = low > 0 ? count_above(sl_vector(work, h), n, low - 1) : n;
        kept[h] = kept[h] > above ? kept[h] : above;
        uint32_t more = up_to > kept[h] ? up_to - kept[h] : 0;
        more = more < left ? more : (uint32_t)left;
        kept[h] += more;
        left -= more;
    }
    assert(left == 0);
}

void sl_ref_choose_fill(struct sl_ops *ops) {
    ops->protect = protect;
    ops->spare = spare;
    ops->budgets = budgets;
}
