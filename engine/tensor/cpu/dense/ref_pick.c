// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the best of a row of logits, in plain C. The sampler on processors reads whole rows; tests compare devices
 *          with memory of their own with this.
 */
#include <assert.h>
#include <math.h>

#include "engine/tensor/cpu/dense/fills.h"

static bool is_before(float logit, int32_t id, const struct sl_candidate *other) {
    return logit > other->logit || (logit == other->logit && id < other->id);
}

// Finds the best by insertion. Ids ascend, so the first of equal logits stays before the others.
static void list_best(const float *logits, int64_t n_vocab, int32_t most, struct sl_picked *picked) {
    picked->n = picked->n_finite = 0;
    for (int64_t id = 0; id < n_vocab; id++) {
        float logit = logits[id];
        if (!isfinite(logit)) {
            continue;
        }
        picked->n_finite++;
        if (picked->n == most && !is_before(logit, (int32_t)id, &picked->best[most - 1])) {
            continue;
        }
        int32_t place = picked->n < most ? picked->n++ : most - 1;
        for (; place > 0 && is_before(logit, (int32_t)id, &picked->best[place - 1]); place--) {
            picked->best[place] = picked->best[place - 1];
        }
        picked->best[place] = (struct sl_candidate){logit, (int32_t)id};
    }
}

static void add_up(const float *logits, int64_t n_vocab, double temperature, struct sl_picked *picked) {
    const struct sl_candidate *last = &picked->best[picked->n - 1];
    double max = picked->best[0].logit, sum = 0, rest = 0;
    for (int64_t id = 0; id < n_vocab; id++) {
        double logit = logits[id];
        if (!isfinite(logit)) {
            continue;
        }
        sum += exp(logit - max);
        bool is_listed = last->id == id || is_before(logits[id], (int32_t)id, last);
        rest += is_listed || temperature == 0 ? 0 : exp((logit - (double)last->logit) / temperature);
    }
    picked->lse = max + log(sum);
    picked->rest = rest;
}

static void pick(struct sl_stream *, const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m,
                 struct sl_picked *picked_out) {
    for (int64_t r = 0; r < m; r++) {
        assert(asked[r].most >= 0 && asked[r].most <= SL_MAX_CANDIDATES);
        if (asked[r].most > 0) {
            list_best(logits + r * n_vocab, n_vocab, asked[r].most, &picked_out[r]);
        }
        if (asked[r].most > 0 && picked_out[r].n > 0) {
            add_up(logits + r * n_vocab, n_vocab, asked[r].temperature, &picked_out[r]);
        }
    }
}

void sl_ref_pick_fill(struct sl_ops *ops) {
    ops->pick = pick;
}
