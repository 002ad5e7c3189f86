// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: random: the baseline for every other score.
 *
 *     score_j = a number in [0, 1) that depends on seed, layer, KV head and original position, and on nothing else:
 *               so it needs no state, and evicts the same slots with any chunks
 */
#include "engine/compress/evict/scores/score.h"

static void read_scores(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->chance(in->stream, in->heads, in->recipe->seed, in->layer, in->offset, scores);
}

const struct sl_score_method sl_score_random = {.read = read_scores};
