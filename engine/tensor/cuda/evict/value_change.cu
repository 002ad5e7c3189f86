// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how much the output changes without a slot (CAOTE): a_j / max(1 - a_j, 1e-6) * || c - V_j ||.
 *
 * Design: the weights are read three times, V twice: for the sums of weights; for the centers, a block for SPLIT slots
 *         and 64 channels, for WEIGHTS query heads at once, added up in the order of the blocks; and for the changes,
 *         eight lanes for each slot. Sums are f64: where one slot has nearly all weight, f32 would lose all digits of c
 *         - V_j. A split is a fixed number of slots, so that bits do not depend on the length of other heads.
 *         The outputs of a group's heads are concatenated, so the square of their change is the sum of their squares.
 */
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/pages.h"

constexpr uint32_t THREADS = 256, SPLIT = 16 * SL_PAGE_SLOTS, CHANNELS = 64, LANES = CHANNELS / 8;
constexpr int WEIGHTS = 2;

struct change_call {
    const gpu_head *heads;
    int group, head_dim, n_splits;
    sl_vectors weights;
    bool mean_center;
    double *sums;    // [rows] sums of weights; a row is a query head
    double *parts;   // [rows][n_splits][d]
    double *centers; // [rows][d]
    sl_vectors out;
};

static __global__ void __launch_bounds__(1024) sum_weights(change_call c) {
    __shared__ double scratch[32];
    uint32_t row = blockIdx.x, n = c.heads[row / (uint32_t)c.group].n_slots;
    double sum = 0;
    for (uint32_t j = threadIdx.x; j < n; j += blockDim.x) {
        sum += (double)c.weights.at[row * c.weights.stride + j];
    }
    sum = gpu::block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        c.sums[row] = sum;
    }
}

// Returns the weight of slot j in the center of a row.
GPU_DEVICE double share_of(const change_call &c, size_t row, uint32_t n, uint32_t j, bool in_center) {
    double sum = c.sums[row];
    return sum == 0.0 || (in_center && c.mean_center) ? 1.0 / n
                                                      : (double)c.weights.at[row * c.weights.stride + j] / sum;
}

// blockIdx: split, head, channels / CHANNELS.
static __global__ void __launch_bounds__(THREADS) add_rows(change_call c) {
    __shared__ double warps[THREADS / 32][CHANNELS];
    const gpu_head *h = &c.heads[blockIdx.y];
    uint32_t n = h->n_slots, first = blockIdx.x * SPLIT, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int channel = (int)(blockIdx.z * CHANNELS + threadIdx.x % LANES * 8);
    for (int g0 = 0; g0 < c.group && first < n; g0 += WEIGHTS) {
        double sums[WEIGHTS][8] = {};
        for (uint32_t j = first + threadIdx.x / LANES; j < n && j < first + SPLIT; j += THREADS / LANES) {
            float v[8];
            if (channel < c.head_dim) {
                gpu::read_v8(gpu::layout_of(h, j / SL_PAGE_SLOTS), gpu::page_of(h, j), j % SL_PAGE_SLOTS, channel, v);
                GPU_UNROLL
                for (int g = 0; g < WEIGHTS && g0 + g < c.group; g++) {
                    double a = share_of(c, blockIdx.y * (size_t)c.group + (size_t)(g0 + g), n, j, true);
                    GPU_UNROLL
                    for (int i = 0; i < 8; i++) {
                        sums[g][i] += a * (double)v[i];
                    }
                }
            }
        }
        GPU_UNROLL
        for (int g = 0; g < WEIGHTS && g0 + g < c.group; g++) {
            GPU_UNROLL
            for (int i = 0; i < 8; i++) {
                double sum = sums[g][i]; // over the lanes of a warp that have the same channels
                sum += __shfl_xor_sync(~0u, sum, 8);
                sum += __shfl_xor_sync(~0u, sum, 16);
                if (lane < LANES) {
                    warps[warp][lane * 8 + (uint32_t)i] = sum;
                }
            }
            __syncthreads();
            int to = (int)(blockIdx.z * CHANNELS + threadIdx.x);
            if (threadIdx.x < CHANNELS && to < c.head_dim) {
                double sum = 0;
                for (uint32_t w = 0; w < THREADS / 32; w++) {
                    sum += warps[w][threadIdx.x];
                }
                size_t row = blockIdx.y * (size_t)c.group + (size_t)(g0 + g);
                c.parts[(row * (size_t)c.n_splits + blockIdx.x) * (size_t)c.head_dim + (size_t)to] = sum;
            }
            __syncthreads();
        }
    }
}

static __global__ void add_splits(change_call c) {
    size_t row = blockIdx.x;
    uint32_t n = c.heads[row / (size_t)c.group].n_slots;
    for (int i = (int)threadIdx.x; i < c.head_dim; i += (int)blockDim.x) {
        double sum = 0;
        for (uint32_t s = 0; s * SPLIT < n; s++) {
            sum += c.parts[(row * (size_t)c.n_splits + s) * (size_t)c.head_dim + (size_t)i];
        }
        c.centers[row * (size_t)c.head_dim + (size_t)i] = sum;
    }
}

// LANES lanes for each slot.
static __global__ void __launch_bounds__(THREADS) change_of_slots(change_call c) {
    const gpu_head *h = &c.heads[blockIdx.y];
    uint32_t n = h->n_slots, lane = threadIdx.x % LANES, each = THREADS / LANES;
    for (uint32_t first = blockIdx.x * each; first < n; first += gridDim.x * each) {
        uint32_t j = first + threadIdx.x / LANES;
        float squared = 0, change = 0;
        for (int g0 = 0; g0 < c.group; g0 += WEIGHTS) {
            double sums[WEIGHTS] = {};
            for (int i0 = (int)lane * 8; j < n && i0 < c.head_dim; i0 += (int)CHANNELS) {
                float v[8];
                gpu::read_v8(gpu::layout_of(h, j / SL_PAGE_SLOTS), gpu::page_of(h, j), j % SL_PAGE_SLOTS, i0, v);
                GPU_UNROLL
                for (int g = 0; g < WEIGHTS && g0 + g < c.group; g++) {
                    size_t row = blockIdx.y * (size_t)c.group + (size_t)(g0 + g);
                    const double *center = c.centers + row * (size_t)c.head_dim + i0;
                    GPU_UNROLL
                    for (int i = 0; i < 8; i++) {
                        sums[g] += (center[i] - (double)v[i]) * (center[i] - (double)v[i]);
                    }
                }
            }
            GPU_UNROLL
            for (int g = 0; g < WEIGHTS && g0 + g < c.group; g++) {
                double sum = sums[g];
                sum += __shfl_xor_sync(~0u, sum, 4);
                sum += __shfl_xor_sync(~0u, sum, 2);
                sum += __shfl_xor_sync(~0u, sum, 1);
                if (j < n) {
                    double a = share_of(c, blockIdx.y * (size_t)c.group + (size_t)(g0 + g), n, j, false);
                    change = (float)(a / fmax(1.0 - a, 1e-6) * sqrt(sum));
                    squared += change * change;
                }
            }
        }
        if (j < n && lane == 0) {
            c.out.at[blockIdx.y * c.out.stride + j] = c.group > 1 ? sqrtf(squared) : change;
        }
    }
}

// Returns how many splits most_slots slots have; at least 1.
static int splits_of(uint32_t most_slots) {
    return most_slots > 0 ? (int)((most_slots + SPLIT - 1) / SPLIT) : 1;
}

size_t sl_gpu_value_change_work(struct gpu_heads heads, int group) {
    size_t rows = (size_t)heads.n * (size_t)group, d = (size_t)heads.layout->head_dim;
    return rows * sizeof(double) * (1 + ((size_t)splits_of(heads.most_slots) + 1) * d);
}

void sl_gpu_value_change(struct gpu_queue *queue, struct gpu_heads heads, int group, struct sl_vectors weights,
                         bool mean_center, void *work, struct sl_vectors out) {
    size_t rows = (size_t)heads.n * (size_t)group;
    change_call c = {};
    c.heads = heads.at, c.group = group, c.head_dim = heads.layout->head_dim, c.n_splits = splits_of(heads.most_slots);
    c.weights = weights, c.mean_center = mean_center;
    c.sums = (double *)work;
    c.parts = c.sums + rows;
    c.centers = c.parts + rows * (size_t)c.n_splits * (size_t)c.head_dim;
    c.out = out;
    dim3 grid((unsigned)c.n_splits, (unsigned)heads.n, ((unsigned)c.head_dim + CHANNELS - 1) / CHANNELS);
    GPU_LAUNCH(sum_weights, (unsigned)rows, 1024, 0, queue, c);
    GPU_LAUNCH(add_rows, grid, THREADS, 0, queue, c);
    GPU_LAUNCH(add_splits, (unsigned)rows, 128, 0, queue, c);
    GPU_LAUNCH(change_of_slots, gpu::grid_of(heads.most_slots * LANES, heads.n), THREADS, 0, queue, c);
}
