// SPDX-License-Identifier: Apache-2.0
// Purpose: a call of stats.cu, which stats_tensor.cu has tensor cores do where they can.
#pragma once

#include "engine/tensor/cuda/attention/tiles.h"

struct stats_call {
    const gpu_attend *call;
    gpu_attention shape;
    int first_row;
    int planes[3]; // of fold
    float *sums;   // of window_sums; NULL: it is fold
    size_t stride;
};

// Of pages of f16, bf16 and codes, keys that are rotated already or by their slots as a whole, and the head sizes that attend_tensor.cu has. False: they cannot.
bool gpu_stats_tensor(struct gpu_queue *queue, const stats_call &c, uint32_t most_slots);
