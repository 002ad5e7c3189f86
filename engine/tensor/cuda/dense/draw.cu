// SPDX-License-Identifier: Apache-2.0
// Purpose: random weights for benchmarks (engine/tensor/drawn.h), computed where they are used. Exact.
#include "engine/tensor/cuda/gpu.h"

#define SL_DRAWN_FUNCTION GPU_HOST_DEVICE
#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/drawn.h"

constexpr uint32_t THREADS = 256, MOST_BLOCKS = 4096;

// A block takes row blockIdx.x and every gridDim.x-th after it, and writes zeros between k and the pitch.
static __global__ void __launch_bounds__(THREADS)
    draw_rows(int64_t n, int64_t k, int64_t pitch, uint64_t first, uint16_t *weights) {
    for (int64_t row = blockIdx.x; row < n; row += gridDim.x) {
        for (int64_t i = threadIdx.x; i < pitch; i += THREADS) {
            weights[row * pitch + i] = i < k ? sl_drawn_weight(first + (uint64_t)(row * k + i)) : (uint16_t)0;
        }
    }
}

void sl_gpu_draw(struct gpu_queue *queue, const struct gpu_matrix *w, uint64_t first, void *weights_out) {
    unsigned blocks = w->n < MOST_BLOCKS ? (unsigned)w->n : MOST_BLOCKS;
    if (w->n > 0) {
        GPU_LAUNCH(draw_rows, blocks, THREADS, 0, queue, w->n, w->k, w->pitch, first, (uint16_t *)weights_out);
    }
}
