// SPDX-License-Identifier: Apache-2.0
// Purpose: a call of stats.cu. stats_tensor.cu computes it with tensor cores where it can.
#pragma once

#include "engine/tensor/cuda/attention/tiles.h"

struct stats_call {
    const gpu_attend *call;
    gpu_attention shape;
    int first_row;
    int planes[4]; // for fold; the last is that of the largest weight
    float *sums;   // for window_sums; NULL: the call is fold
    size_t stride;
};

// Computes the call by tensor cores. Covers pages of f16, bf16 and codes, keys that are rotated already or by their
// slots as a whole, and the head sizes of attend_tensor.cu. Returns false for other calls.
bool gpu_stats_tensor(struct gpu_queue *queue, const stats_call &c, uint32_t most_slots);
