// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: numbers for the offloaded KV heads, and which store holds which of them.
 *
 * Vocabulary: offloaded head   one KV head of one offloaded layer. Offloaded heads are numbered layer by layer over the
 *                              offloaded layers alone, so that a layer's offloaded heads are adjacent
 *             share            adjacent offloaded heads of a session that one kvstore holds; the shares of a session
 *                              cover all of its offloaded heads, `replicas` times
 */
#pragma once

#include "engine/compress/recipe/recipe.h"

struct sl_offloaded_heads {
    int n_layers;                    // offloaded
    int n_heads;                     // KV heads a layer
    int16_t layers[SL_MAX_LAYERS];   // [n_layers] ascending: the layer of offloaded head l is layers[l / n_heads]
    int16_t index_of[SL_MAX_LAYERS]; // of a layer among the offloaded ones; -1: resident
};

void sl_offloaded_heads_init(struct sl_offloaded_heads *offloaded_heads, const struct sl_layers *offload,
                             const struct sl_kv_geometry *geometry);

static inline int sl_offloaded_heads_count(const struct sl_offloaded_heads *offloaded_heads) {
    return offloaded_heads->n_layers * offloaded_heads->n_heads;
}
// Returns the offloaded head of head 0 of `layer`, which must be offloaded.
static inline int sl_offloaded_heads_first(const struct sl_offloaded_heads *offloaded_heads, int layer) {
    return offloaded_heads->index_of[layer] * offloaded_heads->n_heads;
}

#define SL_MAX_SHARES 64
