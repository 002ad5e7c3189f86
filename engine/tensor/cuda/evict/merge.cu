// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: D2O: which retained key is the most similar to an evicted one, and the merge of the one into the other.
 *
 * Design: nearest is a product of matrices, 64 evicted by 64 retained keys at a time, which keeps only each row's best:
 *         in f32, in shared memory, for any format. nearest_tensor.cu uses tensor cores where it can. Retained keys
 *         come in ascending order, so the first of equals stays.
 *         merge: a block has some target slots, and goes through the whole list for the slots merged into them, in
 *         order. A warp has the target slots of its number and adds the rows up, so that a sum's order is the list's. A
 *         target slot is never itself merged into another, so blocks are independent.
 */
#include "engine/tensor/cuda/evict/nearest.h"

constexpr uint32_t THREADS = 256, WARPS = THREADS / 32, TILE = 64, DEPTH = 32;

static __global__ void list_evicted(merge_call c, sl_lists lists) {
    uint32_t n_keep = c.kept[blockIdx.y];
    const uint32_t *keep = lists.at + blockIdx.y * lists.stride;
    FOR_SLOTS(j, n_evicted(c, blockIdx.y) > 0 ? c.heads[blockIdx.y].n_slots : 0) {
        uint32_t below = gpu::kept_below(keep, n_keep, j);
        if (below == n_keep || keep[below] != j) {
            c.nearest.evicted.at[blockIdx.y * c.nearest.evicted.stride + (j - below)] = j;
        }
    }
}

// --- nearest ---------------------------------------------------------------------------------------------------------

// Loads channels [k0, k0 + DEPTH) of the keys of listed slots [first, first + TILE), transposed: a thread has eight of
// one key. Adds their squares to *square.
GPU_DEVICE void load_keys(const gpu_head *h, const uint32_t *slots, uint32_t first, uint32_t n, int k0,
                          float (*tile)[TILE + 4], float *square) {
    uint32_t row = threadIdx.x / 4;
    int c = (int)threadIdx.x % 4 * 8;
    float key[8] = {};
    if (first + row < n && k0 + c < h->work.head_dim) {
        uint32_t j = slots[first + row];
        gpu::read_k8(&h->work, gpu::page_of(h, j), j % SL_PAGE_SLOTS, k0 + c, key);
    }
    GPU_UNROLL
    for (int i = 0; i < 8; i++) {
        tile[c + i][row] = key[i];
        *square += key[i] * key[i];
    }
}

// Returns 1 / |x| of the key that four neighboring lanes share.
GPU_DEVICE float inverse_norm(float square) {
    square += __shfl_xor_sync(~0u, square, 1);
    square += __shfl_xor_sync(~0u, square, 2);
    return inverse_root(square);
}

// blockIdx: tiles of evicted slots, head. Thread (x, y) has rows 4 y .. + 4 and columns x, x + 16, x + 32, x + 48.
static __global__ void __launch_bounds__(THREADS) nearest(merge_call c, sl_lists lists) {
    __shared__ __attribute__((aligned(16))) float rows[DEPTH][TILE + 4], columns[DEPTH][TILE + 4];
    __shared__ float row_norms[TILE], column_norms[TILE];
    uint32_t h = blockIdx.y, n = n_evicted(c, h), n_keep = c.kept[h], x = threadIdx.x % 16, y = threadIdx.x / 16;
    const gpu_head *head = &c.heads[h];
    const uint32_t *evicted = c.nearest.evicted.at + h * c.nearest.evicted.stride;
    const uint32_t *keep = lists.at + h * lists.stride;
    for (uint32_t first = blockIdx.x * TILE; first < n; first += gridDim.x * TILE) {
        best best[4];
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            best[i] = {-INFINITY, 0};
        }
        for (uint32_t column0 = 0; column0 < n_keep; column0 += TILE) {
            float sums[4][4] = {}, row_square = 0, column_square = 0;
            for (int k0 = 0; k0 < head->work.head_dim; k0 += (int)DEPTH) {
                load_keys(head, evicted, first, n, k0, rows, &row_square);
                load_keys(head, keep, column0, n_keep, k0, columns, &column_square);
                __syncthreads();
                for (uint32_t k = 0; k < DEPTH; k++) {
                    float4 a = *(const float4 *)&rows[k][4 * y];
                    const float of_row[4] = {a.x, a.y, a.z, a.w};
                    GPU_UNROLL
                    for (uint32_t j = 0; j < 4; j++) {
                        float b = columns[k][x + 16 * j];
                        GPU_UNROLL
                        for (uint32_t i = 0; i < 4; i++) {
                            sums[i][j] += of_row[i] * b;
                        }
                    }
                }
                __syncthreads();
            }
            float row_norm = inverse_norm(row_square), column_norm = inverse_norm(column_square);
            if (threadIdx.x % 4 == 0) {
                row_norms[threadIdx.x / 4] = row_norm;
                column_norms[threadIdx.x / 4] = column_norm;
            }
            __syncthreads();
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t at = column0 + x + 16 * j;
                GPU_UNROLL
                for (uint32_t i = 0; i < 4 && at < n_keep; i++) {
                    float norms = row_norms[4 * y + i] * column_norms[x + 16 * j];
                    float value = norms > 0.0f ? sums[i][j] * norms : 0.0f;
                    if (value > best[i].value) { // the first of equals, and never NaN
                        best[i] = {value, at};
                    }
                }
            }
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            for (int lanes = 8; lanes > 0; lanes /= 2) { // over the 16 lanes that have the row
                float value = __shfl_xor_sync(~0u, best[i].value, lanes);
                uint32_t at = __shfl_xor_sync(~0u, best[i].at, lanes);
                if (value > best[i].value || (value == best[i].value && at < best[i].at)) {
                    best[i] = {value, at};
                }
            }
            uint32_t row = first + 4 * y + i;
            if (x == 0 && row < n) {
                c.nearest.into.at[h * c.nearest.into.stride + row] = keep[best[i].at];
                c.nearest.cosine.at[h * c.nearest.cosine.stride + row] = fminf(fmaxf(best[i].value, -1.0f), 1.0f);
            }
        }
    }
}

// --- merge -----------------------------------------------------------------------------------------------------------

struct similarity {
    double sum, count;
};

static __global__ void __launch_bounds__(1024) add_similarity(merge_call c, similarity *of_heads) {
    __shared__ double scratch[32];
    uint32_t n = n_evicted(c, blockIdx.x);
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        sum += (double)c.nearest.cosine.at[blockIdx.x * c.nearest.cosine.stride + i];
    }
    sum = gpu::block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        of_heads[blockIdx.x] = {sum, (double)n};
    }
}

// One warp.
static __global__ void move_threshold(const similarity *of_heads, int n_heads, sl_merge_threshold threshold) {
    __shared__ double scratch[32];
    similarity all = {};
    for (int h = (int)threadIdx.x; h < n_heads; h += 32) {
        all.sum += of_heads[h].sum;
        all.count += of_heads[h].count;
    }
    all.sum = gpu::block_sum(all.sum, scratch);
    all.count = gpu::block_sum(all.count, scratch);
    if (threadIdx.x == 0) {
        float mean = all.count > 0 ? (float)(all.sum / all.count) : 0.0f, t = *threshold.at;
        *threshold.n_merged = 0;
        if (all.count > 0) {
            *threshold.at = t == 0 ? mean : (1 - threshold.beta) * t + threshold.beta * mean;
        }
    }
}

// The shared memory of a block.
struct merged { // in dynamic shared memory, before the sums: [slots][2][d]
    uint32_t from[THREADS], into[THREADS], scratch[32];
    float weights[THREADS];       // exp(cosine)
    float of_slot[SL_PAGE_SLOTS]; // e + sum of weights; 0: no slot is merged into this one
};

// Reads channels [8 unit, + 8) of K, then of V, of a slot.
GPU_DEVICE void read_unit(const gpu_head *h, uint32_t j, int unit, int n_units, float (&out)[8]) {
    if (unit < n_units) {
        gpu::read_k8(&h->work, gpu::page_of(h, j), j % SL_PAGE_SLOTS, 8 * unit, out);
    } else {
        gpu::read_v8(&h->work, gpu::page_of(h, j), j % SL_PAGE_SLOTS, 8 * (unit - n_units), out);
    }
}

// Adds w (x_from - x_into) of the listed slots to sums, in order. A warp adds those whose target is its own, a lane its
// channels.
GPU_DEVICE void add_listed(const gpu_head *h, merged *m, float *sums, uint32_t n_listed, uint32_t first, int d) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t q = 0; q < n_listed; q++) {
        uint32_t slot = m->into[q] - first;
        if (slot % WARPS != warp) {
            continue;
        }
        float w = m->weights[q];
        for (int unit = (int)lane; unit < d / 4; unit += 32) {
            float from[8], into[8], *sum = sums + slot * 2 * (uint32_t)d + 8 * unit;
            read_unit(h, m->from[q], unit, d / 8, from);
            read_unit(h, m->into[q], unit, d / 8, into);
            GPU_UNROLL
            for (int i = 0; i < 8; i++) {
                sum[i] += w * (from[i] - into[i]);
            }
        }
        if (lane == 0) {
            m->of_slot[slot] = (m->of_slot[slot] == 0.0f ? expf(1.0f) : m->of_slot[slot]) + w;
        }
    }
}

// Adds sums / weight to each x.
GPU_DEVICE void write_merged(const gpu_head *h, const merged *m, const float *sums, uint32_t first, uint32_t n_here,
                             int d) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t slot = warp; slot < n_here; slot += WARPS) {
        float weight = m->of_slot[slot];
        for (int unit = (int)lane; weight > 0.0f && unit < d / 4; unit += 32) {
            uint32_t j = first + slot, part = unit < d / 8 ? h->work.k : h->work.v;
            float x[8];
            read_unit(h, j, unit, d / 8, x);
            GPU_UNROLL
            for (int i = 0; i < 8; i++) {
                x[i] += sums[slot * 2 * (uint32_t)d + (uint32_t)(8 * unit + i)] / weight;
            }
            gpu::write_floats8(h->work.format, gpu::page_of(h, j) + part,
                               (size_t)(j % SL_PAGE_SLOTS) * (size_t)d + (size_t)(8 * (unit % (d / 8))), x);
        }
    }
}

// blockIdx: groups of n_slots slots, head.
static __global__ void __launch_bounds__(THREADS)
    merge_slots(merge_call c, uint32_t n_slots, sl_merge_threshold threshold) {
    GPU_DYNAMIC_SHARED(merged, m);
    float *sums = (float *)(m + 1);
    const gpu_head *h = &c.heads[blockIdx.y];
    uint32_t n = n_evicted(c, blockIdx.y), all_merged = 0;
    const uint32_t *evicted = c.nearest.evicted.at + blockIdx.y * c.nearest.evicted.stride;
    const uint32_t *into_of = c.nearest.into.at + blockIdx.y * c.nearest.into.stride;
    const float *cosines = c.nearest.cosine.at + blockIdx.y * c.nearest.cosine.stride;
    int d = h->work.head_dim;
    for (uint32_t first = blockIdx.x * n_slots; first < h->n_slots && n > 0; first += gridDim.x * n_slots) {
        uint32_t n_here = h->n_slots - first < n_slots ? h->n_slots - first : n_slots;
        for (uint32_t i = threadIdx.x; i < n_here * 2 * (uint32_t)d; i += THREADS) {
            sums[i] = 0.0f;
        }
        for (uint32_t i = threadIdx.x; i < n_slots; i += THREADS) {
            m->of_slot[i] = 0.0f;
        }
        for (uint32_t i0 = 0; i0 < n; i0 += THREADS) {
            uint32_t i = i0 + threadIdx.x, into = i < n ? into_of[i] : 0, n_listed;
            float cosine = i < n ? cosines[i] : -2.0f;
            bool goes = i < n && into >= first && into - first < n_here && cosine >= *threshold.at;
            uint32_t at = gpu::block_before(goes, m->scratch, &n_listed);
            if (goes) {
                m->from[at] = evicted[i];
                m->into[at] = into;
                m->weights[at] = expf(cosine);
            }
            __syncthreads();
            add_listed(h, m, sums, n_listed, first, d);
            all_merged += n_listed;
            __syncthreads();
        }
        write_merged(h, m, sums, first, n_here, d);
        __syncthreads();
    }
    if (threadIdx.x == 0 && all_merged > 0) {
        atomicAdd(threshold.n_merged, all_merged);
    }
}

// --- launches --------------------------------------------------------------------------------------------------------

void sl_gpu_nearest(struct gpu_queue *queue, struct gpu_heads heads, struct sl_lists keep, const uint32_t *kept,
                    struct sl_nearest nearest_out, void *work) {
    const merge_call c = {heads.at, kept, nearest_out};
    unsigned tiles = (heads.most_slots + TILE - 1) / TILE;
    GPU_LAUNCH(list_evicted, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, c, keep);
    if (work != nullptr && gpu_nearest_tensor(queue, c, heads, keep, (float *)work)) {
        return;
    }
    GPU_LAUNCH(nearest, dim3(tiles > 0 ? tiles : 1, (unsigned)heads.n), THREADS, 0, queue, c, keep);
}

size_t sl_gpu_nearest_work(struct gpu_heads heads) {
    bool halves = heads.layout->format == SL_KV_F16 || heads.layout->format == SL_KV_BF16;
    return halves ? (size_t)heads.n * heads.most_slots * sizeof(float) : 0;
}

size_t sl_gpu_merge_work(int n_heads) {
    return (size_t)n_heads * sizeof(similarity);
}

void sl_gpu_merge(struct gpu_queue *queue, struct gpu_heads heads, const uint32_t *kept, struct sl_nearest nearest,
                  struct sl_merge_threshold threshold, void *work) {
    constexpr uint32_t SUMS = 8192; // floats, of K and V
    const merge_call c = {heads.at, kept, nearest};
    similarity *of_heads = (similarity *)work;
    uint32_t d = (uint32_t)heads.layout->head_dim, n_slots = SUMS / (2 * d), most = SL_PAGE_SLOTS;
    n_slots = n_slots < most ? n_slots : most;
    unsigned blocks = (heads.most_slots + n_slots - 1) / n_slots;
    size_t bytes = sizeof(merged) + n_slots * 2 * (size_t)d * sizeof(float);
    GPU_LAUNCH(add_similarity, (unsigned)heads.n, 1024, 0, queue, c, of_heads);
    GPU_LAUNCH(move_threshold, 1, 32, 0, queue, of_heads, heads.n, threshold);
    GPU_LAUNCH(merge_slots, dim3(blocks > 0 ? blocks : 1, (unsigned)heads.n), THREADS, bytes, queue, c, n_slots,
               threshold);
}
