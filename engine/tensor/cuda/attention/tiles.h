// SPDX-License-Identifier: Apache-2.0
// Purpose: rows of K and V as f32 in shared memory, and which of them a query sees, for all kernels of attention.
#pragma once

#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/pages.h"

namespace gpu {

// Returns the first slot whose position is above positions[row] - window.
GPU_DEVICE uint32_t first_seen(const gpu_attend *call, const gpu_head *h, int64_t window, int row) {
    uint32_t low = 0, high = window > 0 ? h->n_slots : 0;
    int64_t above = window > 0 ? call->positions[row] - window : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (position_of(h, middle) > above) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Returns the distance of a tile's rows, chosen so that lanes that read one row each use different banks.
GPU_DEVICE int pitch_of(int head_dim) {
    return head_dim + 4;
}

// Returns the slots of a tile; shared memory holds no more slots of long rows.
GPU_HOST_DEVICE uint32_t tile_slots(int head_dim) {
    return head_dim <= 128 ? 64 : 32;
}

// Loads n slots as f32: slots[j], or first + j.
GPU_DEVICE void load_tile(const gpu_head *h, const uint32_t *slots, uint32_t first, uint32_t n, bool keys,
                          float *tile) {
    uint32_t units = (uint32_t)h->work.head_dim / 8;
    for (uint32_t u = threadIdx.x; u < n * units; u += blockDim.x) {
        uint32_t j = u / units, slot = slots != nullptr ? slots[j] : first + j;
        const sl_page_layout *layout = layout_of(h, slot / SL_PAGE_SLOTS);
        int c = (int)(u % units) * 8;
        float x[8];
        if (keys) {
            read_k8(layout, page_of(h, slot), slot % SL_PAGE_SLOTS, c, x);
        } else {
            read_v8(layout, page_of(h, slot), slot % SL_PAGE_SLOTS, c, x);
        }
        float4 *to = (float4 *)(tile + (int)j * pitch_of(h->work.head_dim) + c);
        to[0] = {x[0], x[1], x[2], x[3]};
        to[1] = {x[4], x[5], x[6], x[7]};
    }
}

// Rotates vector j, `pitch` floats after the previous one, by the angles of slots[j], or of first + j.
GPU_DEVICE void rotate_tile(const gpu_attention &shape, float *x, int pitch, uint32_t n, const uint32_t *slots,
                            uint32_t first) {
    uint32_t half = (uint32_t)shape.rotary_dim / 2;
    for (uint32_t u = threadIdx.x; u < n * half; u += blockDim.x) {
        uint32_t j = u / half, i = u % half;
        size_t at = (size_t)(slots != nullptr ? slots[j] : first + j) * half + i;
        float *vector = x + (int)j * pitch, a = vector[i], b = vector[i + half];
        vector[i] = a * shape.slot_cosines[at] - b * shape.slot_sines[at];
        vector[i + half] = b * shape.slot_cosines[at] + a * shape.slot_sines[at];
    }
}

} // namespace gpu
