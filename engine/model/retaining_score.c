// SPDX-License-Identifier: Apache-2.0
// Purpose: the scores of retaining heads for the rows of a pass. retaining.h has the formula.
#include "engine/model/forward_internal.h"

void sl_retaining_score(struct sl_engine *e, int layer, int64_t m) {
    const struct sl_retaining *heads = &e->model->layers[layer].retaining;
    // a row of qkv is all of a row of W1: q, k and v are adjacent
    const struct sl_matmul hidden = {.x = e->qkv, .m = m, .y = e->hidden, .then = &heads->w2};
    sl_engine_multiply(e, &heads->w1, hidden);
    sl_engine_multiply(e, &heads->w2, (struct sl_matmul){.x = e->hidden, .m = m, .y = e->scores});
}
