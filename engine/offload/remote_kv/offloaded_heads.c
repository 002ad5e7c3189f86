// SPDX-License-Identifier: Apache-2.0
#include "engine/offload/remote_kv/offloaded_heads.h"

void sl_offloaded_heads_init(struct sl_offloaded_heads *offloaded_heads, const struct sl_layers *offload,
                             const struct sl_kv_geometry *geometry) {
    offloaded_heads->n_layers = 0;
    offloaded_heads->n_heads = geometry->n_kv_heads;
    for (int l = 0; l < SL_MAX_LAYERS; l++) {
        bool is_offloaded = l < geometry->n_layers && sl_layers_has(offload, l);
        offloaded_heads->index_of[l] = is_offloaded ? (int16_t)offloaded_heads->n_layers : -1;
        if (is_offloaded) {
            offloaded_heads->layers[offloaded_heads->n_layers++] = (int16_t)l;
        }
    }
}
