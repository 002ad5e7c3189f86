// SPDX-License-Identifier: Apache-2.0
// Purpose: see score.h.
#include "compress/evict/scores/score.h"

#include <assert.h>

const struct sl_score_method sl_score_none = {.read = NULL};

static const struct sl_score_method *const methods[] = {
#define X(NAME, word, ...) [SL_SCORE_##NAME] = &sl_score_##word,
    SL_SCORE_MAP(X)
#undef X
};

void sl_score_of_state(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->read_state(in->team, in->heads, 0, scores);
}

void sl_score_of_rows(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->mean_group(in->team, in->heads, in->group, in->weights, scores);
}

const struct sl_score_method *sl_score_method(enum sl_score score) {
    assert((int)score >= 0 && score < SL_N_SCORES);
    return methods[score];
}
