// SPDX-License-Identifier: Apache-2.0
// Purpose: ranking that several scores share: by a plane of the state, or by the attention of the rows at hand.
#include "engine/compress/evict/scores/score.h"

void sl_score_of_state(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->read_state(in->stream, in->heads, 0, scores);
}

void sl_score_of_rows(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->mean_group(in->stream, in->heads, in->group, in->weights, scores);
}
