// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reconstruct: context reconstruction (Kim et al., KVzip, equation 2 and algorithm 1).
 *
 *     score_j = max over the rows i that repeat the prompt, and over the query heads of the KV head, of a[i][j]
 *     reconstruct_sum: the sum over those rows of abar[i][j]
 *
 * The rows are those of the second reading (engine/runner/reader.h), instructions included, as in the authors' code. Their
 * attention is over the whole cache. The authors' code takes it over the first slots, the segment that is repeated, and
 * the rows themselves; the two are the same where one segment holds the prompt.
 */
#include "engine/compress/evict/scores/score.h"

static const struct sl_fold largest = {.sum = 0, .square = -1, .above = -1, .largest = true};
static const struct sl_fold sums = {.sum = 0, .square = -1, .above = -1};

const struct sl_score_method sl_score_reconstruct = {.fold = &largest, .read = sl_score_of_state};
const struct sl_score_method sl_score_reconstruct_sum = {.fold = &sums, .read = sl_score_of_state};
