// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: y = act(x W^T + bias), and its gated form, by tensor cores: of bf16 and quantized weights, x rounded to bf16.
 *
 * Design: a block has ROWS by 64 of y, a warp 16 or 32 rows of it; x and W lie in shared memory in two stages of 32 along k, the next
 *         one on its way in registers. Codes are bf16 exactly; 32 of them share a scale, which their sum is multiplied by.
 *         Every element is one chain of m16n8k16 in ascending order of k, in every tile: a row's bits do not depend on how
 *         many rows there are.
 */
#include "tensor/cuda/dense/tensor_cores.h"

#include "tensor/cuda/dense/weights.h"

constexpr uint32_t THREADS = 256, COLUMNS = 64, DEPTH = 32, PITCH = DEPTH + 8; // no two of eight rows in one bank

// Tiles of 16 rows that a warp has, and warps along the rows: four by two of 32 x 32, or eight of 16 x 8.
template <uint32_t ROWS> struct tile {
    static constexpr uint32_t WARPS_DOWN = ROWS > 16 ? ROWS / 32 : 1, WARPS_ACROSS = 8 / WARPS_DOWN;
    static constexpr uint32_t DOWN = ROWS > 16 ? 2 : 1, ACROSS = COLUMNS / WARPS_ACROSS / 8; // of 16 x 8, a warp's
    static constexpr uint32_t X_UNITS = (ROWS * DEPTH / 8 + THREADS - 1) / THREADS; // of eight along k, a thread's
};

// Weights [i, i + 8) of a row as bf16: stored, or their codes.
GPU_DEVICE uint4 read_bf16x8(const gpu_matrix &w, int64_t row, int64_t i) {
    int64_t at = (row * w.pitch + i) / 8;
    if (w.kind == GPU_WEIGHT_BF16) {
        return ((const uint4 *)w.weights)[at];
    }
    uint64_t codes = w.kind == GPU_WEIGHT_INT8 ? ((const uint64_t *)w.weights)[at] : ((const uint32_t *)w.weights)[at];
    uint32_t pairs[4];
    GPU_UNROLL
    for (int e = 0; e < 4; e++) {
        int lo = w.kind == GPU_WEIGHT_INT8 ? (int8_t)(codes >> 16 * e) : (int)(codes >> 8 * e & 15) - 8;
        int hi = w.kind == GPU_WEIGHT_INT8 ? (int8_t)(codes >> (16 * e + 8)) : (int)(codes >> (8 * e + 4) & 15) - 8;
        pairs[e] = gpu::pack_bf16((float)lo, (float)hi);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

GPU_DEVICE uint4 read_x8(const gpu_product &args, int64_t r, int64_t k, int64_t n_k) {
    float x[8] = {};
    if (r < args.m) {
        const float *from = args.x + r * args.x_stride + k;
        if (k + 8 <= n_k && ((uintptr_t)from & 15) == 0) {
            float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
            x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
            x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        } else {
            GPU_UNROLL
            for (int e = 0; e < 8; e++) {
                x[e] = k + e < n_k ? from[e] : 0.0f;
            }
        }
    }
    return {gpu::pack_bf16(x[0], x[1]), gpu::pack_bf16(x[2], x[3]), gpu::pack_bf16(x[4], x[5]),
            gpu::pack_bf16(x[6], x[7])};
}

// What a thread holds of the next stage.
template <uint32_t ROWS, uint32_t SIDES> struct ahead { uint4 x[tile<ROWS>::X_UNITS], w[SIDES]; };

// side 1: the second half of a gated matrix.
template <uint32_t ROWS, uint32_t SIDES>
GPU_DEVICE void fetch(const gpu_matrix &w, const gpu_product &args, int64_t n_columns, int64_t k0,
                      ahead<ROWS, SIDES> &next) {
    GPU_UNROLL
    for (uint32_t i = 0; i < tile<ROWS>::X_UNITS; i++) {
        uint32_t u = threadIdx.x + i * THREADS;
        if (u < ROWS * DEPTH / 8) {
            next.x[i] = read_x8(args, (int64_t)blockIdx.y * ROWS + u / 4, k0 + u % 4 * 8, w.k);
        }
    }
    int64_t j = (int64_t)blockIdx.x * COLUMNS + threadIdx.x / 4;
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        const uint4 none = {0, 0, 0, 0};
        next.w[side] = j < n_columns ? read_bf16x8(w, j + side * n_columns, k0 + threadIdx.x % 4 * 8) : none;
    }
}

template <uint32_t ROWS, uint32_t SIDES> struct stage { uint16_t x[ROWS][PITCH], w[SIDES][COLUMNS][PITCH]; };

template <uint32_t ROWS, uint32_t SIDES> GPU_DEVICE void put(const ahead<ROWS, SIDES> &next, stage<ROWS, SIDES> *to) {
    GPU_UNROLL
    for (uint32_t i = 0; i < tile<ROWS>::X_UNITS; i++) {
        uint32_t u = threadIdx.x + i * THREADS;
        if (u < ROWS * DEPTH / 8) {
            *(uint4 *)&to->x[u / 4][u % 4 * 8] = next.x[i];
        }
    }
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        *(uint4 *)&to->w[side][threadIdx.x / 4][threadIdx.x % 4 * 8] = next.w[side];
    }
}

// Column of y of element e of a warp's tile.
template <uint32_t ROWS> GPU_DEVICE uint32_t column_of(uint32_t across, uint32_t e) {
    uint32_t warp = threadIdx.x / 32 % tile<ROWS>::WARPS_ACROSS, lane = threadIdx.x % 32;
    return (warp * tile<ROWS>::ACROSS + across) * 8 + lane % 4 * 2 + e % 2;
}

template <uint32_t ROWS> GPU_DEVICE uint32_t row_of(uint32_t down, uint32_t e) {
    uint32_t warp = threadIdx.x / 32 / tile<ROWS>::WARPS_ACROSS, lane = threadIdx.x % 32;
    return (warp * tile<ROWS>::DOWN + down) * 16 + lane / 4 + e / 2 * 8;
}

// sums += x W^T over a stage; of codes times the scale of their column.
template <uint32_t ROWS, uint32_t SIDES, bool CODES>
GPU_DEVICE void multiply(const stage<ROWS, SIDES> *from, const gpu_matrix &w, int64_t n_columns, int64_t k0,
                         float (&sums)[SIDES][tile<ROWS>::DOWN][tile<ROWS>::ACROSS][4]) {
    typedef tile<ROWS> T;
    uint32_t lane = threadIdx.x % 32, down0 = threadIdx.x / 32 / T::WARPS_ACROSS * T::DOWN * 16;
    uint32_t across0 = threadIdx.x / 32 % T::WARPS_ACROSS * T::ACROSS * 8;
    uint32_t a[DEPTH / 16][T::DOWN][4];
    GPU_UNROLL
    for (uint32_t step = 0; step < DEPTH / 16; step++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < T::DOWN; i++) {
            gpu::ldmatrix_x4(a[step][i], &from->x[down0 + 16 * i + lane % 16][16 * step + lane / 16 * 8]);
        }
    }
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        GPU_UNROLL
        for (uint32_t j = 0; j < T::ACROSS; j++) {
            uint32_t b[4]; // all of the depth: two operands
            gpu::ldmatrix_x4(b, &from->w[side][across0 + 8 * j + lane % 8][lane / 8 * 8]);
            const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            float scales[2] = {1.0f, 1.0f};
            GPU_UNROLL
            for (uint32_t e = 0; CODES && e < 2; e++) {
                int64_t column = (int64_t)blockIdx.x * COLUMNS + column_of<ROWS>(j, e);
                scales[e] = column < n_columns
                                ? gpu::f16_to_f32(w.scales[((column + side * n_columns) * w.pitch + k0) / 32])
                                : 0.0f;
            }
            GPU_UNROLL
            for (uint32_t i = 0; i < T::DOWN; i++) {
                float(&sum)[4] = sums[side][i][j];
                if (CODES) {
                    float part[4] = {};
                    gpu::mma_bf16(part, a[0][i], first);
                    gpu::mma_bf16(part, a[1][i], second);
                    GPU_UNROLL
                    for (uint32_t e = 0; e < 4; e++) {
                        sum[e] += scales[e % 2] * part[e];
                    }
                } else {
                    gpu::mma_bf16(sum, a[0][i], first);
                    gpu::mma_bf16(sum, a[1][i], second);
                }
            }
        }
    }
}

// blockIdx: tiles of columns, of rows.
template <uint32_t ROWS, uint32_t SIDES, bool CODES>
static __global__ void __launch_bounds__(THREADS) matmul(gpu_matrix w, gpu_product args, int64_t n_columns) {
    typedef tile<ROWS> T;
    __shared__ __attribute__((aligned(16))) stage<ROWS, SIDES> stages[2];
    float sums[SIDES][T::DOWN][T::ACROSS][4] = {};
    ahead<ROWS, SIDES> next;
    GPU_UNROLL
    for (uint32_t i = 0; i < T::DOWN * T::ACROSS * 4 && args.accumulate; i++) {
        int64_t r = (int64_t)blockIdx.y * ROWS + row_of<ROWS>(i / 4 / T::ACROSS, i % 4);
        int64_t j = (int64_t)blockIdx.x * COLUMNS + column_of<ROWS>(i / 4 % T::ACROSS, i % 4);
        if (r < args.m && j < n_columns) {
            sums[0][i / 4 / T::ACROSS][i / 4 % T::ACROSS][i % 4] = args.y[r * args.y_stride + j];
        }
    }
    fetch<ROWS, SIDES>(w, args, n_columns, 0, next);
    put<ROWS, SIDES>(next, &stages[0]);
    __syncthreads();
    for (int64_t k0 = 0; k0 < w.k; k0 += DEPTH) {
        uint32_t now = (uint32_t)(k0 / DEPTH % 2);
        if (k0 + DEPTH < w.k) {
            fetch<ROWS, SIDES>(w, args, n_columns, k0 + DEPTH, next);
        }
        multiply<ROWS, SIDES, CODES>(&stages[now], w, n_columns, k0, sums);
        if (k0 + DEPTH < w.k) {
            put<ROWS, SIDES>(next, &stages[now ^ 1]); // whose readers came to the barrier before
        }
        __syncthreads();
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < T::DOWN * T::ACROSS * 4; i++) {
        uint32_t down = i / 4 / T::ACROSS, across = i / 4 % T::ACROSS, e = i % 4;
        int64_t r = (int64_t)blockIdx.y * ROWS + row_of<ROWS>(down, e);
        int64_t j = (int64_t)blockIdx.x * COLUMNS + column_of<ROWS>(across, e);
        if (r < args.m && j < n_columns) {
            float value = sums[0][down][across][e] + (w.bias != nullptr ? w.bias[j] : 0.0f);
            value = gpu::activate(w.activation, value);
            if (SIDES > 1) {
                value *= sums[SIDES - 1][down][across][e] + (w.bias != nullptr ? w.bias[w.up_bias + j] : 0.0f);
            }
            args.y[r * args.y_stride + j] = value;
        }
    }
}

template <uint32_t ROWS, uint32_t SIDES>
static void launch(struct gpu_queue *queue, const gpu_matrix &w, const gpu_product &args, int64_t n_columns) {
    dim3 grid((unsigned)((n_columns + COLUMNS - 1) / COLUMNS), (unsigned)((args.m + ROWS - 1) / ROWS));
    if (w.kind == GPU_WEIGHT_BF16) {
        GPU_LAUNCH((matmul<ROWS, SIDES, false>), grid, THREADS, 0, queue, w, args, n_columns);
    } else {
        GPU_LAUNCH((matmul<ROWS, SIDES, true>), grid, THREADS, 0, queue, w, args, n_columns);
    }
}

void sl_gpu_matmul_tensor_cores(struct gpu_queue *queue, const struct gpu_matrix *w, const struct gpu_product *args,
                                int64_t n_columns) {
    if (w->gated && args->m <= 16) {
        launch<16, 2>(queue, *w, *args, n_columns);
    } else if (w->gated) {
        launch<128, 2>(queue, *w, *args, n_columns);
    } else if (args->m <= 16) {
        launch<16, 1>(queue, *w, *args, n_columns);
    } else {
        launch<128, 1>(queue, *w, *args, n_columns);
    }
}
