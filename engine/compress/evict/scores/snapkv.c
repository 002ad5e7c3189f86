// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: snapkv: observation window (Li et al., SnapKV).
 *
 *     score_j = mean over the query heads of pool(sum over the window's rows of their attention to j)
 */
#include "engine/compress/evict/scores/score.h"

const struct sl_score_method sl_score_snapkv = {.read = sl_score_of_rows};
