// SPDX-License-Identifier: Apache-2.0
// Purpose: the scores of retaining heads for the rows of a pass. retaining.h has the formula.
#include "engine/model/forward_internal.h"

void sl_retaining_score(struct sl_engine *e, int layer, int64_t m) {
    const struct sl_model_config *c = &e->model->config;
    const struct sl_retaining *heads = &e->model->layers[layer].retaining;
    const struct sl_matrix *blocks[] = {&heads->q, &heads->k, &heads->v};
    const float *columns = e->qkv;
    for (int i = 0; i < 3; i++) {
        struct sl_matmul part = {.x = columns,
                                 .x_stride = sl_qkv_dim(c),
                                 .m = m,
                                 .y = e->hidden,
                                 .y_stride = c->retaining_hidden,
                                 .accumulate = i > 0,
                                 .then = i == 2 ? &heads->w2 : NULL,
                                 .scratch = e->products};
        e->model->ops->matmul(e->stream, blocks[i], &part);
        columns += blocks[i]->k;
    }
    sl_engine_multiply(e, &heads->w2, (struct sl_matmul){.x = e->hidden, .m = m, .y = e->scores});
}
