// SPDX-License-Identifier: Apache-2.0
// Purpose: what a loaded model tells about itself. See model.h.
#include "engine/model/model_internal.h"

const struct sl_model_config *sl_model_get_config(const struct sl_model *model) {
    return &model->config;
}

const struct sl_rope *sl_model_get_rope(const struct sl_model *model, int rope_set) {
    return &model->ropes[rope_set];
}

size_t sl_model_weight_bytes(const struct sl_model *model) {
    return model->weight_bytes;
}

size_t sl_model_memory_bytes(const struct sl_model *model) {
    return model->memory_bytes;
}

size_t sl_model_embedding_bytes(const struct sl_model *model) {
    return model->embedding_bytes;
}

int64_t sl_model_layer_weights(const struct sl_model *model) {
    int64_t weights = 0;
    for (int l = 0; l < model->config.n_layers; l++) {
        const struct sl_model_layer *layer = &model->layers[l];
        const struct sl_matrix *matrices[] = {&layer->qkv, &layer->o, &layer->up, &layer->down};
        for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
            weights += matrices[i]->n * matrices[i]->k;
        }
    }
    return weights;
}
