// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: numbers for the offloaded KV heads, and which store holds which of them.
 *
 * Vocabulary: lane   one KV head of one offloaded layer. Lanes are numbered layer by layer over the offloaded layers
 *             alone, so that a layer's lanes are adjacent
 *             share  adjacent lanes of a session that one kvstore holds; the shares of a session cover all of its
 *                         lanes, `replicas` times
 */
#pragma once

#include "engine/compress/recipe/recipe.h"

struct sl_lanes {
    int n_layers;                    // offloaded
    int n_heads;                     // KV heads a layer
    int16_t layers[SL_MAX_LAYERS];   // [n_layers] ascending: the layer of lane l is layers[l / n_heads]
    int16_t index_of[SL_MAX_LAYERS]; // of a layer among the offloaded ones; -1: resident
};

void sl_lanes_init(struct sl_lanes *lanes, const struct sl_layers *offload, const struct sl_kv_geometry *geometry);

static inline int sl_lanes_count(const struct sl_lanes *lanes) {
    return lanes->n_layers * lanes->n_heads;
}
// Returns the lane of head 0 of `layer`, which must be offloaded.
static inline int sl_lanes_first(const struct sl_lanes *lanes, int layer) {
    return lanes->index_of[layer] * lanes->n_heads;
}

#define SL_MAX_SHARES 64
