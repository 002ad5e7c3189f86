// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: aqas, accumulated quantized attention: ScissorHands (Liu et al.) as RoCo's paper describes it.
 *
 *     score_j = number of rows i with abar[i][j] > 1 / (slots that i sees)
 *
 * Counts are small, so many are equal; of equal ones the oldest slot is evicted.
 */
#include "engine/compress/evict/scores/score.h"

static void accumulate(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_attend *attend) {
    ops->fold(stream, attend, 0, &(struct sl_fold){.sum = -1, .square = -1, .above = 0});
}

const struct sl_score_method sl_score_aqas = {.accumulate = accumulate, .read = sl_score_of_state};
