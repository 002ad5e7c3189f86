// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: selects the best of many scores in plain C, and decides which equal scores at the edge stay.
 *
 * Design: radix select finds, byte by byte from the top, the key of the b-th largest score. Then one pass selects the
 *         scores above it and the first of those that equal it. Ties are read only where some of these stay and others
 *         go: then the same selection runs on the ties of the scores that equal the edge.
 */
#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/evict/fills.h"
#include "engine/tensor/cpu/evict/select.h"

/*
 * Returns the key of the b-th largest of x[n], 1 <= b <= n, and how many of the b equal it. With `among`, only those
 * x[j] count for which among[j] has the key `edge`; there must be at least b.
 */
static inline __attribute__((always_inline)) uint32_t find_key(const float *x, const float *among, uint32_t edge,
                                                               uint32_t n, uint32_t b, uint32_t *n_equal_out) {
    uint32_t key = 0, mask = 0;
    for (int shift = 24; shift >= 0;
         shift -= 8) { // b: how many are still to be found among those that match key under mask
        uint32_t count[256] = {0};
        for (uint32_t j = 0; j < n; j++) {
            uint32_t k = sl_score_key(x[j]);
            count[k >> shift & 0xffu] += (k & mask) == key && (among == NULL || sl_score_key(among[j]) == edge);
        }
        uint32_t byte = 255;
        while (byte > 0 && count[byte] < b) {
            b -= count[byte--];
        }
        key |= byte << shift;
        mask |= 0xffu << shift;
    }
    *n_equal_out = b;
    return key;
}

void sl_ref_select(const float *scores, uint32_t n, uint32_t b, uint32_t *keep_out) {
    uint32_t n_kept = 0, n_equal = 0, key = b > 0 && b < n ? find_key(scores, NULL, 0, n, b, &n_equal) : 0;
    for (uint32_t j = 0; j < n && b > 0; j++) {
        uint32_t k = sl_score_key(scores[j]);
        if (b >= n || k > key || (k == key && n_equal > 0)) {
            n_equal -= b < n && k == key;
            keep_out[n_kept++] = j;
        }
    }
}

// --- ties ------------------------------------------------------------------------------------------------------------

/*
 * Decides which scores that equal the edge stay. On entry keep[] lists the b best of n, 0 < b < n, with the first of
 * those that equal the edge. On return it has the ones with the largest ties instead, or with ties NULL the last ones.
 */
static void break_ties(const float *scores, const float *ties, uint32_t n, uint32_t b, uint32_t *keep) {
    uint32_t edge = UINT32_MAX, n_above = 0, n_equal = 0;
    for (uint32_t i = 0; i < b; i++) {
        uint32_t key = sl_score_key(scores[keep[i]]);
        edge = key < edge ? key : edge;
    }
    for (uint32_t j = 0; j < n; j++) {
        uint32_t key = sl_score_key(scores[j]);
        n_above += key > edge;
        n_equal += key == edge;
    }
    uint32_t n_stay = b - n_above, n_go = n_equal - n_stay, n_kept = 0, of_tie = 0;
    if (n_go == 0) {
        return;
    }
    uint32_t tie = ties != NULL ? find_key(ties, scores, edge, n, n_stay, &of_tie) : 0;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t key = sl_score_key(scores[j]);
        bool stays = key > edge;
        if (key == edge && ties == NULL) {
            stays = n_go == 0;
            n_go -= n_go > 0;
        } else if (key == edge) {
            uint32_t of_slot = sl_score_key(ties[j]);
            stays = of_slot > tie || (of_slot == tie && of_tie > 0);
            of_tie -= of_slot == tie && of_tie > 0;
        }
        if (stays) {
            keep[n_kept++] = j;
        }
    }
}

// --- all heads -------------------------------------------------------------------------------------------------------

static void select_head(const void *arg, int h) {
    const struct sl_select_call *c = arg;
    uint32_t n = c->heads->kv[h].n_slots, b = sl_count(c->kept, h);
    const float *scores = sl_vector(c->scores, h), *ties = c->ties.at != NULL ? sl_vector(c->ties, h) : NULL;
    c->select(scores, n, b, sl_list(c->keep, h));
    if ((ties != NULL || c->newest) && b > 0 && b < n) {
        break_ties(scores, ties, n, b, sl_list(c->keep, h));
    }
}

void sl_select_heads(struct sl_stream *stream, const struct sl_select_call *call) {
    sl_each_head(stream, call->heads->n, 4 * sl_heads_slots(call->heads), select_head, call);
}

static void select_slots(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                         struct sl_vectors ties, bool newest, struct sl_counts kept, struct sl_lists keep_out) {
    const struct sl_select_call call = {heads, scores, ties, newest, kept, keep_out, sl_ref_select};
    sl_select_heads(stream, &call);
}

void sl_ref_select_fill(struct sl_ops *ops) {
    ops->select = select_slots;
    ops->host.select = sl_ref_select;
}
