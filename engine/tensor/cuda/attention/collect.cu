// SPDX-License-Identifier: Apache-2.0
// Purpose: copies pieces of memory, in order, to adjacent memory: pages to be sent. A block copies a share of a piece,
// a thread 16 bytes at a time.
#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/gpu.h"

constexpr uint32_t THREADS = 256, UNROLL = 4;

static __global__ void __launch_bounds__(THREADS) collect(const gpu_share *shares, char *to) {
    gpu_share share = shares[blockIdx.x];
    const uint4 *from = (const uint4 *)share.from;
    uint4 *out = (uint4 *)(to + share.offset);
    uint32_t n = share.bytes / (uint32_t)sizeof(uint4);
    for (uint32_t first = threadIdx.x; first < n; first += THREADS * UNROLL) {
        uint4 held[UNROLL];
        GPU_UNROLL
        for (uint32_t k = 0; k < UNROLL; k++) {
            uint32_t i = first + k * THREADS;
            uint4 x = from[i < n ? i : first]; // no branch between the loads
            held[k] = {x.x, x.y, x.z, x.w};
        }
        GPU_UNROLL
        for (uint32_t k = 0; k < UNROLL; k++) {
            uint32_t i = first + k * THREADS;
            if (i < n) {
                out[i] = held[k];
            }
        }
    }
}

void sl_gpu_collect(struct gpu_queue *queue, const struct gpu_share *shares, uint32_t n, void *to) {
    GPU_LAUNCH(collect, n, THREADS, 0, queue, shares, (char *)to);
}
