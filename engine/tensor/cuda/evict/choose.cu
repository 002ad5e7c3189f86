// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: protects slots whatever their score, and computes how many slots each head keeps.
 *
 * Design: budgets finds the lowest key above which no more slots are kept than allowed, byte by byte from the top.
 *         Blocks count, by their next byte, the keys of their head that begin with the known bytes; then one block
 *         decides the byte.
 */
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/evict/launch.h"

constexpr uint32_t THREADS = 256, BYTES = 256;
constexpr uint32_t INFINITE = 0xff800000u; // score_key() of +infinity

// --- protection ------------------------------------------------------------------------------------------------------

static __global__ void protect(const gpu_head *heads, const sl_protection *protections, sl_vectors x) {
    int64_t n = heads[blockIdx.y].n_slots, first = protections[blockIdx.y].n_first;
    int64_t newest = protections[blockIdx.y].n_newest;
    FOR_SLOTS(j, (uint32_t)n) {
        if (j < first || n - j <= newest) {
            x.at[blockIdx.y * x.stride + j] = INFINITY;
        }
    }
}

static __global__ void spare(sl_lists listed, const uint32_t *n, sl_vectors x) {
    FOR_SLOTS(i, n[blockIdx.y]) {
        x.at[blockIdx.y * x.stride + listed.at[blockIdx.y * listed.stride + i]] = INFINITY;
    }
}

// --- budgets of heads ------------------------------------------------------------------------------------------------

struct search {
    uint32_t key; // its known bytes
    uint32_t pad[15];
};

// The arrays for all heads, in `work`. least: the number that a head keeps at least. above: the number of its slots
// above all keys that begin with the known bytes.
struct budget_call {
    const gpu_head *heads;
    int n_heads;
    uint32_t budget;
    sl_vectors scores;
    search *found;
    uint32_t *least, *above; // [n_heads]
    uint32_t *counts;        // [n_heads][BYTES] by the next byte
    uint32_t *suffixes;      // [n_heads][BYTES] keys with a higher next byte
    uint32_t *kept;
};

static __global__ void begin_budgets(budget_call c) {
    __shared__ uint32_t scratch[32];
    uint32_t h = blockIdx.x, n = c.heads[h].n_slots, n_infinite = 0;
    for (uint32_t j = threadIdx.x; j < n; j += blockDim.x) {
        n_infinite += gpu::score_key(c.scores.at[h * c.scores.stride + j]) == INFINITE;
    }
    n_infinite = gpu::block_sum(n_infinite, scratch);
    c.counts[h * BYTES + threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        uint32_t fifth = c.budget / 5, least = fifth > n_infinite ? fifth : n_infinite;
        least = least < c.budget ? least : c.budget;
        c.least[h] = least < n ? least : n;
        c.above[h] = 0;
        if (h == 0) {
            c.found->key = 0;
        }
    }
}

static __global__ void count_bytes(budget_call c, int shift) {
    __shared__ uint32_t counts[BYTES];
    uint32_t h = blockIdx.y, key = c.found->key, mask = shift == 24 ? 0 : ~0u << (shift + 8);
    counts[threadIdx.x] = 0;
    __syncthreads();
    FOR_SLOTS(j, c.heads[h].n_slots) {
        uint32_t k = gpu::score_key(c.scores.at[h * c.scores.stride + j]);
        if ((k & mask) == key) {
            atomicAdd(&counts[k >> shift & 255], 1u);
        }
    }
    __syncthreads();
    if (counts[threadIdx.x] > 0) {
        atomicAdd(&c.counts[h * BYTES + threadIdx.x], counts[threadIdx.x]);
    }
}

// Keeps slots that are exactly at the key in order, until `left` are used up.
GPU_DEVICE void share_out(const budget_call &c, uint32_t byte, uint64_t left) {
    for (int h = 0; h < c.n_heads; h++) {
        uint32_t above = c.above[h], up_to = above + c.counts[h * (int)BYTES + (int)byte];
        uint32_t kept = c.least[h] > above ? c.least[h] : above, more = up_to > kept ? up_to - kept : 0;
        more = more < left ? more : (uint32_t)left;
        c.kept[h] = kept + more;
        left -= more;
    }
}

// One block, a thread for each byte. Computes how many slots would be kept in all above the keys that have the byte,
// and chooses the lowest byte for which these are not too many.
static __global__ void __launch_bounds__(BYTES) decide_byte(budget_call c, int shift) {
    __shared__ uint32_t scratch[32];
    __shared__ uint64_t of_byte;
    uint32_t byte = BYTES - 1 - threadIdx.x; // from the highest byte on
    uint64_t kept = 0, total = 0, most = (uint64_t)c.n_heads * c.budget;
    for (int h = 0; h < c.n_heads; h++) {
        uint32_t all, higher = gpu::block_before(c.counts[h * (int)BYTES + (int)byte], scratch, &all);
        uint32_t above = c.above[h] + higher;
        c.suffixes[h * (int)BYTES + (int)byte] = higher;
        kept += above > c.least[h] ? above : c.least[h];
        total += c.heads[h].n_slots;
    }
    total = total < most ? total : most;
    uint32_t found = (uint32_t)__syncthreads_count(kept > total); // fewer are kept above higher bytes
    if (byte == found) {
        of_byte = kept;
    }
    __syncthreads();
    for (uint32_t h = threadIdx.x; h < (uint32_t)c.n_heads; h += blockDim.x) {
        c.above[h] += c.suffixes[h * BYTES + found];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        c.found->key |= found << shift;
        if (shift == 0) {
            share_out(c, found, total - of_byte);
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < (uint32_t)c.n_heads * BYTES; i += blockDim.x) {
        c.counts[i] = 0;
    }
}

// --- launches --------------------------------------------------------------------------------------------------------

void sl_gpu_protect(struct gpu_queue *queue, struct gpu_heads heads, const struct sl_protection *protections,
                    struct sl_vectors x_inout) {
    GPU_LAUNCH(protect, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, heads.at, protections, x_inout);
}

void sl_gpu_spare(struct gpu_queue *queue, struct gpu_heads heads, struct sl_lists listed, const uint32_t *n,
                  struct sl_vectors x_inout) {
    GPU_LAUNCH(spare, gpu::grid_of(heads.most_slots, heads.n), THREADS, 0, queue, listed, n, x_inout);
}

size_t sl_gpu_budgets_work(int n_heads) {
    return sizeof(search) + (size_t)n_heads * (2 + 2 * BYTES) * sizeof(uint32_t);
}

void sl_gpu_budgets(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors scores, uint32_t budget,
                    void *work, uint32_t *kept_out) {
    budget_call c = {};
    c.heads = heads.at, c.n_heads = heads.n, c.budget = budget, c.scores = scores;
    c.found = (search *)work;
    c.least = (uint32_t *)(c.found + 1);
    c.above = c.least + heads.n;
    c.counts = c.above + heads.n;
    c.suffixes = c.counts + (size_t)heads.n * BYTES;
    c.kept = kept_out;
    GPU_LAUNCH(begin_budgets, (unsigned)heads.n, BYTES, 0, queue, c);
    for (int shift = 24; shift >= 0; shift -= 8) {
        GPU_LAUNCH(count_bytes, gpu::grid_of(heads.most_slots, heads.n), BYTES, 0, queue, c, shift);
        GPU_LAUNCH(decide_byte, 1, BYTES, 0, queue, c, shift);
    }
}
