// SPDX-License-Identifier: Apache-2.0
// Purpose: the passes before and after a product: convert x to bf16, and take a library's sums through bias, activation
// and gate.
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/dense/tensor_cores.h"
#include "engine/tensor/cuda/dense/units.h"

constexpr uint32_t THREADS = 256;

// blockIdx: groups of eight of a row, row.
static __global__ void __launch_bounds__(THREADS)
    round_rows(const float *x, int64_t x_stride, uint32_t k, uint32_t pitch, uint4 *out) {
    x += blockIdx.y * x_stride;
    out += blockIdx.y * (size_t)(pitch / 8);
    FOR_SLOTS(i, pitch / 8) {
        out[i] = gpu::round8(x, 8 * i, k);
    }
}

// Does the same; each group of eight is in the order of a kind's pairs.
template <int KIND>
static __global__ void __launch_bounds__(THREADS)
    pair_rows(const float *x, int64_t x_stride, uint32_t k, uint32_t pitch, uint4 *out) {
    x += blockIdx.y * x_stride;
    out += blockIdx.y * (size_t)(pitch / 8);
    FOR_SLOTS(i, pitch / 8) {
        float eight[8];
        gpu::read8(x, 8 * i, k, eight);
        out[i] = gpu::pairs_of<KIND>(eight);
    }
}

// blockIdx: columns of y, row.
template <uint32_t SIDES>
static __global__ void __launch_bounds__(THREADS)
    finish_parts(gpu_matrix w, const float *sums, uint32_t n_parts, sl_matmul args, uint32_t n_columns) {
    int64_t pitch = (int64_t)n_columns * SIDES;
    float *y = args.y + blockIdx.y * args.y_stride;
    sums += blockIdx.y * pitch;
    FOR_SLOTS(j, n_columns) {
        float sum[SIDES];
        GPU_UNROLL
        for (uint32_t side = 0; side < SIDES; side++) {
            const float *of = sums + side * n_columns + j;
            sum[side] = of[0];
            for (uint32_t p = 1; p < n_parts; p++) {
                sum[side] += of[p * args.m * pitch];
            }
        }
        y[j] = gpu::finished<SIDES>(w, j, sum[0] + (args.accumulate ? y[j] : 0.0f), sum[SIDES - 1]);
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
                        const struct sl_matmul *args) {
    if (args->m > 0) {
        sl_gpu_finish_parts(queue, w, sums, 1, args, w->gated ? w->n / 2 : w->n);
    }
}

template <int KIND> static void pair_all(struct gpu_queue *queue, const gpu_matrix &w, const sl_matmul &args) {
    GPU_LAUNCH(pair_rows<KIND>, gpu::grid_of((uint32_t)w.pitch / 8, (int)args.m), THREADS, 0, queue, args.x,
               args.x_stride, (uint32_t)w.k, (uint32_t)w.pitch, (uint4 *)args.scratch);
}

void sl_gpu_pair_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args) {
    gpu::by_kind(*w, [&](auto kind) { pair_all<decltype(kind)::value>(queue, *w, *args); });
}

void sl_gpu_finish_parts(struct gpu_queue *queue, const struct gpu_matrix *w, const float *sums, uint32_t n_parts,
                         const struct sl_matmul *args, int64_t n_columns) {
    dim3 grid = gpu::grid_of((uint32_t)n_columns, (int)args->m);
    if (w->gated) {
        GPU_LAUNCH(finish_parts<2>, grid, THREADS, 0, queue, *w, sums, n_parts, *args, (uint32_t)n_columns);
    } else {
        GPU_LAUNCH(finish_parts<1>, grid, THREADS, 0, queue, *w, sums, n_parts, *args, (uint32_t)n_columns);
    }
}
