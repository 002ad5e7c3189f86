// SPDX-License-Identifier: Apache-2.0
// Purpose: what the threads of a block compute together, and other functions that kernels of several files need.
// blockDim.x is a multiple of 32.
#pragma once

#include "engine/tensor/cuda/gpu.h"

namespace gpu {

// Returns the sum over the threads of a block, always in one order, to all of them. scratch: [32], shared, which may be
// reused after the call.
template <class T> GPU_DEVICE T block_sum(T x, T *scratch) {
    for (int i = 16; i > 0; i /= 2) {
        x += __shfl_xor_sync(~0u, x, i);
    }
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
        scratch[warp] = x;
    }
    __syncthreads();
    x = lane < blockDim.x / 32 ? scratch[lane] : (T)0;
    for (int i = 16; i > 0; i /= 2) {
        x += __shfl_xor_sync(~0u, x, i);
    }
    __syncthreads();
    return x;
}

// Returns the sum over the threads before this one, and over all in *sum_out. scratch: as above.
GPU_DEVICE uint32_t block_before(uint32_t x, uint32_t *scratch, uint32_t *sum_out) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = x;
    for (int i = 1; i < 32; i *= 2) {
        uint32_t below = __shfl_up_sync(~0u, sum, i);
        sum += lane >= (uint32_t)i ? below : 0;
    }
    if (lane == 31) {
        scratch[warp] = sum;
    }
    __syncthreads();
    uint32_t of_warps = lane < blockDim.x / 32 ? scratch[lane] : 0;
    for (int i = 1; i < 32; i *= 2) {
        uint32_t below = __shfl_up_sync(~0u, of_warps, i);
        of_warps += lane >= (uint32_t)i ? below : 0;
    }
    *sum_out = __shfl_sync(~0u, of_warps, 31);
    uint32_t before = __shfl_sync(~0u, of_warps, warp > 0 ? (int)warp - 1 : 0);
    __syncthreads();
    return (warp > 0 ? before : 0) + sum - x;
}

// Returns bits whose unsigned order is the order of scores: NaN is 0, -0 is +0, and only NaN is below -infinity.
GPU_DEVICE uint32_t score_key(float score) {
    uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
    return score != score ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Returns the blocks of a row for n threads of 256, at most as many as keep a GPU busy; each block then takes more
// elements.
static inline dim3 grid_of(uint32_t n, int rows) {
    uint32_t blocks = (n + 255) / 256;
    return dim3(blocks < 1 ? 1 : blocks > 64 ? 64 : blocks, (unsigned)rows);
}

// Returns how many of keep[n], which ascends, are below slot j.
GPU_DEVICE uint32_t kept_below(const uint32_t *keep, uint32_t n, uint32_t j) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (keep[middle] < j) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

} // namespace gpu

// Loops over the slots j < n that belong to this thread of a row of blocks.
#define FOR_SLOTS(j, n) for (uint32_t j = blockIdx.x * blockDim.x + threadIdx.x; j < (n); j += gridDim.x * blockDim.x)
