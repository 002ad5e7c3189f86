// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: scores slots of key indexes (engine/kvcache/key_index.h) by all of their channels:
 *
 *     out[j - begin] = sum_c w[c] code_j[c] in ascending c,    w[c] = q[c] scale[c], or q[c] where there are no scales
 *
 * Design: a thread has as many adjacent slots as one load of a channel brings: 16 bytes, except for f32, where it takes
 *         two loads, and for signs, where 32 are enough. Every byte is read once, so an index may be in the host's
 *         memory: reads then cross the bus in whole sectors, and no copy precedes them. A block computes the weights
 *         once.
 */
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/pages.h"
#include "engine/tensor/cuda/retrieve/launch.h"

constexpr uint32_t THREADS = 256, MOST_CHANNELS = 512; // SL_MAX_HEAD_DIM

constexpr sl_kv_index index_of(sl_kv_format format) {
    switch (format) {
#define X(name, word, wire, bits, index, ...)                                                                          \
    case SL_KV_##name:                                                                                                 \
        return SL_KV_INDEX_##index;
        SL_KV_FORMATS(X)
#undef X
    }
    return SL_KV_INDEX_NONE;
}

template <sl_kv_format FORMAT, sl_kv_index INDEX = index_of(FORMAT)> struct codes { // for a float format
    static constexpr uint32_t EACH = 8;
    float x[EACH];
};
template <sl_kv_format FORMAT> struct codes<FORMAT, SL_KV_INDEX_BYTES> {
    static constexpr uint32_t EACH = 16;
    uint4 x;
};
template <sl_kv_format FORMAT> struct codes<FORMAT, SL_KV_INDEX_SIGNS> {
    static constexpr uint32_t EACH = 32;
    uint32_t x;
};

// Loads slots [j, j + EACH) of a channel, j a multiple of EACH.
template <sl_kv_format FORMAT>
GPU_DEVICE void load(const char *channel, uint32_t j, codes<FORMAT, SL_KV_INDEX_FLOATS> *out) {
    gpu::read_floats8(FORMAT, channel, j, out->x);
}
template <sl_kv_format FORMAT>
GPU_DEVICE void load(const char *channel, uint32_t j, codes<FORMAT, SL_KV_INDEX_BYTES> *out) {
    out->x = ((const uint4 *)channel)[j / 16];
}
template <sl_kv_format FORMAT>
GPU_DEVICE void load(const char *channel, uint32_t j, codes<FORMAT, SL_KV_INDEX_SIGNS> *out) {
    out->x = ((const uint32_t *)channel)[j / 32];
}

// Returns weight * the i-th of them.
template <sl_kv_format FORMAT>
GPU_DEVICE float times(float weight, const codes<FORMAT, SL_KV_INDEX_FLOATS> &of, uint32_t i) {
    return weight * of.x[i];
}
template <sl_kv_format FORMAT>
GPU_DEVICE float times(float weight, const codes<FORMAT, SL_KV_INDEX_BYTES> &of, uint32_t i) {
    uint32_t word = i < 4 ? of.x.x : i < 8 ? of.x.y : i < 12 ? of.x.z : of.x.w;
    return weight * (float)(int8_t)(uint8_t)(word >> i % 4 * 8);
}
template <sl_kv_format FORMAT>
GPU_DEVICE float times(float weight, const codes<FORMAT, SL_KV_INDEX_SIGNS> &of, uint32_t i) {
    return (of.x >> i & 1) != 0 ? weight : -weight;
}

// blockIdx.y: piece. The bound of one block lets ptxas take more registers instead of spilling. Loads of slots outside
// the piece stay within the index, whose capacity is whole pages.
template <sl_kv_format FORMAT>
static __global__ void __launch_bounds__(THREADS, 1) scan(const gpu_scan_piece *pieces, int n_channels) {
    constexpr uint32_t EACH = codes<FORMAT>::EACH;
    __shared__ float weights[MOST_CHANNELS];
    const gpu_scan_piece p = pieces[blockIdx.y];
    if (p.begin == p.end) {
        return;
    }
    for (int c = (int)threadIdx.x; c < n_channels; c += (int)THREADS) {
        weights[c] = gpu::is_codes(FORMAT) ? p.q[c] * p.scale[c] : p.q[c];
    }
    __syncthreads();
    uint32_t first = p.begin / EACH, n = (p.end + EACH - 1) / EACH - first;
    FOR_SLOTS(u, n) {
        uint32_t j = (first + u) * EACH;
        float sum[EACH];
        GPU_UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            sum[i] = 0.0f;
        }
        for (int c = 0; c < n_channels; c++) {
            codes<FORMAT> here;
            load(p.codes + (size_t)c * p.channel_bytes, j, &here);
            GPU_UNROLL
            for (uint32_t i = 0; i < EACH; i++) {
                sum[i] += times(weights[c], here, i);
            }
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            if (j + i >= p.begin && j + i < p.end) {
                p.out[j + i - p.begin] = sum[i];
            }
        }
    }
}

template <sl_kv_format FORMAT>
static void launch(struct gpu_queue *queue, const gpu_scan_piece *pieces, uint32_t n_pieces, int n_channels,
                   uint32_t most_slots) {
    if constexpr (index_of(FORMAT) != SL_KV_INDEX_NONE) {
        // One unit more: a piece may begin in the middle of one.
        dim3 grid = gpu::grid_of(most_slots / codes<FORMAT>::EACH + 2, (int)n_pieces);
        GPU_LAUNCH(scan<FORMAT>, grid, THREADS, 0, queue, pieces, n_channels);
    }
}

void sl_gpu_scan(struct gpu_queue *queue, enum sl_kv_format format, const struct gpu_scan_piece *pieces,
                 uint32_t n_pieces, int n_channels, uint32_t most_slots) {
    switch (format) {
#define X(name, ...)                                                                                                   \
    case SL_KV_##name:                                                                                                 \
        launch<SL_KV_##name>(queue, pieces, n_pieces, n_channels, most_slots);                                         \
        break;
        SL_KV_FORMATS(X)
#undef X
    }
}
