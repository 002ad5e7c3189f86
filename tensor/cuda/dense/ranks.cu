// SPDX-License-Identifier: Apache-2.0
// Purpose: out[i] = (x[0][i] + x[1][i]) + .. over what ranks have, each in memory of its own device that this one reads.
#include "tensor/cuda/block.h"
#include "tensor/cuda/dense/launch.h"

constexpr uint32_t THREADS = 256;

static __global__ void __launch_bounds__(THREADS) add_parts(gpu_parts parts, uint32_t n, float *out) {
    FOR_SLOTS(i, n) {
        float sum = parts.x[0][i];
        GPU_UNROLL // or what is indexed would lie in memory
            for (int r = 1; r < GPU_MAX_PARTS; r++) {
            if (r < parts.n) {
                sum += parts.x[r][i];
            }
        }
        out[i] = sum;
    }
}

void sl_gpu_add_parts(struct gpu_queue *queue, const struct gpu_parts *parts, int64_t n, float *out) {
    if (n > 0) {
        GPU_LAUNCH(add_parts, gpu::grid_of((uint32_t)n, 1), THREADS, 0, queue, *parts, (uint32_t)n, out);
    }
}
