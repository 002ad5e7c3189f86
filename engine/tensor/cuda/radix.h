// SPDX-License-Identifier: Apache-2.0
// Purpose: finds the b-th largest of many keys, by a block: radix select, 11 bits at a time from the top.
#pragma once

#include "engine/tensor/cuda/block.h"

namespace gpu {

struct edge { // the key of the b-th largest
    uint32_t key;
    uint32_t n_equal; // how many of the b have the key
    uint32_t n_there; // how many of all have the key
    uint32_t n_all;   // how many were counted
};

struct search {
    static constexpr uint32_t BINS = 2048;
    uint32_t counts[BINS], scratch[32];
    edge found;
};

// Finds the key among the j < n for which `counts_in(j, &key)`. b is reduced to their number. Where there are none,
// only n_all is set.
template <uint32_t THREADS, class F> GPU_DEVICE edge find_key(F counts_in, uint32_t n, uint32_t b, search *s) {
    constexpr uint32_t EACH = search::BINS / THREADS, AHEAD = 8;
    uint32_t key = 0, mask = 0, n_all = 0;
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
        uint32_t top = shift == 0 ? 1023 : 2047;
        for (uint32_t i = threadIdx.x; i < search::BINS; i += THREADS) {
            s->counts[i] = 0;
        }
        __syncthreads();
        for (uint32_t first = threadIdx.x; first < n; first += AHEAD * THREADS) {
            uint32_t k[AHEAD];
            bool in[AHEAD];
            GPU_UNROLL
            for (uint32_t i = 0; i < AHEAD; i++) { // all loads are in flight before one is counted
                in[i] = first + i * THREADS < n && counts_in(first + i * THREADS, &k[i]);
            }
            GPU_UNROLL
            for (uint32_t i = 0; i < AHEAD; i++) {
                if (in[i] && (k[i] & mask) == key) {
                    atomicAdd(&s->counts[k[i] >> shift & top], 1u);
                }
            }
        }
        __syncthreads();
        uint32_t high = search::BINS - 1 - threadIdx.x * EACH, mine = 0, all; // bins high, high - 1, ..: from the top
        GPU_UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            mine += s->counts[high - i];
        }
        uint32_t before = block_before(mine, s->scratch, &all);
        n_all = mask == 0 ? all : n_all;
        b = b < all ? b : all;
        if (b == 0) {
            return {0, 0, 0, n_all};
        }
        if (before < b && b <= before + mine) { // true in one thread
            uint32_t bin = high, left = b - before;
            for (; s->counts[bin] < left; bin--) {
                left -= s->counts[bin];
            }
            s->found = {key | bin << shift, left, s->counts[bin], n_all};
        }
        __syncthreads();
        key = s->found.key;
        b = s->found.n_equal;
        mask |= top << shift;
        __syncthreads();
    }
    return s->found;
}

} // namespace gpu
