// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention by tensor cores, over pages of codes and the f16 pages behind them.
 *
 * Formula: attend.cu's, over keys and values x^ = code * scale + zero rounded to f16; queries and weights are rounded to f16. Products are
 *          summed in f32.
 *
 * Design: decode reads a page for one row, so query heads are the narrow side: S^T = K q^T and out^T = V^T P^T, m16n8k16, with 8 queries of a KV
 *         head, rows and query heads alike. A warp has a page at a time, and needs no shared memory for it: codes go from memory to
 *         registers, become f16 there (the bits of a code under those of 1,024 are 1,024 + code), and are an operand. Of a split warp w has the
 *         pages whose number is w modulo WARPS; what the warps have is added up in their order.
 *         Operand A wants two neighbours along the sum in a register. Which slot a row is, and which channel, is ours to say: lane (g, t) =
 *         (lane / 4, lane % 4) has eight adjacent codes of whatever it loads, of K slots 8 g .. of channels 8 t + 32 w .., of V channels 8 g .. of slots
 *         16 t ... So row g of tile i is the (2 i)-th of lane g's eight, and row g + 8 the one behind it.
 *         To queries that do not see a page it adds nothing to the bit, so a row's bits depend on nothing else.
 */
#include "tensor/cuda/attention/calls.h"

constexpr uint32_t THREADS = 128, WARPS = THREADS / 32, QUERIES = 8;
constexpr float LOG2_E = 1.44269504f;

// Of a warp: the queries 2 t, 2 t + 1 of a lane; out[4 * i + n][0..1] is channel 64 i + 8 g + 2 n of both, [2..3] the one behind it.
template <int D> struct state { float max[2], sum[2], out[D / 16][4]; };

// --- codes -----------------------------------------------------------------------------------------------------------

// Eight codes, the first in the lowest bits.
template <int BITS> GPU_DEVICE void read_codes(const char *at, uint32_t (&codes)[2]) {
    if (BITS == 8) {
        uint2 both = *(const uint2 *)at;
        codes[0] = both.x;
        codes[1] = both.y;
    } else {
        codes[0] = BITS == 4   ? *(const uint32_t *)at
                   : BITS == 2 ? (uint32_t) * (const uint16_t *)at
                               : (uint32_t) * (const uint8_t *)at;
    }
}

// Code e of a and of b, e a constant, as f16: code * scale + zero, of which there are two as well.
template <int BITS>
GPU_DEVICE uint32_t pair_of(const uint32_t (&a)[2], const uint32_t (&b)[2], uint32_t e, uint32_t scales,
                            uint32_t zeros) {
    constexpr uint32_t EACH = 16 / BITS, MASK = (1u << BITS) - 1, TWICE = 0x10001;
    uint32_t half = e / EACH, at = e % EACH * BITS, word = half / 2;
    uint32_t x = gpu::bytes_of(a[word], b[word], half % 2 == 0 ? 0x5410 : 0x7632);
    if (at + BITS > 10) { // beyond the fraction of an f16
        x >>= 8;
        at -= 8;
    }
    x = gpu::and_or(x, (MASK << at) * TWICE, 0x6400 * TWICE);                             // 1,024 + code 2^at
    x = gpu::fma_f16x2(x, ((15 - at) << 10) * TWICE, (0x8000 | (25 - at) << 10) * TWICE); // the code: exact
    return gpu::fma_f16x2(x, scales, zeros);
}

// Operand A of tile i: what lies in a0, a1 are neighbours along the sum, then b0, b1.
template <int BITS>
GPU_DEVICE void operand(const uint32_t (&a0)[2], const uint32_t (&a1)[2], const uint32_t (&b0)[2],
                        const uint32_t (&b1)[2], const uint32_t (&scales)[2], const uint32_t (&zeros)[2], uint32_t i,
                        uint32_t (&a)[4]) {
    a[0] = pair_of<BITS>(a0, a1, 2 * i, scales[0], zeros[0]);
    a[1] = pair_of<BITS>(a0, a1, 2 * i + 1, scales[0], zeros[0]);
    a[2] = pair_of<BITS>(b0, b1, 2 * i, scales[1], zeros[1]);
    a[3] = pair_of<BITS>(b0, b1, 2 * i + 1, scales[1], zeros[1]);
}

// Four (scale, zero) as the scales and the zeros of two operands.
GPU_DEVICE void part_pairs(uint32_t p0, uint32_t p1, uint32_t p2, uint32_t p3, uint32_t (&scales)[2],
                           uint32_t (&zeros)[2]) {
    scales[0] = gpu::bytes_of(p0, p1, 0x5410);
    zeros[0] = gpu::bytes_of(p0, p1, 0x7632);
    scales[1] = gpu::bytes_of(p2, p3, 0x5410);
    zeros[1] = gpu::bytes_of(p2, p3, 0x7632);
}

// --- scores of a page: s[i], slots 8 g + 2 i and the one behind it -----------------------------------------------------

template <int D, int BITS>
GPU_DEVICE void score_codes(const sl_page_layout &layout, const char *page, const uint32_t (&q)[D / 16][2],
                            float (&s)[4][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    GPU_UNROLL
    for (uint32_t step = 0; step < D / 16; step++) {
        uint32_t c = 8 * (t + 4 * (step / 2)) + 4 * (step % 2), k[4][2] = {}, scales[2], zeros[2], a[4];
        uint4 pairs = *(const uint4 *)(page + layout.k_scale + c * 4);
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            read_codes<BITS>(page + layout.k + (c + j) * (8 * BITS) + g * BITS, k[j]);
        }
        part_pairs(pairs.x, pairs.y, pairs.z, pairs.w, scales, zeros);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            operand<BITS>(k[0], k[1], k[2], k[3], scales, zeros, i, a);
            gpu::mma_f16(s[i], a, q[step]);
        }
    }
}

// Eight channels of a slot; zeros behind the last: 0 times what lies there might be NaN.
template <int D> GPU_DEVICE uint4 row_of(const char *part, uint32_t slot, uint32_t c, uint32_t n) {
    const uint4 none = {0, 0, 0, 0};
    return slot < n ? *(const uint4 *)(part + (slot * (uint32_t)D + c) * 2) : none;
}

// Of f16 a lane's scores and weights lie in shared memory between tiles, 32 apart, so that tiles need not be unrolled: the loads of
// all of them at once would be more than there are registers.
template <int D>
GPU_DEVICE void score_halves(const char *keys, uint32_t n, const uint32_t (&q)[D / 16][2], float4 *tiles) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    GPU_UNROLL_BY(1)
    for (uint32_t i = 0; i < 4; i++) {
        float s[4] = {};
        GPU_UNROLL
        for (uint32_t w = 0; w < D / 32; w++) {
            uint4 x = row_of<D>(keys, 8 * g + 2 * i, 8 * (t + 4 * w), n);
            uint4 y = row_of<D>(keys, 8 * g + 2 * i + 1, 8 * (t + 4 * w), n);
            const uint32_t lo[4] = {x.x, y.x, x.y, y.y}, hi[4] = {x.z, y.z, x.w, y.w};
            gpu::mma_f16(s, lo, q[2 * w]);
            gpu::mma_f16(s, hi, q[2 * w + 1]);
        }
        tiles[32 * i] = {s[0], s[1], s[2], s[3]};
    }
}

// --- weights -----------------------------------------------------------------------------------------------------------

struct seen { // the slots that a query sees, and none where there is no query
    uint32_t begin, end;
};

// s becomes the weights exp(s - max') of slots that are seen, else 0; the state is scaled to max'.
template <int D>
GPU_DEVICE void weigh(const seen (&q)[2], float scale, uint32_t first, float (&s)[4][4], state<D> &state) {
    uint32_t g = threadIdx.x % 32 / 4;
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        float most = -INFINITY, sum = 0.0f;
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t j = first + 8 * g + i;
            float &x = s[i / 2][i % 2 * 2 + e];
            x = j >= q[e].begin && j < q[e].end ? x * scale : -INFINITY;
            most = fmaxf(most, x);
        }
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
        }
        most = fmaxf(state.max[e], most);
        float keep =
            most == -INFINITY ? 1.0f : exp2f((state.max[e] - most) * LOG2_E); // nothing seen yet: nothing to scale
        float base = most == -INFINITY ? 0.0f : most * LOG2_E;
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            float &x = s[i / 2][i % 2 * 2 + e];
            x = exp2f(fmaf(x, LOG2_E, -base));
            sum += x;
        }
        state.max[e] = most;
        state.sum[e] = state.sum[e] * keep + sum;
        GPU_UNROLL
        for (int n = 0; n < D / 16; n++) {
            state.out[n][e] *= keep;
            state.out[n][2 + e] *= keep;
        }
    }
}

// Operand B of out^T from tile i of the weights.
GPU_DEVICE void turn(const float (&s)[4], uint32_t (&p)[2]) {
    p[0] = gpu::transpose_8x8(gpu::pack_f16(s[0], s[1]));
    p[1] = gpu::transpose_8x8(gpu::pack_f16(s[2], s[3]));
}

// --- out += P V of a page ----------------------------------------------------------------------------------------------

template <int D, int BITS>
GPU_DEVICE void add_codes(const sl_page_layout &layout, const char *page, const float (&s)[4][4], state<D> &state) {
    constexpr uint32_t GROUPS = D / 64, ROW = D * BITS / 8;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t j = 16 * t + 2 * i, p[2], a[4];
        const uint32_t slots[4] = {j, j + 8, j + 1, j + 9}; // as turn() has them along the sum
        turn(s[i], p);
        GPU_UNROLL
        for (uint32_t group = 0; group < GROUPS; group++) {
            uint32_t v[4][2] = {}, pairs[4], scales[2], zeros[2];
            GPU_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                pairs[k] = ((const uint32_t *)(page + layout.v_scale))[slots[k] * GROUPS + group];
                read_codes<BITS>(page + layout.v + slots[k] * ROW + (8 * group + g) * BITS, v[k]);
            }
            part_pairs(pairs[0], pairs[1], pairs[2], pairs[3], scales, zeros);
            GPU_UNROLL
            for (uint32_t n = 0; n < 4; n++) {
                operand<BITS>(v[0], v[1], v[2], v[3], scales, zeros, n, a);
                gpu::mma_f16(state.out[4 * group + n], a, p);
            }
        }
    }
}

GPU_DEVICE void two_slots(uint32_t x, uint32_t y, uint32_t &low, uint32_t &high) {
    low = gpu::bytes_of(x, y, 0x5410);
    high = gpu::bytes_of(x, y, 0x7632);
}

template <int D> GPU_DEVICE void add_halves(const char *values, uint32_t n, const float4 *tiles, state<D> &state) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    GPU_UNROLL_BY(1)
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t j = 16 * t + 2 * i, p[2], a[4];
        float4 weights = tiles[32 * i];
        const float s[4] = {weights.x, weights.y, weights.z, weights.w};
        turn(s, p);
        GPU_UNROLL
        for (uint32_t group = 0; group < D / 64; group++) {
            uint32_t c = 64 * group + 8 * g;
            uint4 v0 = row_of<D>(values, j, c, n), v1 = row_of<D>(values, j + 8, c, n);
            uint4 v2 = row_of<D>(values, j + 1, c, n), v3 = row_of<D>(values, j + 9, c, n);
            two_slots(v0.x, v1.x, a[0], a[1]), two_slots(v2.x, v3.x, a[2], a[3]);
            gpu::mma_f16(state.out[4 * group], a, p);
            two_slots(v0.y, v1.y, a[0], a[1]), two_slots(v2.y, v3.y, a[2], a[3]);
            gpu::mma_f16(state.out[4 * group + 1], a, p);
            two_slots(v0.z, v1.z, a[0], a[1]), two_slots(v2.z, v3.z, a[2], a[3]);
            gpu::mma_f16(state.out[4 * group + 2], a, p);
            two_slots(v0.w, v1.w, a[0], a[1]), two_slots(v2.w, v3.w, a[2], a[3]);
            gpu::mma_f16(state.out[4 * group + 3], a, p);
        }
    }
}

// --- a block -----------------------------------------------------------------------------------------------------------

template <int D> struct block_memory {
    float4 tiles[WARPS][4][32]; // of pages of f16
    float outs[WARPS][QUERIES][D + 4], maxima[WARPS][QUERIES], sums[WARPS][QUERIES];
    float all[QUERIES][D], max[QUERIES], sum[QUERIES]; // of the splits so far
};

// Of query g of the tile, as operand B.
template <int D>
GPU_DEVICE void load_queries(const attend_call &c, const gpu_attend *call, const query &of, uint32_t (&q)[D / 16][2]) {
    int64_t stride = c.shape.q_stride > 0 ? c.shape.q_stride : (int64_t)c.shape.n_heads * D;
    const float *from = call->q + (of.row < 0 ? 0 : of.row) * stride + (int64_t)of.head * D;
    GPU_UNROLL
    for (uint32_t step = 0; step < D / 16; step++) {
        float4 x = {0, 0, 0, 0};
        if (of.row >= 0) {
            x = *(const float4 *)(from + 8 * (threadIdx.x % 4 + 4 * (step / 2)) + 4 * (step % 2));
        }
        q[step][0] = gpu::f32_to_f16_saturated(x.x) | (uint32_t)gpu::f32_to_f16_saturated(x.y) << 16;
        q[step][1] = gpu::f32_to_f16_saturated(x.z) | (uint32_t)gpu::f32_to_f16_saturated(x.w) << 16;
    }
}

// The warp's pages among slots [begin, end).
template <int D, int BITS>
GPU_DEVICE void add_pages(const attend_call &c, const gpu_head *h, uint32_t begin, uint32_t end, const seen (&q)[2],
                          const uint32_t (&fragments)[D / 16][2], float4 *tiles, state<D> &state) {
    uint32_t page = begin / SL_PAGE_SLOTS;
    page += (threadIdx.x / 32 - page) % WARPS;
    for (; page * SL_PAGE_SLOTS < end; page += WARPS) {
        uint32_t first = page * SL_PAGE_SLOTS, n = h->n_slots - first;
        const char *at = (const char *)h->pages[page];
        float s[4][4] = {};
        if (page < h->n_packed) {
            score_codes<D, BITS>(h->packed, at, fragments, s);
            weigh(q, c.shape.scale, first, s, state);
            add_codes<D, BITS>(h->packed, at, s, state);
        } else {
            score_halves<D>(at + h->work.k, n, fragments, tiles);
            GPU_UNROLL
            for (int i = 0; i < 4; i++) {
                float4 x = tiles[32 * i];
                s[i][0] = x.x, s[i][1] = x.y, s[i][2] = x.z, s[i][3] = x.w;
            }
            weigh(q, c.shape.scale, first, s, state);
            GPU_UNROLL
            for (int i = 0; i < 4; i++) {
                tiles[32 * i] = {s[i][0], s[i][1], s[i][2], s[i][3]};
            }
            add_halves<D>(at + h->work.v, n, tiles, state);
        }
    }
}

// What the warps have, in shared memory.
template <int D> GPU_DEVICE void put_aside(const state<D> &state, block_memory<D> *m) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        float sum = state.sum[e];
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            sum += __shfl_xor_sync(~0u, sum, lanes);
        }
        if (g == 0) {
            m->maxima[warp][2 * t + e] = state.max[e];
            m->sums[warp][2 * t + e] = sum;
        }
        GPU_UNROLL
        for (uint32_t n = 0; n < D / 16; n++) {
            float *out = &m->outs[warp][2 * t + e][64 * (n / 4) + 8 * g + 2 * (n % 4)];
            out[0] = state.out[n][e];
            out[1] = state.out[n][2 + e];
        }
    }
}

// Of a query and a channel, over the warps in their order.
template <int D>
GPU_DEVICE void add_warps(const block_memory<D> *m, uint32_t q, uint32_t channel, float &max, float &sum, float &out) {
    max = -INFINITY, sum = 0.0f, out = 0.0f;
    GPU_UNROLL
    for (uint32_t w = 0; w < WARPS; w++) {
        max = fmaxf(max, m->maxima[w][q]);
    }
    GPU_UNROLL
    for (uint32_t w = 0; w < WARPS; w++) {
        float weight = m->maxima[w][q] == -INFINITY ? 0.0f : exp2f((m->maxima[w][q] - max) * LOG2_E);
        sum = fmaf(weight, m->sums[w][q], sum);
        out = fmaf(weight, m->outs[w][q][channel], out);
    }
}

// Numbers of the result, a thread after the other: not all of a thread's at once, which would take registers.
#define FOR_CELLS(q, channel)                                                                                          \
    GPU_UNROLL_BY(1)                                                                                                   \
    for (uint32_t at = threadIdx.x, q = at / D, channel = at % D; at < QUERIES * D;                                    \
         at += THREADS, q = at / D, channel = at % D)

template <int D>
GPU_DEVICE void begin_whole(const attend_call &c, const gpu_attend *call, const gpu_head *h, uint32_t first,
                            block_memory<D> *m) {
    FOR_CELLS(i, channel) {
        query q = query_of(c, call, h, blockIdx.y, first + i);
        bool before = q.row >= 0 && call->before_max != nullptr && call->before_max[row_at(call, q)] != -INFINITY;
        m->all[i][channel] = before ? call->before_out[out_at(c.shape, q) + channel] : 0.0f;
        if (channel == 0) {
            m->max[i] = before ? call->before_max[row_at(call, q)] : -INFINITY;
            m->sum[i] = before ? call->before_sum[row_at(call, q)] : 0.0f;
        }
    }
    __syncthreads();
}

// The split behind the others, as attend.cu folds them.
template <int D> GPU_DEVICE void fold(block_memory<D> *m) {
    FOR_CELLS(i, channel) {
        float part, sum, out;
        add_warps(m, i, channel, part, sum, out);
        if (part != -INFINITY) {
            float max = fmaxf(m->max[i], part);
            m->all[i][channel] = folded(expf(m->max[i] - max), m->all[i][channel], expf(part - max), out);
        }
    }
    __syncthreads(); // all have read the maximum
    if (threadIdx.x < QUERIES) {
        float part, sum, out, before = m->max[threadIdx.x];
        add_warps(m, threadIdx.x, 0, part, sum, out);
        if (part != -INFINITY) {
            float max = fmaxf(before, part);
            m->sum[threadIdx.x] = folded(expf(before - max), m->sum[threadIdx.x], expf(part - max), sum);
            m->max[threadIdx.x] = max;
        }
    }
    __syncthreads();
}

template <int D>
GPU_DEVICE void store_whole(const attend_call &c, const gpu_attend *call, const gpu_head *h, uint32_t first,
                            const block_memory<D> *m) {
    bool unfinished = c.shape.unfinished;
    FOR_CELLS(i, channel) {
        query q = query_of(c, call, h, blockIdx.y, first + i);
        if (q.row < 0) {
            continue;
        }
        float divisor = unfinished || m->sum[i] == 0.0f ? 1.0f : m->sum[i];
        (unfinished ? call->before_out : call->out)[out_at(c.shape, q) + channel] = m->all[i][channel] / divisor;
        if (channel == 0 && unfinished) {
            call->before_max[row_at(call, q)] = m->max[i];
            call->before_sum[row_at(call, q)] = m->sum[i];
        } else if (channel == 0 && call->lse != nullptr) {
            call->lse[row_at(call, q)] = m->max[i] + logf(m->sum[i]);
        }
    }
}

template <int D>
GPU_DEVICE void store_part(const attend_call &c, const gpu_attend *call, const gpu_head *h, uint32_t first,
                           uint32_t split, const block_memory<D> *m) {
    FOR_CELLS(i, channel) {
        query q = query_of(c, call, h, blockIdx.y, first + i);
        float max, sum, out;
        if (q.row < 0) {
            continue;
        }
        add_warps(m, i, channel, max, sum, out);
        float *to = part_of(c, blockIdx.z, q, split);
        to[2 + channel] = out;
        if (channel == 0) {
            to[0] = max;
            to[1] = sum;
        }
    }
}

// blockIdx: tile of queries (and split), KV head, call. Three blocks a multiprocessor, or four: 168 registers, or 128.
template <int D, int BITS>
static __global__ void __launch_bounds__(THREADS, D == 64 ? 4 : 3) attend_packed(attend_call c) {
    __shared__ block_memory<D> m;
    const gpu_attend *call = &c.calls[blockIdx.z];
    const gpu_head *h = &call->heads[blockIdx.y];
    uint32_t first = blockIdx.x % c.n_tiles * QUERIES, lane = threadIdx.x % 32;
    if ((int)first >= call->m * (c.shape.n_heads / c.shape.n_kv_heads)) {
        return;
    }
    seen q[2];
    uint32_t begin = ~0u, end = 0; // what any of them sees
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        query of = query_of(c, call, h, blockIdx.y, first + 2 * (lane % 4) + e);
        q[e] = {of.begin, of.end};
        begin = of.row >= 0 && of.begin < begin ? of.begin : begin;
        end = of.end > end ? of.end : end;
    }
    for (int lanes = 1; lanes < 4; lanes *= 2) {
        uint32_t other_begin = __shfl_xor_sync(~0u, begin, lanes), other_end = __shfl_xor_sync(~0u, end, lanes);
        begin = other_begin < begin ? other_begin : begin;
        end = other_end > end ? other_end : end;
    }
    uint32_t fragments[D / 16][2];
    load_queries<D>(c, call, query_of(c, call, h, blockIdx.y, first + lane / 4), fragments);
    if (c.n_splits == 0) {
        begin_whole<D>(c, call, h, first, &m);
    }
    uint32_t split = c.n_splits > 0 ? blockIdx.x / c.n_tiles : begin / SPLIT;
    for (; split * SPLIT < end; split++) {
        state<D> part;
        part.max[0] = part.max[1] = -INFINITY;
        part.sum[0] = part.sum[1] = 0.0f;
        GPU_UNROLL
        for (int n = 0; n < D / 16; n++) {
            part.out[n][0] = part.out[n][1] = part.out[n][2] = part.out[n][3] = 0.0f;
        }
        add_pages<D, BITS>(c, h, split * SPLIT > begin ? split * SPLIT : begin,
                           (split + 1) * SPLIT < end ? (split + 1) * SPLIT : end, q, fragments,
                           &m.tiles[threadIdx.x / 32][0][lane], part);
        put_aside(part, &m);
        __syncthreads();
        if (c.n_splits > 0) {
            store_part<D>(c, call, h, first, split, &m);
            return;
        }
        fold<D>(&m);
    }
    if (c.n_splits == 0) {
        store_whole<D>(c, call, h, first, &m);
    }
}

// --- launches ------------------------------------------------------------------------------------------------------------

template <int D> static bool launch(struct gpu_queue *queue, const attend_call &c, int n_calls) {
    dim3 grid(c.n_tiles * (c.n_splits > 0 ? c.n_splits : 1), (unsigned)c.shape.n_kv_heads, (unsigned)n_calls);
    switch (c.shape.packed_format) {
    case SL_KV_INT8:
        GPU_LAUNCH((attend_packed<D, 8>), grid, THREADS, 0, queue, c);
        return true;
    case SL_KV_INT4:
        GPU_LAUNCH((attend_packed<D, 4>), grid, THREADS, 0, queue, c);
        return true;
    case SL_KV_INT2:
        GPU_LAUNCH((attend_packed<D, 2>), grid, THREADS, 0, queue, c);
        return true;
    case SL_KV_INT1:
        GPU_LAUNCH((attend_packed<D, 1>), grid, THREADS, 0, queue, c);
        return true;
    default:
        return false;
    }
}

bool gpu_attend_packed(struct gpu_queue *queue, attend_call c, int n_calls) {
    bool ours = c.shape.has_packed && c.shape.format == SL_KV_F16 && c.shape.slot_cosines == nullptr;
    if (!ours || c.listed.slots != nullptr || c.shape.q_stride % 4 != 0) {
        return false;
    }
    c.n_tiles = ((uint32_t)(c.most_rows * (c.shape.n_heads / c.shape.n_kv_heads)) + QUERIES - 1) / QUERIES;
    return c.shape.head_dim == 64    ? launch<64>(queue, c, n_calls)
           : c.shape.head_dim == 128 ? launch<128>(queue, c, n_calls)
                                     : false;
}
