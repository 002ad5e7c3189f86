// SPDX-License-Identifier: Apache-2.0
// Purpose: writes new rows into their pages, in the working format, with positions and zero state.
#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/pages.h"

constexpr uint32_t THREADS = 256;

// A thread writes eight channels of K and of V of a row. blockIdx: rows and channels, KV head, call.
static __global__ void __launch_bounds__(THREADS) append(const gpu_attend *calls, int64_t kv_stride) {
    const gpu_attend *call = &calls[blockIdx.z];
    const gpu_head *h = &call->heads[blockIdx.y];
    uint32_t d = (uint32_t)h->work.head_dim, units = d / 8;
    FOR_SLOTS(u, (uint32_t)call->m * units) {
        uint32_t r = u / units, c = u % units * 8, j = h->n_slots - (uint32_t)call->m + r, slot = j % SL_PAGE_SLOTS;
        const float *k = call->k + r * kv_stride + blockIdx.y * (size_t)d + c;
        const float *v = call->v + r * kv_stride + blockIdx.y * (size_t)d + c;
        char *page = gpu::page_of(h, j);
        float x[8], y[8];
        for (int e = 0; e < 8; e++) { // rows may have any alignment
            x[e] = k[e];
            y[e] = v[e];
        }
        gpu::write_floats8(h->work.format, page + h->work.k, (size_t)slot * d + c, x);
        gpu::write_floats8(h->work.format, page + h->work.v, (size_t)slot * d + c, y);
        if (c == 0 && h->work.has_positions) {
            ((int32_t *)(page + h->work.positions))[slot] = (int32_t)call->positions[r];
        }
        for (int plane = 0; c == 0 && plane < h->work.n_states; plane++) {
            ((float *)(page + h->work.states))[plane * SL_PAGE_SLOTS + (int)slot] = 0.0f;
        }
    }
}

void sl_gpu_append(struct gpu_queue *queue, const struct gpu_attend *calls, int n_calls, int most_rows,
                   const struct gpu_attention *shape) {
    int64_t stride = shape->kv_stride > 0 ? shape->kv_stride : (int64_t)shape->n_kv_heads * shape->head_dim;
    if (most_rows > 0 && n_calls > 0) {
        dim3 grid = gpu::grid_of((uint32_t)(most_rows * (shape->head_dim / 8)), shape->n_kv_heads);
        grid.z = (unsigned)n_calls;
        GPU_LAUNCH(append, grid, THREADS, 0, queue, calls, stride);
    }
}
