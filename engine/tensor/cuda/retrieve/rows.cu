// SPDX-License-Identifier: Apache-2.0
// Purpose: what retrieval from an offloaded layer needs: its query, and rows that come back.
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/retrieve/launch.h"
#include "engine/tensor/cuda/pages.h"

constexpr uint32_t THREADS = 256;

// blockIdx.x: KV head.
static __global__ void mean_query(const float *q, int group, int d, float *means) {
    q += blockIdx.x * (size_t)group * (size_t)d;
    for (int c = (int)threadIdx.x; c < d; c += (int)blockDim.x) {
        float sum = 0.0f;
        for (int g = 0; g < group; g++) {
            sum += q[g * d + c];
        }
        means[blockIdx.x * (size_t)d + (size_t)c] = sum / (float)group;
    }
}

// A thread copies 16 bytes, of K and then of V of a row.
static __global__ void __launch_bounds__(THREADS)
    put_rows(const gpu_head *heads, const uint32_t *slots, size_t stride, const uint32_t *n, const void *const *rows) {
    const gpu_head *h = &heads[blockIdx.y];
    uint32_t bytes = gpu::row_bytes(&h->work), units = bytes / 16;
    FOR_SLOTS(u, n[blockIdx.y] * 2 * units) {
        uint32_t i = u / (2 * units), at = u % (2 * units), j = slots[blockIdx.y * stride + i];
        char *part = gpu::page_of(h, j) + (at < units ? h->work.k : h->work.v);
        ((uint4 *)(part + j % SL_PAGE_SLOTS * bytes))[at % units] = ((const uint4 *)rows[blockIdx.y])[u];
    }
}

void sl_gpu_mean_query(struct gpu_queue *queue, const float *q, int n_kv_heads, int group, int head_dim,
                       float *means_out) {
    GPU_LAUNCH(mean_query, (unsigned)n_kv_heads, 128, 0, queue, q, group, head_dim, means_out);
}

void sl_gpu_put_rows(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                     struct gpu_lists listed, const void *const *rows) {
    GPU_LAUNCH(put_rows, gpu::grid_of(most_slots * 32, n_heads), THREADS, 0, queue, heads, listed.slots, listed.stride,
               listed.n, rows);
}
