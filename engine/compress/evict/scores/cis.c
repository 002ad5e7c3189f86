// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: cis, causal importance: Locret (Huang et al.).
 *
 *     score_j = output of the layer's retaining head for token j when it was read; it never changes
 */
#include "engine/compress/evict/scores/score.h"

static void write_scores(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_attend *attend) {
    ops->write_state(stream, &attend->heads, 0, attend->m, attend->importance);
}

const struct sl_score_method sl_score_cis = {.write = write_scores, .read = sl_score_of_state};
