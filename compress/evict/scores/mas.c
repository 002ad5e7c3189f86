// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: mas, mean attention: RoCo (Ren and Zhu, On the Efficacy of Eviction Policy), with the deviation that its scope
 *          protects by.
 *
 *     score_j     = s_j / n_j                        s_j: sum over all rows so far of abar[i][j], q_j: of its square
 *     deviation_j = sqrt(q_j / n_j - (s_j / n_j)^2)  n_j: queries that saw slot j, its own included
 *
 * n_j is not stored: every token since then was a query.
 */
#include <assert.h>
#include <math.h>

#include "compress/evict/scores/score.h"

static void accumulate(const struct sl_ops *ops, struct sl_team *team, const struct sl_attend *attend) {
    ops->fold(team, attend, 0, &(struct sl_fold){.sum = 0, .square = 1, .above = -1});
}

static double n_queries(const struct sl_score_input *in, uint32_t slot) {
    assert(in->positions[slot] < in->n_tokens);
    return (double)(in->n_tokens - in->positions[slot]);
}

static void read_scores(const struct sl_score_input *in, float *scores) {
    in->ops->read_state(in->kv, 0, scores);
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        scores[j] = (float)((double)scores[j] / n_queries(in, j));
    }
}

void sl_score_deviation(const struct sl_score_input *in, float *deviations) {
    float *sums = in->work;
    in->ops->read_state(in->kv, 0, sums);
    in->ops->read_state(in->kv, 1, deviations);
    for (uint32_t j = 0; j < in->kv->n_slots; j++) {
        double mean = (double)sums[j] / n_queries(in, j), square = (double)deviations[j] / n_queries(in, j);
        deviations[j] = (float)sqrt(fmax(square - mean * mean, 0)); // rounding can make the difference negative
    }
}

const struct sl_score_method sl_score_mas = {.accumulate = accumulate, .read = read_scores};
