// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: y = act(x W^T + bias), and its gated form, in f32: for f32 and f16 weights, whose other side may not be
 *          rounded. few_rows.cu, some_rows.cu, many_rows.cu and wgmma.cu multiply the others.
 *
 * Design: a block has a tile of y, ROWS by 64. Weights become f32 when they are loaded into shared memory, 32 along k
 *         at a time, which is a group that shares a scale. Every element is one sum in ascending order of k, in both
 *         tiles: a row's bits do not depend on how many rows there are.
 */
#include "engine/tensor/cuda/dense/tensor_cores.h"
#include "engine/tensor/cuda/dense/weights.h"

constexpr uint32_t THREADS = 256, COLUMNS = 64, DEPTH = 32;

// Loads 64 rows of W from row j0 on, transposed; zeros beyond n.
GPU_DEVICE void load_weights(const gpu_matrix &w, int64_t j0, int64_t end, int64_t k0, float (*tile)[COLUMNS + 4]) {
    uint32_t row = threadIdx.x / 4, c = threadIdx.x % 4 * 8;
    float x[8] = {};
    if (j0 + row < end) {
        gpu::read_weights8(w, j0 + row, k0 + c, x);
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++) {
        tile[c + e][row] = x[e];
    }
}

// Thread (x, y): rows y, y + 16, ..; columns 4 x .. + 4.
template <uint32_t EACH>
GPU_DEVICE void add_tile(const float (*rows)[16 * EACH + 4], const float (*columns)[COLUMNS + 4],
                         float (&sums)[EACH][4]) {
    uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (uint32_t k = 0; k < DEPTH; k++) {
        float4 b = *(const float4 *)&columns[k][4 * x];
        GPU_UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            float a = rows[k][y + 16 * i];
            sums[i][0] += a * b.x;
            sums[i][1] += a * b.y;
            sums[i][2] += a * b.z;
            sums[i][3] += a * b.w;
        }
    }
}

// blockIdx: tiles of columns, of rows. The bound of one block lets ptxas take more registers instead of spilling.
template <uint32_t EACH, bool GATED>
static __global__ void __launch_bounds__(THREADS, 1) matmul(gpu_matrix w, sl_matmul args, int64_t n_columns) {
    constexpr uint32_t ROWS = 16 * EACH;
    __shared__ __attribute__((aligned(16))) float rows[DEPTH][ROWS + 4], columns[1 + GATED][DEPTH][COLUMNS + 4];
    uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
    int64_t r0 = (int64_t)blockIdx.y * ROWS, j0 = (int64_t)blockIdx.x * COLUMNS;
    float sums[1 + GATED][EACH][4] = {};
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH * 4 && args.accumulate; i++) {
        int64_t r = r0 + y + 16 * (i / 4), j = j0 + 4 * x + i % 4;
        if (r < args.m && j < n_columns) {
            sums[0][i / 4][i % 4] = args.y[r * args.y_stride + j];
        }
    }
    for (int64_t k0 = 0; k0 < w.k; k0 += DEPTH) {
        for (uint32_t i = threadIdx.x; i < ROWS * DEPTH; i += THREADS) {
            int64_t r = r0 + i / DEPTH, k = k0 + i % DEPTH;
            rows[i % DEPTH][i / DEPTH] = r < args.m && k < w.k ? args.x[r * args.x_stride + k] : 0.0f;
        }
        GPU_UNROLL
        for (uint32_t side = 0; side <= GATED; side++) {
            load_weights(w, j0 + (side ? n_columns : 0), (1 + side) * n_columns, k0, columns[side]);
        }
        __syncthreads();
        GPU_UNROLL
        for (uint32_t side = 0; side <= GATED; side++) {
            add_tile<EACH>(rows, columns[side], sums[side]);
        }
        __syncthreads();
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH * 4; i++) {
        int64_t r = r0 + y + 16 * (i / 4), j = j0 + 4 * x + i % 4;
        if (r < args.m && j < n_columns) {
            float value = sums[0][i / 4][i % 4] + (w.bias != nullptr ? w.bias[j] : 0.0f);
            value = gpu::activate(w.activation, value);
            if (GATED) {
                value *= sums[GATED][i / 4][i % 4] + (w.bias != nullptr ? w.bias[w.up_bias + j] : 0.0f);
            }
            args.y[r * args.y_stride + j] = value;
        }
    }
}

template <uint32_t EACH>
static void launch(struct gpu_queue *queue, const gpu_matrix &w, const sl_matmul &args, int64_t n_columns) {
    dim3 grid((unsigned)((n_columns + COLUMNS - 1) / COLUMNS), (unsigned)((args.m + 16 * EACH - 1) / (16 * EACH)));
    if (w.gated) {
        GPU_LAUNCH((matmul<EACH, true>), grid, THREADS, 0, queue, w, args, n_columns);
    } else {
        GPU_LAUNCH((matmul<EACH, false>), grid, THREADS, 0, queue, w, args, n_columns);
    }
}

static bool is_by_tensor_cores(const struct gpu_matrix *w) {
    return w->kind != GPU_WEIGHT_F32 && w->kind != GPU_WEIGHT_F16;
}

size_t sl_gpu_matmul_work(const struct gpu_matrix *w, int64_t m, bool reading) {
    if (!is_by_tensor_cores(w) || (!reading && m <= GPU_FEW_ROWS)) {
        return 0;
    }
    return reading ? sl_gpu_many_rows_work(w, m) : sl_gpu_some_rows_work(w, m);
}

void sl_gpu_matmul(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args) {
    int64_t n_columns = args->n_columns > 0 ? args->n_columns : w->gated ? w->n / 2 : w->n;
    if (args->m <= 0 || n_columns <= 0) {
        return;
    }
    if (is_by_tensor_cores(w) && args->reading) {
        sl_gpu_matmul_many_rows(queue, w, args, n_columns);
    } else if (is_by_tensor_cores(w) && args->m > GPU_FEW_ROWS) {
        sl_gpu_matmul_some_rows(queue, w, args, n_columns);
    } else if (is_by_tensor_cores(w)) {
        sl_gpu_matmul_few_rows(queue, w, args, n_columns);
    } else if (args->m <= 16) {
        launch<1>(queue, *w, *args, n_columns);
    } else {
        launch<4>(queue, *w, *args, n_columns);
    }
}
