// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: selects the best of many scores, one block for each head.
 *
 * Design: radix.h finds the key of the b-th largest. Scores above it stay, and some of those that equal it: the first,
 *         the last, or those with the best ties, found by the same search among the equals. Then every warp counts the
 *         slots that stay in a range of its own, computes the index of its first one, and lists them in order.
 */
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/radix.h"

constexpr uint32_t THREADS = 512, WARPS = THREADS / 32;

// Lists the slots that stay: those above, and of those at the edge the ones with a rank in [skip, skip + n_equal).
template <class F> GPU_DEVICE void list(F place_of, uint32_t n, bool last, uint32_t n_equal, uint32_t *keep) {
    __shared__ uint32_t aboves[WARPS], edges[WARPS];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
    uint32_t each = (n + THREADS - 1) / THREADS * 32, begin = warp * each, end = begin + each;
    uint32_t n_above = 0, n_edge = 0, skip = 0;
    for (uint32_t first = begin; first < end && first < n; first += 32) {
        int place = first + lane < n ? place_of(first + lane) : -1;
        n_above += (uint32_t)__popc(__ballot_sync(~0u, place > 0));
        n_edge += (uint32_t)__popc(__ballot_sync(~0u, place == 0));
    }
    if (lane == 0) {
        aboves[warp] = n_above;
        edges[warp] = n_edge;
    }
    __syncthreads();
    n_above = n_edge = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        n_above += w < warp ? aboves[w] : 0;
        n_edge += w < warp ? edges[w] : 0;
        skip += edges[w];
    }
    skip = last ? skip - n_equal : 0;
    for (uint32_t first = begin; first < end && first < n; first += 32) {
        int place = first + lane < n ? place_of(first + lane) : -1;
        uint32_t above = __ballot_sync(~0u, place > 0), equal = __ballot_sync(~0u, place == 0);
        uint32_t rank = n_edge + (uint32_t)__popc(equal & below);
        uint32_t of_edge = rank < skip ? 0 : rank - skip < n_equal ? rank - skip : n_equal;
        if (place > 0 || (place == 0 && rank >= skip && rank - skip < n_equal)) {
            keep[n_above + (uint32_t)__popc(above & below) + of_edge] = first + lane;
        }
        n_above += (uint32_t)__popc(above);
        n_edge += (uint32_t)__popc(equal);
    }
}

// The bound of one block lets ptxas take more registers instead of spilling.
static __global__ void __launch_bounds__(THREADS, 1)
    select_slots(const gpu_head *heads, sl_vectors of_heads, sl_vectors ties_of_heads, bool newest,
                 const uint32_t *kept, sl_lists keep_out) {
    __shared__ gpu::search s;
    uint32_t h = blockIdx.x, n = heads[h].n_slots, b = kept[h];
    const float *scores = of_heads.at + h * of_heads.stride;
    uint32_t *keep = keep_out.at + h * keep_out.stride;
    if (b == 0 || b >= n) {
        for (uint32_t j = threadIdx.x; j < n && b > 0; j += THREADS) {
            keep[j] = j;
        }
        return;
    }
    gpu::edge found = gpu::find_key<THREADS>(
        [=](uint32_t j, uint32_t *key_out) {
            *key_out = gpu::score_key(scores[j]);
            return true;
        },
        n, b, &s);
    if (ties_of_heads.at == nullptr) {
        list(
            [=](uint32_t j) {
                uint32_t key = gpu::score_key(scores[j]);
                return key > found.key ? 1 : key == found.key ? 0 : -1;
            },
            n, newest, found.n_equal, keep);
        return;
    }
    const float *ties = ties_of_heads.at + h * ties_of_heads.stride;
    gpu::edge tie = gpu::find_key<THREADS>(
        [=](uint32_t j, uint32_t *key_out) {
            *key_out = gpu::score_key(ties[j]);
            return gpu::score_key(scores[j]) == found.key;
        },
        n, found.n_equal, &s);
    list(
        [=](uint32_t j) {
            uint32_t key = gpu::score_key(scores[j]), of_tie = gpu::score_key(ties[j]);
            return key > found.key || (key == found.key && of_tie > tie.key) ? 1
                   : key == found.key && of_tie == tie.key                   ? 0
                                                                             : -1;
        },
        n, false, tie.n_equal, keep);
}

void sl_gpu_select(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors scores, struct sl_vectors ties,
                   bool newest, const uint32_t *kept, struct sl_lists keep_out) {
    GPU_LAUNCH(select_slots, (unsigned)heads.n, THREADS, 0, queue, heads.at, scores, ties, newest, kept, keep_out);
}
