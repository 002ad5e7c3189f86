// SPDX-License-Identifier: Apache-2.0
// Purpose: copies columns of activations between a rank's replica and the parts that ranks exchange (struct
//         sl_columns).
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/dense/weights.h"

constexpr uint32_t THREADS = 256;

// blockIdx: columns, row.
template <bool BF16>
static __global__ void __launch_bounds__(THREADS)
    put_columns(const float *x, int64_t stride, uint32_t first, uint32_t width, char *part) {
    x += blockIdx.y * stride + first;
    FOR_SLOTS(j, width) {
        if (BF16) {
            ((uint16_t *)part)[(size_t)blockIdx.y * width + j] = gpu::f32_to_bf16(x[j]);
        } else {
            ((float *)part)[(size_t)blockIdx.y * width + j] = x[j];
        }
    }
}

// blockIdx: the n columns of all parts, row.
template <bool BF16>
static __global__ void __launch_bounds__(THREADS) take_columns(sl_columns columns, uint32_t n, int rank) {
    float *x = columns.x + blockIdx.y * columns.stride;
    FOR_SLOTS(j, n) {
        int r = 0;
        uint32_t first = 0, end = (uint32_t)columns.bounds[1];
        GPU_UNROLL // otherwise indexed arrays would be in memory
            for (int i = 1; i < SL_MAX_RANKS; i++) {
            if (i < columns.n_parts && j >= (uint32_t)columns.bounds[i]) {
                r = i;
                first = (uint32_t)columns.bounds[i];
                end = (uint32_t)columns.bounds[i + 1];
            }
        }
        if (r != rank) {
            const char *part = (const char *)columns.parts + (size_t)r * columns.part_bytes;
            size_t at = (size_t)blockIdx.y * (end - first) + (j - first);
            x[j] = BF16 ? gpu::bf16_to_f32(((const uint16_t *)part)[at]) : ((const float *)part)[at];
        }
    }
}

void sl_gpu_put_columns(struct gpu_queue *queue, const struct sl_columns *columns, int rank) {
    uint32_t first = (uint32_t)columns->bounds[rank], width = (uint32_t)columns->bounds[rank + 1] - first;
    char *part = (char *)columns->parts + (size_t)rank * columns->part_bytes;
    dim3 grid = gpu::grid_of(width, (int)columns->m);
    if (width == 0 || columns->m == 0) {
        return;
    }
    if (columns->bf16) {
        GPU_LAUNCH(put_columns<true>, grid, THREADS, 0, queue, columns->x, columns->stride, first, width, part);
    } else {
        GPU_LAUNCH(put_columns<false>, grid, THREADS, 0, queue, columns->x, columns->stride, first, width, part);
    }
}

void sl_gpu_take_columns(struct gpu_queue *queue, const struct sl_columns *columns, int rank) {
    uint32_t n = (uint32_t)columns->bounds[columns->n_parts];
    dim3 grid = gpu::grid_of(n, (int)columns->m);
    if (columns->m == 0) {
        return;
    }
    if (columns->bf16) {
        GPU_LAUNCH(take_columns<true>, grid, THREADS, 0, queue, *columns, n, rank);
    } else {
        GPU_LAUNCH(take_columns<false>, grid, THREADS, 0, queue, *columns, n, rank);
    }
}
