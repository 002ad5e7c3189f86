// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: aqas, accumulated quantized attention: ScissorHands (Liu et al.) as RoCo's paper describes it.
 *
 *     score_j = number of rows i with abar[i][j] > 1 / (slots that i sees)
 *
 * Counts are small, so many are equal; of equal ones the oldest slot is evicted.
 */
#include "engine/compress/evict/scores/score.h"

static const struct sl_fold counts = {.sum = -1, .square = -1, .above = 0};

const struct sl_score_method sl_score_aqas = {.fold = &counts, .read = sl_score_of_state};
