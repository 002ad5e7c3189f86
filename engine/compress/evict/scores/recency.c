// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recency: keeps the newest slots. StreamingLLM (Xiao et al., Efficient Streaming Language Models with
 *          Attention Sinks, section 3.2) is recency with protected sinks and slot positions.
 *
 *     score_j = j
 */
#include "engine/compress/evict/scores/score.h"

static void read_scores(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->recency(in->stream, in->heads, scores);
}

const struct sl_score_method sl_score_recency = {.read = read_scores};
