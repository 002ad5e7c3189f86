// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention by tensor cores, over pages of codes and the f16 pages after them.
 *
 * Formula: that of attend.cu, over keys and values code * scale + zero. Queries and weights are rounded to f16, before
 *          and after they are multiplied by a scale; products are summed in f32:
 *
 *              s_j = scale q K_j = sum_c (q_c scale_c) code_jc + sum_c q_c zero_c        q: times scale log2(e)
 *              out_c = sum_j (p_j scale_j) code_jc + sum_j p_j zero_j                    p: times 16
 *
 * Design: decode reads a page for one row, so query heads are the narrow side: S^T = K q^T and out^T = V^T P^T,
 *         m16n8k16, with 8 queries of a KV head, rows and query heads alike. A warp has a page at a time, and needs no
 *         shared memory for it: codes go from memory to registers, become f16 there, and are an operand. Within a split
 *         warp w has the pages whose number is w modulo WARPS. The results of the warps are added up in their order.
 *         The number of instructions decides the speed (docs/GPU_KERNELS.md), so a code becomes a number in one instruction:
 *         its bits below those of 1,024 give 1,024 + code 2^at. The bit position, at, is the same within a row of the
 *         operand, so 2^-at is a factor of the result. Another product computes 1,024 times the sum of the other
 *         operand, which is subtracted. Operand A needs two neighbors along the sum in a register. The assignment of
 *         rows to slots and channels is free: lane (g, t) = (lane / 4, lane % 4) has eight adjacent codes of each load,
 *         of K slots 8 g .. of channels 8 t + 32 w .., of V EACH channels of slots 16 t ... So row g of tile i is the
 *         (2 i)-th of lane g's, and row g + 8 the one after it.
 *         A page adds nothing, to the bit, to queries that do not see it, so a row's bits depend on nothing else.
 */
#include "engine/tensor/cuda/attention/calls.h"
#include "engine/tensor/cuda/attention/codes.h"

constexpr uint32_t THREADS = 128, WARPS = THREADS / 32, QUERIES = 8;
constexpr float LN_2 = 0.693147181f, LOG2_E = 1.44269504f;
constexpr float WEIGHT_BITS =
    4.0f; // weights are up to 2^4: times a small scale they still have all their digits in f16

using gpu::EACH, gpu::GROUP, gpu::GROUPS, gpu::SUMS;

// The state of a warp: the queries 2 t, 2 t + 1 of a lane. out[EACH / 2 * group + n][0..1]: channel
// GROUP group + EACH g + 2 n of both, [2..3] the next channel. For codes, out is not yet scaled and lacks two terms:
// sums[i][0..1] of group 2 i, [2..3] of the next group, is 1,024 times the weights; zeros is the same for weights times
// zeros.
template <int D> struct state { float max[2], sum[2], out[D / 16][4], sums[SUMS<D>][4], zeros[SUMS<D>][4]; };

// --- scores of a page: s[i], slots 8 g + 2 i and the next one --------------------------------------------------------

template <int D, int BITS>
GPU_DEVICE void score_codes(const sl_page_layout &layout, const char *page, const uint32_t (&q)[D / 16][2],
                            float (&s)[4][4]) {
    constexpr uint32_t EVEN = gpu::OFFSET<gpu::AT_EVEN<BITS>>, ODD = gpu::OFFSET<gpu::AT_ODD<BITS>>;
    constexpr float OF_EVEN = 1.0f / (1 << gpu::AT_EVEN<BITS>), OF_ODD = 1.0f / (1 << gpu::AT_ODD<BITS>);
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *codes = page + layout.k + 8 * t * (8 * BITS), *pairs = page + layout.k_scale + 8 * t * 4;
    float base[4] = {};
    const uint32_t offsets[4] = {EVEN, ODD, EVEN, ODD};
    GPU_UNROLL
    for (uint32_t step = 0; step < D / 16; step++) {
        uint32_t c = 32 * (step / 2) + 4 * (step % 2), k[4][2] = {}, scales[2], zeros[2], a[4];
        uint4 pair = *(const uint4 *)(pairs + c * 4);
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            gpu::read_codes<BITS, 8>(codes + (c + j) * (8 * BITS), g, k[j]);
        }
        gpu::two_slots(pair.x, pair.y, scales[0], zeros[0]);
        gpu::two_slots(pair.z, pair.w, scales[1], zeros[1]);
        const uint32_t of_zeros[4] = {zeros[0], zeros[0], zeros[1], zeros[1]};
        const uint32_t scaled[2] = {gpu::mul_f16x2(q[step][0], scales[0]), gpu::mul_f16x2(q[step][1], scales[1])};
        gpu::mma_f16(base, of_zeros, q[step]);
        gpu::mma_f16(base, offsets, scaled);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            gpu::operand<BITS>(k, i, a);
            gpu::mma_f16(s[i], a, scaled);
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            s[i][e] = fmaf(s[i][e], OF_EVEN, base[e]);
            s[i][2 + e] = fmaf(s[i][2 + e], OF_ODD, base[2 + e]);
        }
    }
}

// Returns eight channels of a slot; zeros from slot n on, because 0 times unwritten memory might be NaN.
template <int D> GPU_DEVICE uint4 row_of(const char *part, uint32_t slot, uint32_t c, uint32_t n) {
    const uint4 none = {0, 0, 0, 0};
    return slot < n ? *(const uint4 *)(part + (slot * (uint32_t)D + c) * 2) : none;
}

// Keeps a lane's scores and weights of f16 pages in shared memory between tiles, 32 apart, so that tiles need not be
// unrolled: the loads of all tiles at once would need too many registers.
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

// --- weights ---------------------------------------------------------------------------------------------------------

struct seen { // the slots that a query sees; none where there is no query
    uint32_t begin, end;
};

// Replaces s by the weights 2^(s - max') 2^WEIGHT_BITS of seen slots, else 0; scales the state to max'.
template <int D, bool CODES>
GPU_DEVICE void weigh(const seen (&q)[2], bool all_seen, uint32_t first, float (&s)[4][4], state<D> &state) {
    uint32_t g = threadIdx.x % 32 / 4;
    float most[2];
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < 8 && !all_seen; i++) {
            uint32_t j = first + 8 * g + i;
            float &x = s[i / 2][i % 2 * 2 + e];
            x = j >= q[e].begin && j < q[e].end ? x : -INFINITY;
        }
        most[e] = state.max[e];
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            most[e] = fmaxf(most[e], s[i / 2][i % 2 * 2 + e]);
        }
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            most[e] = fmaxf(most[e], __shfl_xor_sync(~0u, most[e], lanes));
        }
    }
    // factors are 1 where no maximum has changed
    if (__ballot_sync(~0u, most[0] != state.max[0] || most[1] != state.max[1]) != 0) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            float keep = most[e] != state.max[e] ? gpu::fast_exp2(state.max[e] - most[e]) : 1.0f;
            state.max[e] = most[e];
            state.sum[e] *= keep;
            GPU_UNROLL
            for (int n = 0; n < D / 16; n++) {
                state.out[n][e] *= keep;
                state.out[n][2 + e] *= keep;
            }
            GPU_UNROLL
            for (uint32_t n = 0; n < SUMS<D> && CODES; n++) {
                state.sums[n][e] *= keep, state.sums[n][2 + e] *= keep;
                state.zeros[n][e] *= keep, state.zeros[n][2 + e] *= keep;
            }
        }
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        float base = most[e] == -INFINITY ? 0.0f : WEIGHT_BITS - most[e];
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            float &x = s[i / 2][i % 2 * 2 + e];
            x = gpu::fast_exp2(x + base);
            state.sum[e] += x;
        }
    }
}

// Makes operand B of out^T from tile i of the weights.
GPU_DEVICE void turn(const float (&s)[4], uint32_t (&p)[2]) {
    p[0] = gpu::transpose_8x8(gpu::pack_f16_saturated(s[0], s[1]));
    p[1] = gpu::transpose_8x8(gpu::pack_f16_saturated(s[2], s[3]));
}

// --- out += P V of a page --------------------------------------------------------------------------------------------

template <int D, int BITS>
GPU_DEVICE void add_codes(const sl_page_layout &layout, const char *page, const float (&s)[4][4], state<D> &state) {
    constexpr uint32_t ROW = D * BITS / 8, ONE = gpu::MAGIC; // 1,024
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *codes = page + layout.v + 16 * t * ROW, *pairs = page + layout.v_scale + 16 * t * GROUPS<D> * 4;
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t slots[4] = {2 * i, 2 * i + 8, 2 * i + 1,
                                   2 * i + 9}; // after 16 t, in the order that turn() gives them along the sum
        uint32_t near[2][GROUPS<D>], far[2][GROUPS<D>], p[2], of_zeros[SUMS<D>][4] = {};
        gpu::read_pairs<D>(pairs, 2 * i, near);
        gpu::read_pairs<D>(pairs, 2 * i + 8, far);
        turn(s[i], p);
        GPU_UNROLL
        for (uint32_t group = 0; group < GROUPS<D>; group++) {
            uint32_t v[4][2] = {}, scales[2], zeros[2], a[4], odd = group % 2;
            GPU_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                gpu::read_codes<BITS, (int)EACH<D>>(codes + slots[k] * ROW + group * (GROUP<D> / 8) * BITS, g, v[k]);
            }
            gpu::two_slots(near[0][group], far[0][group], scales[0], zeros[0]);
            gpu::two_slots(near[1][group], far[1][group], scales[1], zeros[1]);
            of_zeros[group / 2][odd] = zeros[0], of_zeros[group / 2][2 + odd] = zeros[1];
            const uint32_t scaled[2] = {gpu::mul_f16x2(p[0], scales[0]), gpu::mul_f16x2(p[1], scales[1])};
            const uint32_t ones[4] = {odd ? 0 : ONE, odd ? ONE : 0, odd ? 0 : ONE, odd ? ONE : 0};
            gpu::mma_f16(state.sums[group / 2], ones, scaled);
            GPU_UNROLL
            for (uint32_t n = 0; n < EACH<D> / 2; n++) {
                gpu::operand<BITS>(v, n, a);
                gpu::mma_f16(state.out[EACH<D> / 2 * group + n], a, scaled);
            }
        }
        GPU_UNROLL
        for (uint32_t n = 0; n < SUMS<D>; n++) {
            gpu::mma_f16(state.zeros[n], of_zeros[n], p);
        }
    }
}

// Scales the sums after the last page of codes.
template <int D, int BITS> GPU_DEVICE void finish_codes(state<D> &state) {
    constexpr float OF_EVEN = 1.0f / (1 << gpu::AT_EVEN<BITS>), OF_ODD = 1.0f / (1 << gpu::AT_ODD<BITS>);
    GPU_UNROLL
    for (uint32_t n = 0; n < D / 16; n++) {
        uint32_t group = n / (EACH<D> / 2);
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            float sums = state.sums[group / 2][group % 2 * 2 + e], zeros = state.zeros[group / 2][group % 2 * 2 + e];
            state.out[n][e] = fmaf(state.out[n][e] - sums, OF_EVEN, zeros);
            state.out[n][2 + e] = fmaf(state.out[n][2 + e] - sums, OF_ODD, zeros);
        }
    }
}

// Loads EACH channels of a slot, two in a register.
template <int D>
GPU_DEVICE void row_of_group(const char *values, uint32_t slot, uint32_t c, uint32_t n, uint32_t (&out)[4]) {
    if (EACH<D> == 8) {
        uint4 x = row_of<D>(values, slot, c, n);
        out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
    } else {
        uint2 x = {0, 0};
        if (slot < n) {
            x = *(const uint2 *)(values + (slot * (uint32_t)D + c) * 2);
        }
        out[0] = x.x, out[1] = x.y;
    }
}

template <int D> GPU_DEVICE void add_halves(const char *values, uint32_t n, const float4 *tiles, state<D> &state) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    GPU_UNROLL_BY(1)
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t j = 16 * t + 2 * i, p[2], a[4];
        const uint32_t slots[4] = {j, j + 8, j + 1, j + 9};
        float4 weights = tiles[32 * i];
        const float s[4] = {weights.x, weights.y, weights.z, weights.w};
        turn(s, p);
        GPU_UNROLL
        for (uint32_t group = 0; group < GROUPS<D>; group++) {
            uint32_t v[4][4] = {};
            GPU_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                row_of_group<D>(values, slots[k], GROUP<D> * group + EACH<D> * g, n, v[k]);
            }
            GPU_UNROLL
            for (uint32_t k = 0; k < EACH<D> / 2; k++) {
                gpu::two_slots(v[0][k], v[1][k], a[0], a[1]), gpu::two_slots(v[2][k], v[3][k], a[2], a[3]);
                gpu::mma_f16(state.out[EACH<D> / 2 * group + k], a, p);
            }
        }
    }
}

// --- a block ---------------------------------------------------------------------------------------------------------

template <int D> struct block_memory {
    float4 tiles[WARPS][4][32]; // of f16 pages
    float outs[WARPS][QUERIES][D + 4], maxima[WARPS][QUERIES], sums[WARPS][QUERIES];
    float weights[WARPS][QUERIES], part_max[QUERIES], part_sum[QUERIES]; // of the warps, and their total
    float all[QUERIES][D], max[QUERIES], sum[QUERIES];                   // of all splits so far
};

// Loads query g of the tile as operand B; scaled, in powers of two.
template <int D>
GPU_DEVICE void load_queries(const attend_call &c, const gpu_attend *call, const query &of, uint32_t (&q)[D / 16][2]) {
    int64_t stride = c.shape.q_stride > 0 ? c.shape.q_stride : (int64_t)c.shape.n_heads * D;
    const float *from = call->q + (of.row < 0 ? 0 : of.row) * stride + (int64_t)of.head * D;
    float scale = c.shape.scale * LOG2_E;
    GPU_UNROLL
    for (uint32_t step = 0; step < D / 16; step++) {
        float4 x = {0, 0, 0, 0};
        if (of.row >= 0) {
            x = *(const float4 *)(from + 8 * (threadIdx.x % 4 + 4 * (step / 2)) + 4 * (step % 2));
        }
        q[step][0] = gpu::pack_f16_saturated(x.x * scale, x.y * scale);
        q[step][1] = gpu::pack_f16_saturated(x.z * scale, x.w * scale);
    }
}

struct range { // slots that any query of the block sees, and slots that all of them see
    uint32_t begin, end, all_begin, all_end;
};

GPU_DEVICE range both(const range &a, const range &b) {
    return {a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end,
            a.all_begin > b.all_begin ? a.all_begin : b.all_begin, a.all_end < b.all_end ? a.all_end : b.all_end};
}

// Prefetches a page while another one is computed: K with scales and V with scales are adjacent.
template <int D, int BITS> GPU_DEVICE void ahead(const sl_page_layout &layout, const char *page) {
    constexpr uint32_t LINE = 128, BYTES = 2 * (D * 8 * BITS) + D * 4 + SL_PAGE_SLOTS * GROUPS<D> * 4;
    GPU_UNROLL
    for (uint32_t at = 0; at < BYTES; at += 32 * LINE) {
        uint32_t mine = at + threadIdx.x % 32 * LINE;
        if (page != nullptr && mine < BYTES) {
            gpu::prefetch(page + layout.k + mine);
        }
    }
}

// Adds the warp's pages among the slots of a part of the block.
template <int D, int BITS>
GPU_DEVICE void add_pages(const gpu_head *h, const range &part, const seen (&q)[2],
                          const uint32_t (&fragments)[D / 16][2], float4 *tiles, state<D> &state) {
    uint32_t page = part.begin / SL_PAGE_SLOTS, n_packed = (part.end + SL_PAGE_SLOTS - 1) / SL_PAGE_SLOTS;
    n_packed = n_packed < h->n_packed ? n_packed : h->n_packed;
    page += (threadIdx.x / 32 - page) % WARPS;
    const char *at = page < n_packed ? (const char *)h->pages[page] : nullptr;
    const char *next = page + WARPS < n_packed ? (const char *)h->pages[page + WARPS] : nullptr;
    GPU_UNROLL_BY(1)
    for (; page < n_packed; page += WARPS) {
        uint32_t first = page * SL_PAGE_SLOTS;
        const char *after = next;
        ahead<D, BITS>(h->packed, after);
        next = page + 2 * WARPS < n_packed ? (const char *)h->pages[page + 2 * WARPS] : nullptr;
        bool all_seen = first >= part.all_begin && first + SL_PAGE_SLOTS <= part.all_end;
        float s[4][4] = {};
        score_codes<D, BITS>(h->packed, at, fragments, s);
        weigh<D, true>(q, all_seen, first, s, state);
        add_codes<D, BITS>(h->packed, at, s, state);
        at = after;
    }
    finish_codes<D, BITS>(state);
    GPU_UNROLL_BY(1)
    for (; page * SL_PAGE_SLOTS < part.end; page += WARPS) {
        uint32_t first = page * SL_PAGE_SLOTS, n = h->n_slots - first;
        at = (const char *)h->pages[page];
        float s[4][4];
        score_halves<D>(at + h->work.k, n, fragments, tiles);
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            float4 x = tiles[32 * i];
            s[i][0] = x.x, s[i][1] = x.y, s[i][2] = x.z, s[i][3] = x.w;
        }
        weigh<D, false>(q, false, first, s, state);
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            tiles[32 * i] = {s[i][0], s[i][1], s[i][2], s[i][3]};
        }
        add_halves<D>(at + h->work.v, n, tiles, state);
    }
}

// Writes the warps' states to shared memory: sums of channels, and the weight of each warp.
template <int D> GPU_DEVICE void put_aside(const state<D> &state, block_memory<D> *m) {
    constexpr uint32_t PAIRS = EACH<D> / 2;
    constexpr float UNIT = 1.0f / 16; // 2^-WEIGHT_BITS
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        float sum = state.sum[e];
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            sum += __shfl_xor_sync(~0u, sum, lanes);
        }
        if (g == 0) {
            m->maxima[warp][2 * t + e] = state.max[e];
            m->sums[warp][2 * t + e] = sum * UNIT;
        }
        GPU_UNROLL
        for (uint32_t n = 0; n < D / 16; n += 2) { // four adjacent channels
            float4 x = {state.out[n][e], state.out[n][2 + e], state.out[n + 1][e], state.out[n + 1][2 + e]};
            x.x *= UNIT, x.y *= UNIT, x.z *= UNIT, x.w *= UNIT;
            *(float4 *)&m->outs[warp][2 * t + e][GROUP<D> * (n / PAIRS) + EACH<D> * g + 2 * (n % PAIRS)] = x;
        }
    }
    __syncthreads();
    if (threadIdx.x < QUERIES) {
        float max = -INFINITY, sum = 0.0f;
        GPU_UNROLL
        for (uint32_t w = 0; w < WARPS; w++) {
            max = fmaxf(max, m->maxima[w][threadIdx.x]);
        }
        GPU_UNROLL
        for (uint32_t w = 0; w < WARPS; w++) {
            float x = m->maxima[w][threadIdx.x], weight = x == -INFINITY ? 0.0f : exp2f(x - max);
            m->weights[w][threadIdx.x] = weight;
            sum = fmaf(weight, m->sums[w][threadIdx.x], sum);
        }
        m->part_max[threadIdx.x] = max * LN_2; // from here on in attend.cu's units
        m->part_sum[threadIdx.x] = sum;
    }
    __syncthreads();
}

// Returns the sum over the warps, in their order, for a query and four channels.
template <int D> GPU_DEVICE float4 add_warps(const block_memory<D> *m, uint32_t q, uint32_t channel) {
    float4 out = {0, 0, 0, 0};
    GPU_UNROLL
    for (uint32_t w = 0; w < WARPS; w++) {
        float weight = m->weights[w][q];
        float4 x = *(const float4 *)&m->outs[w][q][channel];
        out.x = fmaf(weight, x.x, out.x), out.y = fmaf(weight, x.y, out.y);
        out.z = fmaf(weight, x.z, out.z), out.w = fmaf(weight, x.w, out.w);
    }
    return out;
}

// A thread takes four channels of the result at a time, in a loop that is not unrolled, which would need more
// registers.
#define FOR_CELLS(q, channel)                                                                                          \
    GPU_UNROLL_BY(1)                                                                                                   \
    for (uint32_t at = threadIdx.x * 4, q = at / D, channel = at % D; at < QUERIES * D;                                \
         at += THREADS * 4, q = at / D, channel = at % D)

template <int D>
GPU_DEVICE void begin_whole(const attend_call &c, const gpu_attend *call, const gpu_head *h, uint32_t first,
                            block_memory<D> *m) {
    FOR_CELLS(i, channel) {
        query q = query_of(c, call, h, blockIdx.y, first + i);
        bool before = q.row >= 0 && call->before_max != nullptr && call->before_max[row_at(call, q)] != -INFINITY;
        for (uint32_t k = 0; k < 4; k++) {
            m->all[i][channel + k] = before ? call->before_out[out_at(c.shape, q) + channel + k] : 0.0f;
        }
        if (channel == 0) {
            m->max[i] = before ? call->before_max[row_at(call, q)] : -INFINITY;
            m->sum[i] = before ? call->before_sum[row_at(call, q)] : 0.0f;
        }
    }
    __syncthreads();
}

// Folds the split into the earlier ones, as attend.cu does.
template <int D> GPU_DEVICE void fold(block_memory<D> *m) {
    FOR_CELLS(i, channel) {
        float part = m->part_max[i];
        if (part != -INFINITY) {
            float4 out = add_warps(m, i, channel);
            float max = fmaxf(m->max[i], part), before = expf(m->max[i] - max), behind = expf(part - max);
            float *all = &m->all[i][channel];
            all[0] = folded(before, all[0], behind, out.x), all[1] = folded(before, all[1], behind, out.y);
            all[2] = folded(before, all[2], behind, out.z), all[3] = folded(before, all[3], behind, out.w);
        }
    }
    __syncthreads(); // all have read the maximum
    if (threadIdx.x < QUERIES) {
        float part = m->part_max[threadIdx.x], before = m->max[threadIdx.x];
        if (part != -INFINITY) {
            float max = fmaxf(before, part);
            m->sum[threadIdx.x] =
                folded(expf(before - max), m->sum[threadIdx.x], expf(part - max), m->part_sum[threadIdx.x]);
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
        float *out = (unfinished ? call->before_out : call->out) + out_at(c.shape, q) + channel;
        for (uint32_t k = 0; k < 4; k++) {
            out[k] = m->all[i][channel + k] / divisor;
        }
        if (channel == 0 && unfinished) {
            call->before_max[row_at(call, q)] = m->max[i];
            call->before_sum[row_at(call, q)] = m->sum[i];
        } else if (channel == 0 && call->lse != nullptr) {
            call->lse[row_at(call, q)] = m->max[i] + logf(m->sum[i]);
        }
    }
}

template <int D>
GPU_DEVICE void store_part(const attend_call &c, const gpu_attend *call, uint32_t first, uint32_t split,
                           const block_memory<D> *m) {
    int group = c.shape.n_heads / c.shape.n_kv_heads;
    FOR_CELLS(i, channel) {
        int row = (int)(first + i) / group, head = (int)blockIdx.y * group + (int)(first + i) % group;
        if (row >= call->m) {
            continue;
        }
        float4 out = add_warps(m, i, channel);
        float *to = part_of(c, blockIdx.z, {row, head, 0, 0}, split);
        *(float2 *)(to + 2 + channel) = {out.x, out.y};
        *(float2 *)(to + 4 + channel) = {out.z, out.w};
        if (channel == 0) {
            *(float2 *)to = {m->part_max[i], m->part_sum[i]};
        }
    }
}

// blockIdx: tile of queries (and split), KV head, call. Three or four blocks for each multiprocessor: 168 registers, or
// 128.
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
    range block = {~0u, 0, 0, ~0u};
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        query of = query_of(c, call, h, blockIdx.y, first + 2 * (lane % 4) + e);
        q[e] = {of.begin, of.end};
        block = of.row >= 0 ? both(block, {of.begin, of.end, of.begin, of.end}) : block;
    }
    for (int lanes = 1; lanes < 4; lanes *= 2) {
        block = both(block, {__shfl_xor_sync(~0u, block.begin, lanes), __shfl_xor_sync(~0u, block.end, lanes),
                             __shfl_xor_sync(~0u, block.all_begin, lanes), __shfl_xor_sync(~0u, block.all_end, lanes)});
    }
    uint32_t fragments[D / 16][2];
    load_queries<D>(c, call, query_of(c, call, h, blockIdx.y, first + lane / 4), fragments);
    if (c.n_splits == 0) {
        begin_whole<D>(c, call, h, first, &m);
    }
    uint32_t split = c.n_splits > 0 ? blockIdx.x / c.n_tiles : block.begin / PACKED_SPLIT;
    for (; split * PACKED_SPLIT < block.end; split++) {
        uint32_t begin = split * PACKED_SPLIT, end = begin + PACKED_SPLIT;
        state<D> part = {};
        part.max[0] = part.max[1] = -INFINITY;
        add_pages<D, BITS>(h,
                           {begin > block.begin ? begin : block.begin, end < block.end ? end : block.end,
                            block.all_begin, block.all_end},
                           q, fragments, &m.tiles[threadIdx.x / 32][0][lane], part);
        put_aside(part, &m);
        if (c.n_splits > 0) {
            store_part<D>(c, call, first, split, &m);
            return;
        }
        fold<D>(&m);
    }
    if (c.n_splits == 0) {
        store_whole<D>(c, call, h, first, &m);
    }
}

// --- launches --------------------------------------------------------------------------------------------------------

template <int D> static bool launch(struct gpu_queue *queue, const attend_call &c, int n_calls) {
    dim3 grid(c.n_tiles * (c.n_splits > 0 ? c.n_splits : 1), (unsigned)c.shape.n_kv_heads, (unsigned)n_calls);
    switch (c.shape.packed_format) {
#define X(name, bits)                                                                                                  \
    case SL_KV_##name:                                                                                                 \
        GPU_LAUNCH((attend_packed<D, bits>), grid, THREADS, 0, queue, c);                                              \
        return true;
        GPU_CODE_FORMATS(X)
#undef X
    default:
        return false;
    }
}

bool gpu_attends_packed(const attend_call &c) {
    int d = c.shape.head_dim;
    return c.shape.has_packed && gpu::reads_codes(c.shape.packed_format) && c.shape.format == SL_KV_F16 &&
           c.shape.slot_cosines == nullptr && c.listed.slots == nullptr && c.shape.q_stride % 4 == 0 &&
           (d == 64 || d == 96 || d == 128);
}

bool gpu_attend_packed(struct gpu_queue *queue, attend_call c, int n_calls) {
    if (!gpu_attends_packed(c)) {
        return false;
    }
    c.n_tiles = ((uint32_t)(c.most_rows * (c.shape.n_heads / c.shape.n_kv_heads)) + QUERIES - 1) / QUERIES;
    return c.shape.head_dim == 64   ? launch<64>(queue, c, n_calls)
           : c.shape.head_dim == 96 ? launch<96>(queue, c, n_calls)
                                    : launch<128>(queue, c, n_calls);
}
