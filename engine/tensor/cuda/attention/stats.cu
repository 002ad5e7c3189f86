// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: column statistics of attention: fold, window_sums. With p[r][g][j] = exp(scale q[r][g] . K_j - lse[g][r])
 *          for the slots j that row r sees (v_r of them), 0 for the others:
 *
 *              abar[r][j] = 1/G sum_g p[r][g][j]
 *              sum[j] += sum_r abar[r][j]    square[j] += sum_r abar[r][j]^2    above[j] += #{r: abar[r][j] > 1/v_r}
 *     or       sum[j] = max(sum[j], max_{r,g} p[r][g][j])
 *
 * Design: a block has the keys of a tile in shared memory and goes over the rows, several at a time. A thread has a
 *         slot and every n-th row, where n is the number of rows at a time. The sums of the threads of a slot are added
 *         in their order, in f64. No other block has the slot, so state is added to without atomics. stats_tensor.cu
 *         uses tensor cores where it can.
 */
#include "engine/tensor/cuda/attention/stats.h"

constexpr uint32_t THREADS = 256, MOST_ROWS = THREADS / 32; // rows at a time

// One row of a block.
struct row {
    uint32_t begin, end; // of slots
    uint32_t slot;       // its own
};

struct row_memory {
    row rows[MOST_ROWS];
    uint32_t slots[MOST_ROWS];
};

// Loads rows [first, first + n) of the query head, rotated if keys are.
GPU_DEVICE void load_rows(const stats_call &c, const gpu_head *h, int head, int first, uint32_t n, float *queries,
                          row_memory *m) {
    const gpu_attention &shape = c.shape;
    int d = shape.head_dim, n_rows = c.call->m;
    int64_t stride = shape.q_stride > 0 ? shape.q_stride : (int64_t)shape.n_heads * d;
    if (threadIdx.x < n) {
        int r = first + (int)threadIdx.x;
        row *to = &m->rows[threadIdx.x];
        *to = {0, 0, 0};
        m->slots[threadIdx.x] = 0;
        if (r < n_rows) {
            uint32_t slot = h->n_slots - (uint32_t)n_rows + (uint32_t)r;
            *to = {gpu::first_seen(c.call, h, shape.window, r), slot + 1, slot};
            m->slots[threadIdx.x] = slot;
        }
    }
    for (int i = (int)threadIdx.x; i < (int)n * d; i += (int)THREADS) {
        int r = first + i / d;
        queries[i] = r < n_rows ? c.call->q[r * stride + (int64_t)head * d + i % d] : 0.0f;
    }
    __syncthreads();
    if (shape.slot_cosines != nullptr) {
        gpu::rotate_tile(shape, queries, d, n, m->slots, 0);
        __syncthreads();
    }
}

// Returns exp(scale q . K - lse) of slot `at`, 0 where the row does not see it.
GPU_DEVICE float weight_of(const stats_call &c, int head, int r, const row &of, uint32_t at, const float *query,
                           const float *key) {
    if (at < of.begin || at >= of.end) {
        return 0.0f;
    }
    const float4 *x = (const float4 *)query, *y = (const float4 *)key;
    float dot = 0.0f;
    for (int i = 0; i < c.shape.head_dim / 4; i++) {
        float4 a = x[i], b = y[i];
        dot += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
    return expf(dot * c.shape.scale - c.call->lse[(size_t)head * (size_t)c.call->m + (size_t)r]);
}

// Returns the sum, or the largest, over the threads that have the slot, in their order. The largest is at least 0.
GPU_DEVICE double sum_of_slot(float x, bool largest, float *scratch, uint32_t n_slots) {
    double sum = 0;
    scratch[threadIdx.x] = x;
    __syncthreads();
    for (uint32_t t = threadIdx.x % n_slots; t < THREADS; t += n_slots) {
        sum = largest ? fmax(sum, (double)scratch[t]) : sum + (double)scratch[t];
    }
    __syncthreads();
    return sum;
}

// blockIdx: tile of slots; KV head of fold, query head of window_sums. The bound of one block lets ptxas take more
// registers instead of spilling.
template <bool FOLD> static __global__ void __launch_bounds__(THREADS, 1) add_rows(stats_call c) {
    GPU_DYNAMIC_SHARED(float, queries);
    __shared__ float scratch[THREADS];
    __shared__ row_memory m;
    int d = c.shape.head_dim, group = c.shape.n_heads / c.shape.n_kv_heads,
        kv_head = (int)blockIdx.y / (FOLD ? 1 : group);
    uint32_t n_slots = gpu::tile_slots(d), each = THREADS / n_slots, y = threadIdx.x / n_slots;
    float *keys = queries + (int)MOST_ROWS * d;
    const gpu_head *h = &c.call->heads[kv_head];
    uint32_t first = blockIdx.x * n_slots, at = first + threadIdx.x % n_slots;
    if (first >= h->n_slots) {
        return;
    }
    const sl_page_layout *layout = gpu::layout_of(h, first / SL_PAGE_SLOTS);
    if (FOLD && layout->n_states == 0) {
        return; // a packed page that has dropped all of it
    }
    uint32_t n = h->n_slots - first < n_slots ? h->n_slots - first : n_slots;
    gpu::load_tile(h, nullptr, first, n, true, keys);
    __syncthreads();
    if (c.shape.slot_cosines != nullptr) {
        gpu::rotate_tile(c.shape, keys, gpu::pitch_of(d), n, nullptr, first);
    }
    __syncthreads();
    const float *key = keys + (int)(threadIdx.x % n_slots) * gpu::pitch_of(d);
    float sums[4] = {};
    for (int r0 = c.first_row; r0 < c.call->m; r0 += (int)each) {
        float mean = 0.0f;
        row mine = {0, 0, 0};
        for (int g = 0; g < (FOLD ? group : 1); g++) {
            int head = FOLD ? kv_head * group + g : (int)blockIdx.y;
            load_rows(c, h, head, r0, each, queries, &m);
            mine = m.rows[y];
            if (at < h->n_slots) {
                float weight = weight_of(c, head, r0 + (int)y, mine, at, queries + (int)y * d, key);
                mean += weight;
                sums[3] = fmaxf(sums[3], weight);
            }
            __syncthreads();
        }
        mean = FOLD ? mean / (float)group : mean;
        // a row that sees one slot never exceeds the mean, not even by rounding
        uint32_t n_seen = mine.end - mine.begin;
        sums[0] += mean;
        sums[1] += mean * mean;
        sums[2] += n_seen > 1 && mean > 1.0f / (float)n_seen ? 1.0f : 0.0f;
    }
    for (int i = 0; i < (FOLD ? 4 : 1); i++) {
        double sum = sum_of_slot(sums[i], i == 3, scratch, n_slots);
        if (at >= h->n_slots || y != 0) {
            continue;
        }
        if (!FOLD) {
            c.sums[blockIdx.y * c.stride + at] = (float)sum;
        } else if (c.planes[i] >= 0 && c.planes[i] < layout->n_states) {
            float *state = (float *)(gpu::page_of(h, at) + layout->states) + c.planes[i] * SL_PAGE_SLOTS;
            double old = (double)state[at % SL_PAGE_SLOTS];
            state[at % SL_PAGE_SLOTS] = (float)(i == 3 ? fmax(old, sum) : old + sum);
        }
    }
}

static size_t shared_bytes(int head_dim) {
    size_t d = (size_t)head_dim;
    return (MOST_ROWS * d + gpu::tile_slots(head_dim) * (d + 4)) * sizeof(float);
}

static unsigned tiles_of(uint32_t most_slots, int head_dim) {
    uint32_t slots = gpu::tile_slots(head_dim);
    return most_slots > 0 ? (most_slots + slots - 1) / slots : 1;
}

void sl_gpu_fold(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_slots,
                 const struct gpu_attention *shape, int first_row, const int *planes) {
    const stats_call c = {call, *shape, first_row, {planes[0], planes[1], planes[2], planes[3]}, nullptr, 0};
    size_t bytes = shared_bytes(shape->head_dim);
    dim3 grid(tiles_of(most_slots, shape->head_dim), (unsigned)shape->n_kv_heads);
    if (planes[3] < 0 && gpu_stats_tensor(queue, c, most_slots)) {
        return;
    }
    GPU_ALLOW_SHARED(add_rows<true>, bytes);
    GPU_LAUNCH(add_rows<true>, grid, THREADS, bytes, queue, c);
}

void sl_gpu_window_sums(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_slots,
                        const struct gpu_attention *shape, int first_row, float *sums_out, size_t sums_stride) {
    const stats_call c = {call, *shape, first_row, {}, sums_out, sums_stride};
    size_t bytes = shared_bytes(shape->head_dim);
    dim3 grid(tiles_of(most_slots, shape->head_dim), (unsigned)shape->n_heads);
    if (gpu_stats_tensor(queue, c, most_slots)) {
        return;
    }
    GPU_ALLOW_SHARED(add_rows<false>, bytes);
    GPU_LAUNCH(add_rows<false>, grid, THREADS, bytes, queue, c);
}
