// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: scores of slots: those that pages store, and those computed from them, from attention, or from neither.
 *
 * Design: a thread for each slot, a row of blocks for each head: neighbors read neighbors. Gives the bits of
 *         engine/tensor/cpu/evict/scores.c: the same operations in the same order; must be compiled with -fmad=false.
 *         Only the variance is summed in another order.
 */
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/pages.h"

constexpr uint32_t THREADS = 256;

// --- stored scores ---------------------------------------------------------------------------------------------------

static __global__ void read_state(const gpu_head *heads, int plane, sl_vectors out) {
    const gpu_head *h = &heads[blockIdx.y];
    FOR_SLOTS(j, h->n_slots) {
        out.at[blockIdx.y * out.stride + j] = gpu::state_of(h, plane, j);
    }
}

static __global__ void write_state(const gpu_head *heads, int plane, uint32_t m, const float *values) {
    const gpu_head *h = &heads[blockIdx.y];
    FOR_SLOTS(r, m) {
        uint32_t j = h->n_slots - m + r;
        float *state = (float *)(gpu::page_of(h, j) + h->work.states);
        state[plane * SL_PAGE_SLOTS + j % SL_PAGE_SLOTS] = values[(size_t)r * gridDim.y + blockIdx.y];
    }
}

// A tile of values [m][n] in shared memory, so that both sides are read and written along their rows.
constexpr int TILE = 32;
static __global__ void spread(const float *values, int n, int m, sl_vectors out) {
    __shared__ float tile[TILE][TILE + 1];
    int r0 = (int)blockIdx.x * TILE, h0 = (int)blockIdx.y * TILE, x = (int)threadIdx.x;
    for (int y = (int)threadIdx.y; y < TILE; y += (int)blockDim.y) {
        if (r0 + y < m && h0 + x < n) {
            tile[y][x] = values[(size_t)(r0 + y) * (size_t)n + (size_t)(h0 + x)];
        }
    }
    __syncthreads();
    for (int y = (int)threadIdx.y; y < TILE; y += (int)blockDim.y) {
        if (h0 + y < n && r0 + x < m) {
            out.at[(size_t)(h0 + y) * out.stride + (size_t)(r0 + x)] = tile[x][y];
        }
    }
}

// deviation = sqrt(E x^2 - (E x)^2); rounding can make the difference negative
static __global__ void mean_state(const gpu_head *heads, int64_t n_tokens, sl_vectors mean_out,
                                  sl_vectors deviation_out) {
    const gpu_head *h = &heads[blockIdx.y];
    FOR_SLOTS(j, h->n_slots) {
        double n_queries = (double)(n_tokens - gpu::position_of(h, j));
        double mean = (double)gpu::state_of(h, 0, j) / n_queries;
        if (mean_out.at != nullptr) {
            mean_out.at[blockIdx.y * mean_out.stride + j] = (float)mean;
        }
        if (deviation_out.at != nullptr) {
            double square = (double)gpu::state_of(h, 1, j) / n_queries;
            deviation_out.at[blockIdx.y * deviation_out.stride + j] = (float)sqrt(fmax(square - mean * mean, 0.0));
        }
    }
}

// One block for each head.
static __global__ void __launch_bounds__(1024) variance(const gpu_head *heads, int plane, double *out) {
    __shared__ double sums[32];
    const gpu_head *h = &heads[blockIdx.x];
    uint32_t n = h->n_slots;
    double sum = 0, squares = 0;
    for (uint32_t j = threadIdx.x; j < n; j += blockDim.x) {
        sum += (double)gpu::state_of(h, plane, j);
    }
    double mean = gpu::block_sum(sum, sums) / n;
    for (uint32_t j = threadIdx.x; j < n; j += blockDim.x) {
        double x = (double)gpu::state_of(h, plane, j) - mean;
        squares += x * x;
    }
    squares = gpu::block_sum(squares, sums);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = n < 2 ? 0.0 : squares / (n - 1);
    }
}

// --- attention of query heads ----------------------------------------------------------------------------------------

// Row: a query head. Neighboring windows overlap, and the cache serves the overlap: kernels are 5 to 13 wide.
static __global__ void pool(const gpu_head *heads, int group, sl_vectors of, sl_pooling pooling, sl_vectors out) {
    int64_t n = heads[blockIdx.y / (uint32_t)group].n_slots, n_before = n > pooling.window ? n - pooling.window : 0;
    const float *x = of.at + blockIdx.y * of.stride;
    FOR_SLOTS(j, (uint32_t)n) {
        int64_t begin = (int64_t)j - pooling.kernel / 2, end = begin + pooling.kernel;
        begin = begin > 0 ? begin : 0;
        end = end < n_before ? end : n_before;
        float most = -INFINITY;
        double sum = 0;
        for (int64_t i = begin; i < end; i++) {
            most = x[i] > most ? x[i] : most;
            sum += (double)x[i];
        }
        float pooled = pooling.max ? most : (float)(sum / pooling.kernel);
        out.at[blockIdx.y * out.stride + j] = j >= n_before ? x[j] : pooled;
    }
}

static __global__ void mean_group(const gpu_head *heads, int group, sl_vectors of, sl_vectors out) {
    const float *x = of.at + (size_t)blockIdx.y * (size_t)group * of.stride;
    FOR_SLOTS(j, heads[blockIdx.y].n_slots) {
        float sum = x[j];
        for (int g = 1; g < group; g++) {
            sum += x[(size_t)g * of.stride + j];
        }
        out.at[blockIdx.y * out.stride + j] = sum / (float)group;
    }
}

// --- scores without attention ----------------------------------------------------------------------------------------

static __global__ void recency(const gpu_head *heads, sl_vectors out) {
    FOR_SLOTS(j, heads[blockIdx.y].n_slots) {
        out.at[blockIdx.y * out.stride + j] = (float)j; // exact: prompts are shorter than 2^24 tokens
    }
}

GPU_DEVICE uint64_t mix(uint64_t x) { // sl_mix()
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static __global__ void chance(const gpu_head *heads, uint64_t seed, int layer, int64_t offset, sl_vectors out) {
    constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15u; // SL_GOLDEN
    const gpu_head *h = &heads[blockIdx.y];
    FOR_SLOTS(j, h->n_slots) {
        uint64_t position = (uint64_t)(gpu::position_of(h, j) + offset);
        uint64_t place = ((uint64_t)layer << 54) ^ ((uint64_t)blockIdx.y << 40) ^ position;
        uint64_t z = mix(mix(seed * GOLDEN + place * 0xd1342543de82ef95u + 1));
        out.at[blockIdx.y * out.stride + j] = (float)(z >> 40) * 0x1p-24f;
    }
}

// --- scores over all heads -------------------------------------------------------------------------------------------

static __global__ void share(const gpu_head *heads, int n_heads, sl_vectors x) {
    FOR_SLOTS(j, heads[0].n_slots) {
        double sum = 0;
        for (int h = 0; h < n_heads; h++) {
            sum += (double)x.at[(size_t)h * x.stride + j];
        }
        for (int h = 0; h < n_heads; h++) {
            x.at[(size_t)h * x.stride + j] = (float)(sum / n_heads);
        }
    }
}

// --- launches --------------------------------------------------------------------------------------------------------

void sl_gpu_read_state(struct gpu_queue *queue, struct gpu_heads heads, int plane, struct sl_vectors out) {
    GPU_LAUNCH(read_state, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, heads.at, plane, out);
}

void sl_gpu_write_state(struct gpu_queue *queue, struct gpu_heads heads, int plane, int m, const float *values) {
    if (m > 0) {
        GPU_LAUNCH(write_state, gpu::grid_of((uint32_t)m, heads.n), THREADS, 0, queue, heads.at, plane, (uint32_t)m,
                   values);
    }
}

void sl_gpu_spread(struct gpu_queue *queue, const float *values, int n, int m, struct sl_vectors out) {
    if (m > 0 && n > 0) {
        dim3 grid((unsigned)(m + TILE - 1) / TILE, (unsigned)(n + TILE - 1) / TILE);
        GPU_LAUNCH(spread, grid, dim3(TILE, 8), 0, queue, values, n, m, out);
    }
}

void sl_gpu_mean_state(struct gpu_queue *queue, struct gpu_heads heads, int64_t n_tokens, struct sl_vectors mean_out,
                       struct sl_vectors deviation_out) {
    GPU_LAUNCH(mean_state, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, heads.at, n_tokens, mean_out,
               deviation_out);
}

void sl_gpu_variance(struct gpu_queue *queue, struct gpu_heads heads, int plane, double *out) {
    GPU_LAUNCH(variance, (unsigned)heads.n, 1024, 0, queue, heads.at, plane, out);
}

void sl_gpu_pool(struct gpu_queue *queue, struct gpu_heads heads, int group, struct sl_vectors x,
                 struct sl_pooling pooling, struct sl_vectors out) {
    GPU_LAUNCH(pool, gpu::grid_of(heads.most_slots, heads.n * group), THREADS, 0, queue, heads.at, group, x, pooling,
               out);
}

void sl_gpu_mean_group(struct gpu_queue *queue, struct gpu_heads heads, int group, struct sl_vectors x,
                       struct sl_vectors out) {
    GPU_LAUNCH(mean_group, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, heads.at, group, x, out);
}

void sl_gpu_recency(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors out) {
    GPU_LAUNCH(recency, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, heads.at, out);
}

void sl_gpu_chance(struct gpu_queue *queue, struct gpu_heads heads, uint64_t seed, int layer, int64_t offset,
                   struct sl_vectors out) {
    GPU_LAUNCH(chance, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, heads.at, seed, layer, offset, out);
}

void sl_gpu_share(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors x_inout) {
    GPU_LAUNCH(share, gpu::grid_of(heads.most_slots, 1), THREADS, 0, queue, heads.at, heads.n, x_inout);
}
