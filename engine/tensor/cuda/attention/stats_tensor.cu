// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: fold and window_sums of stats.cu by tensor cores.
 *
 * Formula: that of stats.cu, with scores S^T = K q^T. Queries, keys that are rotated by their slots, and the values of
 *          codes, are rounded to the format of the pages; products are summed in f32. Queries are scaled to powers of
 *          two, and sums begin at -lse, so that p is 2^sum.
 *
 * Design: a warp keeps the keys of 32 slots in registers, as operand A, and goes over the rows, eight at a time, as
 *         operand B. The eight warps of a block share the rows: one stage in shared memory is used while the next is
 *         filled. The query heads of a group follow each other in the same lanes, so their mean needs no exchange
 *         between lanes. A lane has two of the eight rows of four slots; at the end its sums are added to those of
 *         three neighbors. No other block has a slot: state is added to without atomics, in one order.
 */
#include "engine/tensor/cuda/attention/stats.h"

constexpr uint32_t THREADS = 256, WARPS = THREADS / 32, TILES = 2, OF_WARP = 16 * TILES, OF_BLOCK = WARPS * OF_WARP;
constexpr uint32_t ROWS = 8, HEADS = 4; // of a stage
constexpr float LOG2_E = 1.44269504f;

template <int D> constexpr uint32_t PITCH = D + 8; // of rows in shared memory: eight rows use different banks

template <int D> struct stage {
    alignas(16) uint16_t queries[HEADS][ROWS][PITCH<D>];
    float starts[HEADS][ROWS]; // -lse, in powers of two; -infinity: there is no such row
    uint32_t begin[ROWS], end[ROWS];
    float even[ROWS]; // the mean weight of the row; infinity where it sees one slot, which never exceeds the mean
};

template <bool BF16> GPU_DEVICE uint32_t pack(float lo, float hi) {
    return BF16 ? gpu::pack_bf16_fast(lo, hi) : gpu::pack_f16_saturated(lo, hi);
}

// --- operands --------------------------------------------------------------------------------------------------------

// Loads eight channels of a slot's key, from c on, rotated by the angles of its slot.
template <int D>
GPU_DEVICE void rotated_key(const gpu_attention &shape, uint32_t slot, int c, float (&key)[8],
                            const float (&partner)[8]) {
    size_t angle = (size_t)slot * (D / 2) + (size_t)(c % (D / 2));
    float sign = c < D / 2 ? -1.0f : 1.0f; // of the sine
    GPU_UNROLL
    for (int i = 0; i < 8; i++) {
        key[i] =
            key[i] * shape.slot_cosines[angle + (size_t)i] + sign * partner[i] * shape.slot_sines[angle + (size_t)i];
    }
}

// Loads 16 channels at a time through `scratch`, [32 slots][16], which is the warp's own. The loop is not unrolled: it
// shifts the registers instead of indexing them.
template <int D, bool BF16, bool ROTATED>
GPU_DEVICE void load_keys(const gpu_attention &shape, const gpu_head *h, uint32_t first, uint16_t *scratch,
                          uint32_t (&keys)[TILES][D / 16][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    GPU_UNROLL_BY(1)
    for (int c = 0; c < D; c += 16) {
        __syncwarp();
        GPU_UNROLL_BY(1)
        for (uint32_t u = lane; u < OF_WARP * 2; u += 32) {
            uint32_t slot = first + u / 2;
            float x[8] = {};
            if (slot < h->n_slots) {
                const sl_page_layout *layout = gpu::layout_of(h, slot / SL_PAGE_SLOTS);
                int at = c + (int)(u % 2) * 8;
                gpu::read_k8(layout, gpu::page_of(h, slot), slot % SL_PAGE_SLOTS, at, x);
                if (ROTATED) {
                    float partner[8];
                    gpu::read_k8(layout, gpu::page_of(h, slot), slot % SL_PAGE_SLOTS, (at + D / 2) % D, partner);
                    rotated_key<D>(shape, slot, at, x, partner);
                }
            }
            *(uint4 *)(scratch + u * 8) = {pack<BF16>(x[0], x[1]), pack<BF16>(x[2], x[3]), pack<BF16>(x[4], x[5]),
                                           pack<BF16>(x[6], x[7])};
        }
        __syncwarp();
        GPU_UNROLL
        for (uint32_t i = 0; i < TILES; i++) {
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                GPU_UNROLL
                for (uint32_t k = 0; k + 1 < D / 16; k++) {
                    keys[i][k][e] = keys[i][k + 1][e];
                }
                keys[i][D / 16 - 1][e] =
                    *(const uint32_t *)(scratch + (i * 16 + e % 2 * 8 + g) * 16 + e / 2 * 8 + 2 * t);
            }
        }
    }
}

struct rows_of { // the rows and heads of a stage
    int row, head, n_heads;
};

template <bool BF16> GPU_DEVICE uint2 pack4(const float4 &x, float scale) {
    return {pack<BF16>(x.x * scale, x.y * scale), pack<BF16>(x.z * scale, x.w * scale)};
}

// Fills in four channels of the first half of a row, and their rotation partners; a thread has two of the four heads.
template <int D, bool BF16>
GPU_DEVICE void fill_rotated(const stats_call &c, const gpu_head *h, const rows_of &of, int64_t stride, float scale,
                             stage<D> *to) {
    constexpr uint32_t UNITS = D / 8;
    uint32_t i = threadIdx.x / UNITS % ROWS, channel = threadIdx.x % UNITS * 4;
    int r = of.row + (int)i < c.call->m ? of.row + (int)i : c.call->m - 1;
    const float *from = c.call->q + r * stride + of.head * D + channel;
    size_t angle = (size_t)(h->n_slots - (uint32_t)c.call->m + (uint32_t)r) * (D / 2) + channel;
    float4 cosine = *(const float4 *)(c.shape.slot_cosines + angle);
    float4 sine = *(const float4 *)(c.shape.slot_sines + angle);
    GPU_UNROLL_BY(1)
    for (int head = (int)(threadIdx.x / (UNITS * ROWS)); head < of.n_heads; head += 2) {
        float4 a = *(const float4 *)(from + head * D), b = *(const float4 *)(from + head * D + D / 2);
        float4 x = {a.x * cosine.x - b.x * sine.x, a.y * cosine.y - b.y * sine.y, a.z * cosine.z - b.z * sine.z,
                    a.w * cosine.w - b.w * sine.w};
        float4 y = {b.x * cosine.x + a.x * sine.x, b.y * cosine.y + a.y * sine.y, b.z * cosine.z + a.z * sine.z,
                    b.w * cosine.w + a.w * sine.w};
        *(uint2 *)&to->queries[head][i][channel] = pack4<BF16>(x, scale);
        *(uint2 *)&to->queries[head][i][channel + D / 2] = pack4<BF16>(y, scale);
    }
}

template <int D, bool BF16, bool ROTATED>
GPU_DEVICE void fill(const stats_call &c, const gpu_head *h, const rows_of &of, stage<D> *to) {
    constexpr uint32_t UNITS = D / 4;
    int m = c.call->m;
    int64_t stride = c.shape.q_stride > 0 ? c.shape.q_stride : (int64_t)c.shape.n_heads * D;
    float scale = c.shape.scale * LOG2_E;
    if (ROTATED && threadIdx.x < ROWS * UNITS) {
        fill_rotated<D, BF16>(c, h, of, stride, scale, to);
    } else if (threadIdx.x < ROWS * UNITS) {
        uint32_t i = threadIdx.x / UNITS, channel = threadIdx.x % UNITS * 4;
        // a row past the end reads the last row, and its values are not used
        int r = of.row + (int)i < m ? of.row + (int)i : m - 1;
        const float *from = c.call->q + r * stride + of.head * D + channel;
        GPU_UNROLL
        for (int head = 0; head < (int)HEADS; head++) {
            if (head < of.n_heads) {
                *(uint2 *)&to->queries[head][i][channel] = pack4<BF16>(*(const float4 *)(from + head * D), scale);
            }
        }
    }
    if (threadIdx.x < ROWS * HEADS) {
        uint32_t head = threadIdx.x / ROWS, i = threadIdx.x % ROWS;
        int r = of.row + (int)i;
        uint32_t begin = 0, end = 0;
        if (r >= c.first_row && r < m) {
            begin = gpu::first_seen(c.call, h, c.shape.window, r);
            end = h->n_slots - (uint32_t)m + (uint32_t)r + 1;
        }
        bool there = (int)head < of.n_heads && begin < end;
        to->starts[head][i] =
            there ? -LOG2_E * c.call->lse[(size_t)(of.head + (int)head) * (size_t)m + (size_t)r] : -INFINITY;
        if (head == 0) {
            to->begin[i] = begin;
            to->end[i] = end;
            to->even[i] = end - begin > 1 ? 1.0f / (float)(end - begin) : INFINITY;
        }
    }
}

// --- sums ------------------------------------------------------------------------------------------------------------

// Adds p of one head to means[i]: slots g and g + 8 of tile i, rows 2 t and 2 t + 1 of each. `first`: the warp's first
// slot.
template <int D, bool BF16>
GPU_DEVICE void add_weights(const stage<D> &at, uint32_t head, bool all_seen, uint32_t first,
                            const uint32_t (&keys)[TILES][D / 16][4], float (&means)[TILES][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float2 start = *(const float2 *)&at.starts[head][2 * t];
    float s[TILES][4];
    GPU_UNROLL
    for (uint32_t i = 0; i < TILES; i++) {
        s[i][0] = s[i][2] = start.x;
        s[i][1] = s[i][3] = start.y;
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < D / 32; k++) {
        uint32_t b[4];
        gpu::ldmatrix_x4(b, &at.queries[head][lane % 8][k * 32 + lane / 8 * 8]);
        const uint32_t lo[2] = {b[0], b[1]}, hi[2] = {b[2], b[3]};
        GPU_UNROLL
        for (uint32_t i = 0; i < TILES; i++) {
            BF16 ? gpu::mma_bf16(s[i], keys[i][2 * k], lo) : gpu::mma_f16(s[i], keys[i][2 * k], lo);
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < TILES; i++) {
            BF16 ? gpu::mma_bf16(s[i], keys[i][2 * k + 1], hi) : gpu::mma_f16(s[i], keys[i][2 * k + 1], hi);
        }
    }
    if (!all_seen) {
        GPU_UNROLL
        for (uint32_t i = 0; i < TILES; i++) {
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t slot = first + i * 16 + e / 2 * 8 + g, r = 2 * t + e % 2;
                s[i][e] = slot >= at.begin[r] && slot < at.end[r] ? s[i][e] : -INFINITY;
            }
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < TILES; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++) {
            means[i][e] += gpu::fast_exp2(s[i][e]);
        }
    }
}

// The sums of slots g and g + 8 of each tile.
struct sums {
    float sum[TILES][2], square[TILES][2], above[TILES][2];
};

template <int D> GPU_DEVICE void add_means(const stage<D> &at, float each, const float (&means)[TILES][4], sums &s) {
    uint32_t t = threadIdx.x % 4;
    float2 even = *(const float2 *)&at.even[2 * t];
    GPU_UNROLL
    for (uint32_t i = 0; i < TILES; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            float x = means[i][2 * e] * each, y = means[i][2 * e + 1] * each;
            s.sum[i][e] += x + y;
            s.square[i][e] += fmaf(x, x, y * y);
            s.above[i][e] += (x > even.x ? 1.0f : 0.0f) + (y > even.y ? 1.0f : 0.0f);
        }
    }
}

GPU_DEVICE double of_four(float x) {
    double sum = (double)x;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum;
}

GPU_DEVICE void store(const stats_call &c, const gpu_head *h, uint32_t first, const sums &s) {
    uint32_t lane = threadIdx.x % 32;
    GPU_UNROLL
    for (uint32_t i = 0; i < TILES; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t slot = first + i * 16 + e * 8 + lane / 4;
            const double all[3] = {of_four(s.sum[i][e]), of_four(s.square[i][e]), of_four(s.above[i][e])};
            if (lane % 4 != 0 || slot >= h->n_slots) {
                continue;
            }
            if (c.sums != nullptr) {
                c.sums[blockIdx.y * c.stride + slot] = (float)all[0];
                continue;
            }
            const sl_page_layout *layout = gpu::layout_of(h, slot / SL_PAGE_SLOTS);
            GPU_UNROLL
            for (int k = 0; k < 3; k++) {
                if (c.planes[k] >= 0 && c.planes[k] < layout->n_states) {
                    float *state = (float *)(gpu::page_of(h, slot) + layout->states) + c.planes[k] * SL_PAGE_SLOTS;
                    state[slot % SL_PAGE_SLOTS] = (float)((double)state[slot % SL_PAGE_SLOTS] + all[k]);
                }
            }
        }
    }
}

// --- a block ---------------------------------------------------------------------------------------------------------

// blockIdx: slots; KV head of fold, query head of window_sums. Two blocks for each multiprocessor: 128 registers.
template <int D, bool BF16, bool ROTATED>
static __global__ void __launch_bounds__(THREADS, 2) stats_tensor(stats_call c) {
    __shared__ stage<D> stages[2];
    int group = c.shape.n_heads / c.shape.n_kv_heads, kv_head = (int)blockIdx.y, head = kv_head * group;
    if (c.sums != nullptr) {
        head = kv_head;
        kv_head /= group;
        group = 1;
    }
    const gpu_head *h = &c.call->heads[kv_head];
    uint32_t of_block = blockIdx.x * OF_BLOCK, first = of_block + threadIdx.x / 32 * OF_WARP;
    uint32_t last = of_block + OF_BLOCK < h->n_slots ? of_block + OF_BLOCK : h->n_slots;
    if (of_block >= h->n_slots ||
        (c.sums == nullptr && last <= h->n_packed * SL_PAGE_SLOTS && h->packed.n_states == 0)) {
        return; // or packed pages that have dropped all of it
    }
    uint32_t keys[TILES][D / 16][4] = {};
    static_assert(sizeof stages >= WARPS * OF_WARP * 16 * sizeof(uint16_t), "");
    load_keys<D, BF16, ROTATED>(c.shape, h, first, (uint16_t *)stages + threadIdx.x / 32 * OF_WARP * 16, keys);
    __syncthreads(); // keys have been read
    sums s = {};
    int before = (int)h->n_slots - c.call->m, row = (int)of_block - before; // earlier rows see none of these slots
    row = row > c.first_row ? row : c.first_row;
    rows_of next = {row, head, group < (int)HEADS ? group : (int)HEADS};
    if (row < c.call->m) {
        fill<D, BF16, ROTATED>(c, h, next, &stages[0]);
    }
    float means[TILES][4] = {};
    for (uint32_t i = 0; next.row < c.call->m; i++) {
        const rows_of now = next;
        const stage<D> &at = stages[i % 2];
        bool whole = c.shape.window == 0 && before + now.row + 1 >= (int)last; // the first row sees all slots
        next.head += now.n_heads;
        if (next.head == head + group) {
            next.head = head;
            next.row += (int)ROWS;
        }
        next.n_heads = head + group - next.head < (int)HEADS ? head + group - next.head : (int)HEADS;
        __syncthreads(); // the stage has arrived; the other has been used
        if (next.row < c.call->m) {
            fill<D, BF16, ROTATED>(c, h, next, &stages[(i + 1) % 2]);
        }
        GPU_UNROLL_BY(1)
        for (int g = 0; g < now.n_heads; g++) {
            add_weights<D, BF16>(at, (uint32_t)g, whole, first, keys, means);
        }
        if (next.row != now.row) {
            add_means(at, 1.0f / (float)group, means, s);
            GPU_UNROLL
            for (uint32_t k = 0; k < TILES; k++) {
                means[k][0] = means[k][1] = means[k][2] = means[k][3] = 0.0f;
            }
        }
    }
    store(c, h, first, s);
}

// --- launches --------------------------------------------------------------------------------------------------------

template <int D, bool BF16> static void launch(struct gpu_queue *queue, const stats_call &c, uint32_t most_slots) {
    dim3 grid(most_slots > 0 ? (most_slots + OF_BLOCK - 1) / OF_BLOCK : 1,
              (unsigned)(c.sums != nullptr ? c.shape.n_heads : c.shape.n_kv_heads));
    if (c.shape.slot_cosines != nullptr) {
        GPU_LAUNCH((stats_tensor<D, BF16, true>), grid, THREADS, 0, queue, c);
    } else {
        GPU_LAUNCH((stats_tensor<D, BF16, false>), grid, THREADS, 0, queue, c);
    }
}

template <int D> static bool launch_of(struct gpu_queue *queue, const stats_call &c, uint32_t most_slots) {
    if (c.shape.format == SL_KV_BF16) {
        launch<D, true>(queue, c, most_slots);
    } else {
        launch<D, false>(queue, c, most_slots);
    }
    return true;
}

bool gpu_stats_tensor(struct gpu_queue *queue, const stats_call &c, uint32_t most_slots) {
    bool halves = c.shape.format == SL_KV_F16 || c.shape.format == SL_KV_BF16;
    // partial rotation: not here
    bool rotated = c.shape.slot_cosines != nullptr && c.shape.rotary_dim != c.shape.head_dim;
    if (!halves || rotated || c.shape.q_stride % 4 != 0) {
        return false;
    }
    int d = c.shape.head_dim;
    return d == 64   ? launch_of<64>(queue, c, most_slots)
           : d == 96 ? launch_of<96>(queue, c, most_slots)
                     : d == 128 && launch_of<128>(queue, c, most_slots);
}
