// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: y = act(x W^T + bias), and its gated form, by tensor cores, of up to 16 rows: what is read is the weights.
 *
 * Design: a block has 16 rows by 64 columns of y, a warp 8 columns of it; x and W lie in shared memory in two stages of 32 along k, the
 *         next one on its way in registers. Codes are bf16 exactly; 32 of them share a scale, which their sum is multiplied by.
 */
#include "tensor/cuda/dense/tensor_cores.h"

#include "tensor/cuda/dense/weights.h"

constexpr uint32_t ROWS = GPU_FEW_ROWS, THREADS = 256, COLUMNS = 64, DEPTH = 32;
constexpr uint32_t PITCH = DEPTH + 8; // no two of eight rows in one bank

// Weights [i, i + 8) of a row as bf16: stored, or their codes.
GPU_DEVICE uint4 read_bf16x8(const gpu_matrix &w, int64_t row, int64_t i) {
    int64_t at = (row * w.pitch + i) / 8;
    if (w.kind == GPU_WEIGHT_BF16) {
        return ((const uint4 *)w.weights)[at];
    }
    if (w.kind == GPU_WEIGHT_INT8) {
        uint2 codes = ((const uint2 *)w.weights)[at];
        return gpu::widen8_int8(codes.x, codes.y);
    }
    return gpu::widen8_int4(((const uint32_t *)w.weights)[at]);
}

// What a thread holds of the next stage.
template <uint32_t SIDES> struct ahead { uint4 x, w[SIDES]; };

// side 1: the second half of a gated matrix.
template <uint32_t SIDES>
GPU_DEVICE void fetch(const gpu_matrix &w, const gpu_product &args, int64_t n_columns, int64_t k0, ahead<SIDES> &next) {
    const uint4 none = {0, 0, 0, 0};
    uint32_t row = threadIdx.x / 4, k = threadIdx.x % 4 * 8;
    if (row < ROWS) {
        next.x = row < args.m ? gpu::round8(args.x + row * args.x_stride, k0 + k, w.k) : none;
    }
    int64_t j = (int64_t)blockIdx.x * COLUMNS + row;
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        next.w[side] = j < n_columns ? read_bf16x8(w, j + side * n_columns, k0 + k) : none;
    }
}

template <uint32_t SIDES> struct stage { uint16_t x[ROWS][PITCH], w[SIDES][COLUMNS][PITCH]; };

template <uint32_t SIDES> GPU_DEVICE void put(const ahead<SIDES> &next, stage<SIDES> *to) {
    uint32_t row = threadIdx.x / 4, k = threadIdx.x % 4 * 8;
    if (row < ROWS) {
        *(uint4 *)&to->x[row][k] = next.x;
    }
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        *(uint4 *)&to->w[side][row][k] = next.w[side];
    }
}

// Of element e of a thread's four.
GPU_DEVICE int64_t column_of(uint32_t e) {
    return (int64_t)blockIdx.x * COLUMNS + threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2 + e % 2;
}
GPU_DEVICE int64_t row_of(uint32_t e) {
    return threadIdx.x % 32 / 4 + e / 2 * 8;
}

// sums += x W^T over a stage; of codes times the scale of their column.
template <uint32_t SIDES, bool CODES>
GPU_DEVICE void multiply(const stage<SIDES> *from, const gpu_matrix &w, int64_t n_columns, int64_t k0,
                         float (&sums)[SIDES][4]) {
    uint32_t lane = threadIdx.x % 32;
    uint32_t a[DEPTH / 16][4];
    GPU_UNROLL
    for (uint32_t step = 0; step < DEPTH / 16; step++) {
        gpu::ldmatrix_x4(a[step], &from->x[lane % 16][16 * step + lane / 16 * 8]);
    }
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        uint32_t b[4]; // all of the depth: two operands
        gpu::ldmatrix_x4(b, &from->w[side][threadIdx.x / 32 * 8 + lane % 8][lane / 8 * 8]);
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        float part[4] = {};
        float(&sum)[4] = CODES ? part : sums[side];
        gpu::mma_bf16(sum, a[0], first);
        gpu::mma_bf16(sum, a[1], second);
        GPU_UNROLL
        for (uint32_t e = 0; CODES && e < 4; e++) {
            int64_t j = column_of(e);
            float scale =
                j < n_columns ? gpu::f16_to_f32(w.scales[((j + side * n_columns) * w.pitch + k0) / 32]) : 0.0f;
            sums[side][e] = fmaf(scale, part[e], sums[side][e]);
        }
    }
}

// blockIdx: tiles of columns.
template <uint32_t SIDES, bool CODES>
static __global__ void __launch_bounds__(THREADS) few_rows(gpu_matrix w, gpu_product args, int64_t n_columns) {
    __shared__ __attribute__((aligned(16))) stage<SIDES> stages[2];
    float sums[SIDES][4] = {};
    ahead<SIDES> next;
    fetch<SIDES>(w, args, n_columns, 0, next);
    put<SIDES>(next, &stages[0]);
    __syncthreads();
    for (int64_t k0 = 0; k0 < w.k; k0 += DEPTH) {
        uint32_t now = (uint32_t)(k0 / DEPTH % 2);
        if (k0 + DEPTH < w.k) {
            fetch<SIDES>(w, args, n_columns, k0 + DEPTH, next);
        }
        multiply<SIDES, CODES>(&stages[now], w, n_columns, k0, sums);
        if (k0 + DEPTH < w.k) {
            put<SIDES>(next, &stages[now ^ 1]); // whose readers came to the barrier before
        }
        __syncthreads();
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        int64_t j = column_of(e);
        if (row_of(e) < args.m && j < n_columns) {
            float *y = args.y + row_of(e) * args.y_stride + j;
            *y = gpu::finished<SIDES>(w, j, sums[0][e] + (args.accumulate ? *y : 0.0f), sums[SIDES - 1][e]);
        }
    }
}

template <uint32_t SIDES, bool CODES>
static void launch(struct gpu_queue *queue, const gpu_matrix &w, const gpu_product &args, int64_t n_columns) {
    unsigned grid = (unsigned)((n_columns + COLUMNS - 1) / COLUMNS);
    GPU_LAUNCH((few_rows<SIDES, CODES>), grid, THREADS, 0, queue, w, args, n_columns);
}

void sl_gpu_matmul_few_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct gpu_product *args,
                            int64_t n_columns) {
    bool codes = w->kind != GPU_WEIGHT_BF16;
    if (w->gated) {
        codes ? launch<2, true>(queue, *w, *args, n_columns) : launch<2, false>(queue, *w, *args, n_columns);
    } else {
        codes ? launch<1, true>(queue, *w, *args, n_columns) : launch<1, false>(queue, *w, *args, n_columns);
    }
}
