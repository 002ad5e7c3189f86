// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: mas, mean attention: RoCo (Ren and Zhu, On the Efficacy of Eviction Policy), with the deviation that its
 *          scope uses to protect slots.
 *
 *     score_j     = s_j / n_j                        s_j: sum over rows so far of abar[i][j], q_j: of its square
 *     deviation_j = sqrt(q_j / n_j - (s_j / n_j)^2)  n_j: queries that saw slot j, its own included
 *
 * n_j is not stored: it equals the number of tokens from slot j's own on.
 */
#include "engine/compress/evict/scores/score.h"

static const struct sl_fold sums_and_squares = {.sum = 0, .square = 1, .above = -1};

static void read_scores(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->mean_state(in->stream, in->heads, in->n_tokens, scores, (struct sl_vectors){0});
}

void sl_score_deviation(const struct sl_score_input *in, struct sl_vectors deviations) {
    in->ops->mean_state(in->stream, in->heads, in->n_tokens, (struct sl_vectors){0}, deviations);
}

const struct sl_score_method sl_score_mas = {.fold = &sums_and_squares, .read = read_scores};
