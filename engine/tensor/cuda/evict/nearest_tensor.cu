// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: nearest by tensor cores, over keys of f16 and bf16.
 *
 * Formula: for an evicted key x, the kept key y with the largest (x . y) / |y|; the first of equals. The cosine is that
 *          value divided by |x|.
 *
 * Design: keys are in the format of the operands, so nothing is rounded: products are exact, sums are f32. A first pass
 *         over all keys computes norms. A block has 64 evicted keys and goes over the kept ones, 64 at a time, by
 *         cp.async into one of two tiles while the other is used. Each pair of its eight warps has the same 16 columns
 *         of a tile, and each warp of the pair has 32 rows, whose keys stay in registers. A lane sees its columns in
 *         ascending order; between lanes and warps the lower column wins a tie.
 */
#include "engine/tensor/cuda/evict/nearest.h"

constexpr uint32_t THREADS = 256, TILE = 64, ROW_TILES = 2, COLUMN_GROUPS = 4;

template <int D> constexpr uint32_t PITCH = D + 8; // eight rows use different banks

template <int D> struct block_memory {
    alignas(16) uint16_t tiles[2][TILE][PITCH<D>];
    float norms[2][TILE]; // of the columns, 1 / |y|
    best found[COLUMN_GROUPS][TILE];
};

// Computes norms[h][slot] = 1 / |K|, with 16 lanes for each slot.
static __global__ void invert_norms(const gpu_head *heads, float *norms, size_t stride) {
    const gpu_head *h = &heads[blockIdx.y];
    uint32_t unit = threadIdx.x % 16;
    for (uint32_t first = blockIdx.x * (THREADS / 16); first < h->n_slots; first += gridDim.x * (THREADS / 16)) {
        uint32_t slot = first + threadIdx.x / 16;
        float key[8] = {}, square = 0.0f;
        if (slot < h->n_slots && (int)unit * 8 < h->work.head_dim) {
            gpu::read_k8(&h->work, gpu::page_of(h, slot), slot % SL_PAGE_SLOTS, (int)unit * 8, key);
        }
        GPU_UNROLL
        for (int i = 0; i < 8; i++) {
            square += key[i] * key[i];
        }
        for (int lanes = 8; lanes > 0; lanes /= 2) {
            square += __shfl_xor_sync(~0u, square, lanes);
        }
        if (unit == 0 && slot < h->n_slots) {
            norms[blockIdx.y * stride + slot] = inverse_root(square);
        }
    }
}

// Starts copies of the keys of the listed slots [first, first + TILE); zeros after the end of the list.
template <int D>
GPU_DEVICE void load(const gpu_head *h, const uint32_t *slots, uint32_t first, uint32_t n, uint16_t (*tile)[PITCH<D>]) {
    constexpr uint32_t UNITS = D / 8, EACH = TILE * UNITS / THREADS;
    const char *from[EACH];
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t u = threadIdx.x + i * THREADS, row = u / UNITS;
        from[i] = nullptr;
        if (first + row < n) {
            uint32_t slot = slots[first + row];
            from[i] = gpu::page_of(h, slot) + h->work.k + (slot % SL_PAGE_SLOTS * (uint32_t)D + u % UNITS * 8) * 2;
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t u = threadIdx.x + i * THREADS;
        uint16_t *to = &tile[u / UNITS][u % UNITS * 8];
        if (from[i] != nullptr) {
            gpu::cp_async16(to, from[i]);
        } else {
            *(uint4 *)to = {0, 0, 0, 0};
        }
    }
    gpu::cp_async_commit();
}

// Compares the 16 columns of a warp, from `column` of keep[] on, with its rows.
template <int D, bool BF16>
GPU_DEVICE void compare(const uint32_t (&rows)[ROW_TILES][D / 16][4], const uint16_t (*tile)[PITCH<D>],
                        const float *norms, uint32_t column, uint32_t n_keep, best (&best)[ROW_TILES][2]) {
    uint32_t lane = threadIdx.x % 32;
    float sums[ROW_TILES][2][4] = {};
    GPU_UNROLL
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t b[4];
        gpu::ldmatrix_x4(b, &tile[lane / 16 * 8 + lane % 8][k * 16 + lane / 8 % 2 * 8]);
        const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        GPU_UNROLL
        for (uint32_t i = 0; i < ROW_TILES; i++) {
            BF16 ? gpu::mma_bf16(sums[i][0], rows[i][k], low) : gpu::mma_f16(sums[i][0], rows[i][k], low);
            BF16 ? gpu::mma_bf16(sums[i][1], rows[i][k], high) : gpu::mma_f16(sums[i][1], rows[i][k], high);
        }
    }
    GPU_UNROLL
    for (uint32_t n = 0; n < 2; n++) {
        float2 both = *(const float2 *)(norms + n * 8 + lane % 4 * 2);
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t at = column + n * 8 + lane % 4 * 2 + e;
            float norm = e == 0 ? both.x : both.y;
            GPU_UNROLL
            for (uint32_t i = 0; i < ROW_TILES * 2; i++) {
                float value = norm > 0.0f ? sums[i / 2][n][i % 2 * 2 + e] * norm : 0.0f;
                if (at < n_keep && value > best[i / 2][i % 2].value) { // the first of equals, and never NaN
                    best[i / 2][i % 2] = {value, at};
                }
            }
        }
    }
}

GPU_DEVICE best better(best a, best b) {
    bool second = b.value > a.value || (b.value == a.value && b.at < a.at);
    return {second ? b.value : a.value, second ? b.at : a.at};
}

// blockIdx: tile of evicted slots, head.
template <int D, bool BF16>
static __global__ void __launch_bounds__(THREADS, 2)
    nearest_tensor(merge_call c, sl_lists lists, const float *norms, size_t norms_stride) {
    __shared__ block_memory<D> m;
    uint32_t h = blockIdx.y, n = n_evicted(c, h), n_keep = c.kept[h], first = blockIdx.x * TILE;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 2 * 16 * ROW_TILES, column = warp / 2 * 16;
    const gpu_head *head = &c.heads[h];
    const uint32_t *evicted = c.nearest.evicted.at + h * c.nearest.evicted.stride;
    const uint32_t *keep = lists.at + h * lists.stride;
    norms += h * norms_stride;
    if (first >= n) {
        return;
    }
    uint32_t rows[ROW_TILES][D / 16][4];
    load<D>(head, evicted, first, n, m.tiles[1]);
    gpu::cp_async_wait<0>();
    __syncthreads();
    GPU_UNROLL
    for (uint32_t i = 0; i < ROW_TILES; i++) {
        GPU_UNROLL
        for (uint32_t k = 0; k < D / 16; k++) {
            gpu::ldmatrix_x4(rows[i][k], &m.tiles[1][row + i * 16 + lane % 16][k * 16 + lane / 16 * 8]);
        }
    }
    best best[ROW_TILES][2];
    GPU_UNROLL
    for (uint32_t i = 0; i < ROW_TILES * 2; i++) {
        best[i / 2][i % 2] = {-INFINITY, 0};
    }
    load<D>(head, keep, 0, n_keep, m.tiles[0]);
    float norm = threadIdx.x < TILE && threadIdx.x < n_keep ? norms[keep[threadIdx.x]] : 0.0f; // for the next tile
    GPU_UNROLL_BY(1)
    for (uint32_t at = 0, stage = 0; at < n_keep; at += TILE, stage ^= 1) {
        if (threadIdx.x < TILE) {
            m.norms[stage][threadIdx.x] = norm;
        }
        gpu::cp_async_wait<0>();
        __syncthreads(); // the tile has arrived, and the other has been used
        if (at + TILE < n_keep) {
            load<D>(head, keep, at + TILE, n_keep, m.tiles[stage ^ 1]);
            uint32_t next = at + TILE + threadIdx.x;
            norm = threadIdx.x < TILE && next < n_keep ? norms[keep[next]] : 0.0f;
        }
        compare<D, BF16>(rows, &m.tiles[stage][column], &m.norms[stage][column], at + column, n_keep, best);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < ROW_TILES * 2; i++) {
        struct best mine = best[i / 2][i % 2];
        for (int lanes = 1; lanes < 4; lanes *= 2) {
            float value = __shfl_xor_sync(~0u, mine.value, lanes);
            mine = better(mine, {value, __shfl_xor_sync(~0u, mine.at, lanes)});
        }
        if (lane % 4 == 0) {
            m.found[warp / 2][row + i * 8 + lane / 4] = mine;
        }
    }
    __syncthreads();
    if (threadIdx.x < TILE && first + threadIdx.x < n) {
        struct best all = m.found[0][threadIdx.x];
        for (uint32_t g = 1; g < COLUMN_GROUPS; g++) {
            all = better(all, m.found[g][threadIdx.x]);
        }
        float of_row = norms[evicted[first + threadIdx.x]];
        c.nearest.into.at[h * c.nearest.into.stride + first + threadIdx.x] = keep[of_row > 0.0f ? all.at : 0];
        c.nearest.cosine.at[h * c.nearest.cosine.stride + first + threadIdx.x] =
            of_row > 0.0f ? fminf(fmaxf(all.value * of_row, -1.0f), 1.0f) : 0.0f;
    }
}

// --- launches --------------------------------------------------------------------------------------------------------

template <int D, bool BF16>
static bool launch(struct gpu_queue *queue, const merge_call &c, struct gpu_heads heads, sl_lists keep, float *norms) {
    size_t most = heads.most_slots;
    unsigned tiles = (heads.most_slots + TILE - 1) / TILE;
    unsigned groups = (heads.most_slots + THREADS / 16 - 1) / (THREADS / 16);
    GPU_LAUNCH(invert_norms, dim3(groups > 0 ? groups : 1, (unsigned)heads.n), THREADS, 0, queue, c.heads, norms, most);
    GPU_LAUNCH((nearest_tensor<D, BF16>), dim3(tiles > 0 ? tiles : 1, (unsigned)heads.n), THREADS, 0, queue, c, keep,
               norms, most);
    return true;
}

bool gpu_nearest_tensor(struct gpu_queue *queue, const merge_call &c, struct gpu_heads heads, sl_lists keep,
                        float *norms) {
    bool bf16 = heads.layout->format == SL_KV_BF16;
    if (!bf16 && heads.layout->format != SL_KV_F16) {
        return false;
    }
    switch (heads.layout->head_dim) {
    case 64:
        return bf16 ? launch<64, true>(queue, c, heads, keep, norms) : launch<64, false>(queue, c, heads, keep, norms);
    case 96:
        return bf16 ? launch<96, true>(queue, c, heads, keep, norms) : launch<96, false>(queue, c, heads, keep, norms);
    case 128:
        return bf16 ? launch<128, true>(queue, c, heads, keep, norms)
                    : launch<128, false>(queue, c, heads, keep, norms);
    default:
        return false;
    }
}
