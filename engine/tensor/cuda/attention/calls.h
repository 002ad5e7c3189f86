// SPDX-License-Identifier: Apache-2.0
// Purpose: calls of attention as kernels see them: a block's queries, the slots that these see, and the addresses of
// their results. For attend.cu, attend_tensor.cu and attend_packed.cu.
#pragma once

#include "engine/tensor/cuda/attention/tiles.h"

// Slots of a split; SL_ATTEND_SPLIT is a multiple. Splits of packed pages have twice as many, because a block has costs
// besides its pages.
constexpr uint32_t SPLIT = 512, PACKED_SPLIT = 1024;

struct attend_call {
    const gpu_attend *calls;
    gpu_attention shape;
    uint32_t n_tiles, n_splits; // n_tiles: of queries; n_splits 0: a block folds its splits itself
    uint32_t split;             // slots of a split
    int most_rows;
    gpu_lists listed; // for attend_slots; slots NULL: all slots
    float *parts;     // [calls][most_rows][H][n_splits][2 + d] max, sum, out
};

// --- addresses -------------------------------------------------------------------------------------------------------

struct query {           // one query of a block
    int row, head;       // row < 0: there is no query
    uint32_t begin, end; // the slots that the query sees
};

GPU_DEVICE query query_of(const attend_call &c, const gpu_attend *call, const gpu_head *h, uint32_t kv_head,
                          uint32_t at) {
    int group = c.shape.n_heads / c.shape.n_kv_heads, row = (int)at / group;
    if (row >= call->m) {
        return {-1, 0, 0, 0};
    }
    uint32_t end = c.shape.unfinished ? h->n_slots : h->n_slots - (uint32_t)call->m + (uint32_t)row + 1;
    end = c.listed.slots != nullptr ? c.listed.n[kv_head] : end;
    return {row, (int)kv_head * group + (int)at % group, gpu::first_seen(call, h, c.shape.window, row), end};
}

GPU_DEVICE size_t out_at(const gpu_attention &shape, const query &q) {
    size_t stride = shape.out_stride > 0 ? (size_t)shape.out_stride : (size_t)shape.n_heads * (size_t)shape.head_dim;
    return (size_t)q.row * stride + (size_t)q.head * (size_t)shape.head_dim;
}

GPU_DEVICE size_t row_at(const gpu_attend *call, const query &q) {
    return (size_t)q.head * (size_t)call->m + (size_t)q.row;
}

GPU_DEVICE float *part_of(const attend_call &c, uint32_t call, const query &q, uint32_t split) {
    size_t row = ((size_t)call * (size_t)c.most_rows + (size_t)q.row) * (size_t)c.shape.n_heads + (size_t)q.head;
    return c.parts + (row * c.n_splits + split) * (size_t)(2 + c.shape.head_dim);
}

// Returns a number over all splits so far and one more, scaled to the larger maximum. All kernels fold with this
// function.
GPU_DEVICE float folded(float scale_all, float all, float scale_part, float part) {
    return fmaf(scale_all, all, scale_part * part);
}

// Attends by tensor cores. Covers pages in a 16-bit format and of codes, keys that are rotated already or by their
// slots as a whole, and the head sizes that have kernels. Returns false for other calls. The bits depend on neither the
// number of rows, the calls, nor where splits are folded.
bool gpu_attend_tensor(struct gpu_queue *queue, attend_call c, int n_calls);
// Returns true where attend_packed.cu covers the call: pages of codes and of f16, all slots, and keys that are rotated
// already. It multiplies the codes themselves, in splits of PACKED_SPLIT slots.
bool gpu_attends_packed(const attend_call &c);
bool gpu_attend_packed(struct gpu_queue *queue, attend_call c, int n_calls);
