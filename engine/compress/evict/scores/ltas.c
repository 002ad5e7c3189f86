// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ltas, attention of the last token: TOVA (Oren et al., Transformers are Multi-State RNNs).
 *
 *     score_j = abar[last row][j]
 */
#include "engine/compress/evict/scores/score.h"

const struct sl_score_method sl_score_ltas = {.read = sl_score_of_rows};
