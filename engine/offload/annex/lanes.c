// SPDX-License-Identifier: Apache-2.0
// Purpose: maps lanes to layers.
#include "engine/offload/annex/lanes.h"

void sl_lanes_init(struct sl_lanes *lanes, const struct sl_layers *offload, const struct sl_kv_geometry *geometry) {
    lanes->n_layers = 0;
    lanes->n_heads = geometry->n_kv_heads;
    for (int l = 0; l < SL_MAX_LAYERS; l++) {
        bool is_offloaded = l < geometry->n_layers && sl_layers_has(offload, l);
        lanes->index_of[l] = is_offloaded ? (int16_t)lanes->n_layers : -1;
        if (is_offloaded) {
            lanes->layers[lanes->n_layers++] = (int16_t)l;
        }
    }
}
