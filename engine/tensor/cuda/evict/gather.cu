// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: compaction in place: slot keep[i] becomes slot i.
 *
 * Design: columns are independent: a block has 32 bytes of every K or V row of a head, or one plane of its positions or
 *         state, and moves them tile by tile, in order. keep[i] >= i, so no earlier tile has written what a later tile
 *         reads. Within a tile all reads come before all writes. No block waits for another one.
 */
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/pages.h"

constexpr uint32_t THREADS = 256, UNROLL = 4, COLUMN = 32; // COLUMN: bytes that memory delivers at once

// Loads by elements: a struct that is copied whole may not become registers.
GPU_DEVICE uint4 load(const uint4 *from) {
    uint4 x = *from;
    return {x.x, x.y, x.z, x.w};
}
GPU_DEVICE uint32_t load(const uint32_t *from) {
    return *from;
}
GPU_DEVICE void store(uint4 *to, const uint4 &x) {
    *to = {x.x, x.y, x.z, x.w};
}
GPU_DEVICE void store(uint32_t *to, uint32_t x) {
    *to = x;
}

// Moves numbers of type T: `column` bytes into the rows, `pitch` bytes apart, of the part at `part`; UNITS of them for
// each row.
template <class T, uint32_t UNITS>
GPU_DEVICE void move(const gpu_head *h, const uint32_t *keep, uint32_t begin, uint32_t n, uint32_t part, uint32_t pitch,
                     uint32_t column) {
    constexpr uint32_t ROWS = THREADS / UNITS;
    uint32_t at = column + threadIdx.x % UNITS * (uint32_t)sizeof(T), row = threadIdx.x / UNITS;
    for (uint32_t first = begin; first < n; first += ROWS * UNROLL) {
        T held[UNROLL];
        GPU_UNROLL
        for (uint32_t k = 0; k < UNROLL; k++) {
            uint32_t i = first + k * ROWS + row, j = keep[i < n ? i : n - 1]; // no branch: the last one stays as it is
            held[k] =
                load((const T *)(gpu::page_of(h, j) + part + j % SL_PAGE_SLOTS * pitch + (at < pitch ? at : column)));
        }
        __syncthreads();
        GPU_UNROLL
        for (uint32_t k = 0; k < UNROLL; k++) {
            uint32_t i = first + k * ROWS + row;
            if (i < n && at < pitch) {
                store((T *)(gpu::page_of(h, i) + part + i % SL_PAGE_SLOTS * pitch + at), held[k]);
            }
        }
    }
}

// Returns the first i with keep[i] != i, or n. keep[i] - i never falls, so a binary search finds it.
GPU_DEVICE uint32_t first_moved(const uint32_t *keep, uint32_t n) {
    uint32_t begin = 0, end = n;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (keep[middle] == middle) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

// blockIdx.x: columns of K, then of V, then the planes.
static __global__ void __launch_bounds__(THREADS)
    gather(const gpu_head *heads, uint32_t n_columns, sl_lists lists, const uint32_t *kept) {
    const gpu_head *h = &heads[blockIdx.y];
    const sl_page_layout *layout = &h->work;
    uint32_t n = kept[blockIdx.y], which = blockIdx.x;
    if (n >= h->n_slots) {
        return;
    }
    const uint32_t *keep = lists.at + blockIdx.y * lists.stride;
    uint32_t begin = first_moved(keep, n);
    if (which < 2 * n_columns) {
        move<uint4, COLUMN / sizeof(uint4)>(h, keep, begin, n, which < n_columns ? layout->k : layout->v,
                                            gpu::row_bytes(layout), which % n_columns * COLUMN);
        return;
    }
    which -= 2 * n_columns;
    if (layout->has_positions && which-- == 0) {
        move<uint32_t, 1>(h, keep, begin, n, layout->positions, sizeof(int32_t), 0);
        return;
    }
    move<uint32_t, 1>(h, keep, begin, n, layout->states + which * SL_PAGE_SLOTS * (uint32_t)sizeof(float),
                      sizeof(float), 0);
}

void sl_gpu_gather(struct gpu_queue *queue, struct gpu_heads heads, struct sl_lists keep, const uint32_t *kept) {
    const struct sl_page_layout *layout = heads.layout;
    uint32_t bytes = (uint32_t)(layout->head_dim * sl_kv_format_bits(layout->format)) / 8;
    uint32_t n_columns = (bytes + COLUMN - 1) / COLUMN, n_planes = (uint32_t)layout->n_states + layout->has_positions;
    GPU_LAUNCH(gather, dim3(2 * n_columns + n_planes, (unsigned)heads.n), THREADS, 0, queue, heads.at, n_columns, keep,
               kept);
}
