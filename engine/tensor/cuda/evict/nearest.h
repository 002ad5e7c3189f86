// SPDX-License-Identifier: Apache-2.0
// Purpose: a call of nearest and merge as kernels see it: merge.cu, nearest_tensor.cu.
#pragma once

#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/pages.h"

struct merge_call {
    const gpu_head *heads;
    const uint32_t *kept;
    sl_nearest nearest;
};

// Returns how many slots may be merged: a head that keeps nothing has no target.
GPU_DEVICE uint32_t n_evicted(const merge_call &c, uint32_t h) {
    uint32_t n = c.heads[h].n_slots, kept = c.kept[h];
    return kept > 0 && kept < n ? n - kept : 0;
}

struct best { // the best match of a row
    float value;
    uint32_t at; // in keep[]
};

// Returns 1 / |x|; 0 for a zero key and for NaN, whose cosine is then 0.
GPU_DEVICE float inverse_root(float square) {
    return square > 0.0f ? 1.0f / sqrtf(square) : 0.0f;
}

// Computes nearest by tensor cores: keys of f16 and bf16, the head sizes of attention. Returns false for other calls.
// norms: [heads.n][heads.most_slots], work.
bool gpu_nearest_tensor(struct gpu_queue *queue, const merge_call &c, struct gpu_heads heads, sl_lists keep,
                        float *norms);
