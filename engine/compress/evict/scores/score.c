// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/evict/scores/score.h"

#include <assert.h>

const struct sl_score_method sl_score_none = {.read = NULL};

static const struct sl_score_method *const methods[] = {
#define X(NAME, word, ...) [SL_SCORE_##NAME] = &sl_score_##word,
    SL_SCORE_MAP(X)
#undef X
};

void sl_score_accumulate(const struct sl_score_method *method, const struct sl_ops *ops, struct sl_stream *stream,
                         const struct sl_attend *attend) {
    if (method->fold != NULL) {
        ops->fold(stream, attend, 0, method->fold);
    }
    if (method->write != NULL) {
        method->write(ops, stream, attend);
    }
}

const struct sl_score_method *sl_score_method(enum sl_score score) {
    assert((int)score >= 0 && score < SL_N_SCORES);
    return methods[score];
}
