// SPDX-License-Identifier: Apache-2.0
// Purpose: what is around a product: x becomes bf16 before it, sums of a library go through bias, activation and gate behind it.
#include "tensor/cuda/block.h"
#include "tensor/cuda/dense/launch.h"
#include "tensor/cuda/dense/weights.h"

constexpr uint32_t THREADS = 256;

// blockIdx: eights of a row, row.
static __global__ void __launch_bounds__(THREADS)
    round_rows(const float *x, int64_t x_stride, uint32_t k, uint32_t pitch, uint4 *out) {
    x += blockIdx.y * x_stride;
    out += blockIdx.y * (size_t)(pitch / 8);
    FOR_SLOTS(i, pitch / 8) {
        out[i] = gpu::round8(x, 8 * i, k);
    }
}

// blockIdx: columns of y, row.
static __global__ void __launch_bounds__(THREADS)
    finish_rows(gpu_matrix w, const float *sums, gpu_product args, uint32_t n_columns) {
    sums += blockIdx.y * (size_t)w.n;
    float *y = args.y + blockIdx.y * args.y_stride;
    FOR_SLOTS(j, n_columns) {
        float value = sums[j] + (args.accumulate ? y[j] : 0.0f) + (w.bias != nullptr ? w.bias[j] : 0.0f);
        value = gpu::activate(w.activation, value);
        if (w.gated) {
            value *= sums[n_columns + j] + (w.bias != nullptr ? w.bias[w.up_bias + j] : 0.0f);
        }
        y[j] = value;
    }
}

void sl_gpu_round_rows(struct gpu_queue *queue, const float *x, int64_t x_stride, int64_t m, int64_t k, int64_t pitch,
                       void *out) {
    if (m > 0) {
        GPU_LAUNCH(round_rows, gpu::grid_of((uint32_t)pitch / 8, (int)m), THREADS, 0, queue, x, x_stride, (uint32_t)k,
                   (uint32_t)pitch, (uint4 *)out);
    }
}

void sl_gpu_finish_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const float *sums,
                        const struct gpu_product *args) {
    uint32_t n_columns = (uint32_t)(w->gated ? w->n / 2 : w->n);
    if (args->m > 0) {
        GPU_LAUNCH(finish_rows, gpu::grid_of(n_columns, (int)args->m), THREADS, 0, queue, *w, sums, *args, n_columns);
    }
}
