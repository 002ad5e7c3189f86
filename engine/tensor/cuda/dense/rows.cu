// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the row-wise operations of the forward pass other than products: embedding, norms, angles and rotation of
 *         RoPE.
 *
 * Design: embedding, and rotation by given angles, are exact (-fmad=false). A norm's sums are f32 within a thread and
 *         f64 across threads, whose number depends on the length of the vector alone.
 */
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/dense/weights.h"

constexpr uint32_t THREADS = 256;

// blockIdx.x: row.
static __global__ void __launch_bounds__(THREADS) embed(gpu_matrix table, const int32_t *ids, float *out) {
    int64_t id = ids[blockIdx.x] - table.first_id;
    for (int64_t i = threadIdx.x; i < table.k && id >= 0 && id < table.n; i += THREADS) {
        out[blockIdx.x * table.k + i] = gpu::stored_weight(table, id, i);
    }
}

// blockIdx: row, vector.
static __global__ void norm_rows(sl_norm norm, sl_row_vectors rows, float *out, int64_t out_stride) {
    __shared__ double scratch[32];
    float mean = 0, squares = 0;
    const float *x = rows.at + blockIdx.x * rows.stride + blockIdx.y * norm.n;
    out += blockIdx.x * out_stride + blockIdx.y * norm.n;
    if (norm.kind == SL_NORM_LAYER) {
        float sum = 0;
        for (int64_t i = threadIdx.x; i < norm.n; i += blockDim.x) {
            sum += x[i];
        }
        mean = (float)(gpu::block_sum((double)sum, scratch) / (double)norm.n);
    }
    for (int64_t i = threadIdx.x; i < norm.n; i += blockDim.x) {
        squares += (x[i] - mean) * (x[i] - mean);
    }
    double all = gpu::block_sum((double)squares, scratch);
    float scale = (float)(1.0 / sqrt(all / (double)norm.n + (double)norm.eps));
    // out may be x: each thread writes only elements that it has read
    for (int64_t i = threadIdx.x; i < norm.n; i += blockDim.x) {
        float y = (x[i] - mean) * scale * norm.weight[i];
        out[i] = norm.bias != nullptr ? y + norm.bias[i] : y;
    }
}

// Computes angles in f64, rounded once. blockIdx.x: row.
static __global__ void angles(sl_rope rope, const int64_t *positions, float *cosines, float *sines) {
    int half = rope.rotary_dim / 2;
    for (int i = (int)threadIdx.x; i < half; i += (int)blockDim.x) {
        double angle = (double)positions[blockIdx.x] * rope.inv_freq[i];
        cosines[blockIdx.x * (size_t)half + (size_t)i] = (float)(cos(angle) * rope.scale);
        sines[blockIdx.x * (size_t)half + (size_t)i] = (float)(sin(angle) * rope.scale);
    }
}

// (a, b) = (x[i], x[i + half]) becomes (a cos - b sin, b cos + a sin). blockIdx: heads and angles of a row, row.
static __global__ void __launch_bounds__(THREADS)
    rotate(int head_dim, int half, const float *cosines, const float *sines, sl_row_vectors x) {
    cosines += blockIdx.y * (size_t)half;
    sines += blockIdx.y * (size_t)half;
    FOR_SLOTS(at, (uint32_t)(x.n * half)) {
        int i = (int)at % half;
        float *head = x.at + blockIdx.y * x.stride + (int)at / half * head_dim;
        float a = head[i], b = head[i + half];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half] = b * cosines[i] + a * sines[i];
    }
}

void sl_gpu_embed(struct gpu_queue *queue, const struct gpu_matrix *table, const int32_t *ids, int64_t m, float *out) {
    if (m > 0) {
        GPU_LAUNCH(embed, (unsigned)m, THREADS, 0, queue, *table, ids, out);
    }
}

void sl_gpu_norm(struct gpu_queue *queue, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    int64_t warps = norm->n / 256;
    unsigned threads = 32 * (unsigned)(warps < 1 ? 1 : warps > 8 ? 8 : warps);
    if (x.m > 0 && x.n > 0) {
        GPU_LAUNCH(norm_rows, dim3((unsigned)x.m, (unsigned)x.n), threads, 0, queue, *norm, x, out, out_stride);
    }
}

void sl_gpu_angles(struct gpu_queue *queue, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines) {
    if (m > 0) {
        GPU_LAUNCH(angles, (unsigned)m, 64, 0, queue, *rope, positions, cosines, sines);
    }
}

void sl_gpu_rotate(struct gpu_queue *queue, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x_inout) {
    constexpr int64_t MOST = 32768; // rows of a launch: a grid's y
    int half = rope->rotary_dim / 2;
    for (int64_t first = 0; first < x_inout.m && x_inout.n > 0; first += MOST) {
        sl_row_vectors some = x_inout;
        some.at += first * some.stride;
        some.m = some.m - first < MOST ? some.m - first : MOST;
        GPU_LAUNCH(rotate, gpu::grid_of((uint32_t)(some.n * half), (int)some.m), THREADS, 0, queue, rope->head_dim,
                   half, cosines + first * half, sines + first * half, some);
    }
}
