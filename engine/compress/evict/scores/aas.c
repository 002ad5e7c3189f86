// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: aas, accumulated attention: H2O (Zhang et al., Heavy-Hitter Oracle, algorithm 1).
 *
 *     score_j = sum over all rows i so far of abar[i][j], over the cache as it was
 */
#include "engine/compress/evict/scores/score.h"

static const struct sl_fold sums = {.sum = 0, .square = -1, .above = -1};

const struct sl_score_method sl_score_aas = {.fold = &sums, .read = sl_score_of_state};
