// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: aas, accumulated attention: H2O (Zhang et al., Heavy-Hitter Oracle, algorithm 1).
 *
 *     score_j = sum over all rows i so far of abar[i][j], over the cache as it was
 */
#include "engine/compress/evict/scores/score.h"

static void accumulate(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_attend *attend) {
    ops->fold(stream, attend, 0, &(struct sl_fold){.sum = 0, .square = -1, .above = -1});
}

const struct sl_score_method sl_score_aas = {.accumulate = accumulate, .read = sl_score_of_state};
