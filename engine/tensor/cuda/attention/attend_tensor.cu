// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention by tensor cores, over pages of f16 and bf16, and over pages of codes that attend_packed.cu does
 *         not cover.
 *
 * Formula: that of attend.cu. Queries, weights, the values of codes, and keys that are rotated by their slot, are
 *          rounded to the format of the pages; products are summed in f32. Queries are scaled to powers of two.
 *
 * Design: a warp has 16 queries of a KV head, rows and query heads alike; a block has four warps. It goes over the
 *         slots page by page: cp.async copies K into shared memory, V while scores are computed, and the next K while V
 *         is added up. Scores S = Q K^T and out += P V are m16n8k16. A lane has the numbers of two queries, so the
 *         softmax exchanges them with three neighbors. A warp skips pages that none of its queries sees: a page adds
 *         nothing, to the bit, to queries that do not see it. Keys that are rotated by their slot are rotated in shared
 *         memory when they arrive. Where a KV head has no more queries than a warp takes, and split states are stored,
 *         a split belongs to one warp, and the warp is a block. K, V and the next K use three buffers in turn, so that
 *         two copies are always in flight. The computation is the same, to the bit.
 */
#include "engine/tensor/cuda/attention/calls.h"
#include "engine/tensor/cuda/attention/half_tiles.h"

constexpr uint32_t THREADS = 128, WARPS = THREADS / 32, ROWS = 16, QUERIES = WARPS * ROWS;

using gpu::pack, gpu::PITCH, gpu::TILE;

constexpr float LN_2 = 0.693147181f, LOG2_E = 1.44269504f;

template <bool BF16> GPU_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t b[2] = {b0, b1};
    if (BF16) {
        gpu::mma_bf16(d, a, b);
    } else {
        gpu::mma_f16(d, a, b);
    }
}

// The state of a lane's two queries, lane / 4 and 8 more, max in powers of two: channels 8 n + 2 (lane % 4), + 1 in
// out[n][0..1] and [2..3].
template <int D> struct state { float max[2], sum[2], out[D / 8][4]; };

template <int D> GPU_DEVICE void clear(state<D> &s) {
    s.max[0] = s.max[1] = -INFINITY;
    s.sum[0] = s.sum[1] = 0.0f;
    GPU_UNROLL
    for (int n = 0; n < D / 8; n++) {
        s.out[n][0] = s.out[n][1] = s.out[n][2] = s.out[n][3] = 0.0f;
    }
}

// The state over all splits: a lane keeps its own channels in shared memory.
struct whole {
    float max[2], sum[2];
    float *out; // [D / 8][4] of this lane, with a stride of 32
};

template <int D> GPU_DEVICE void fold(whole &all, const state<D> &part) {
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        if (part.max[i] == -INFINITY) {
            continue;
        }
        float of_part = part.max[i] * LN_2; // from here on in attend.cu's units
        float max = fmaxf(all.max[i], of_part), a = expf(all.max[i] - max), b = expf(of_part - max);
        all.max[i] = max;
        all.sum[i] = folded(a, all.sum[i], b, part.sum[i]);
        GPU_UNROLL
        for (int n = 0; n < D / 8; n++) {
            GPU_UNROLL
            for (int k = 2 * i; k < 2 * i + 2; k++) {
                float *out = all.out + (n * 4 + k) * 32;
                *out = folded(a, *out, b, part.out[n][k]);
            }
        }
    }
}

// --- tiles -----------------------------------------------------------------------------------------------------------

// Computes S = Q K^T of a tile.
template <int D, bool BF16>
GPU_DEVICE void score(const uint32_t (&q)[D / 16][4], const uint16_t *keys, float (&s)[TILE / 8][4]) {
    uint32_t lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
    GPU_UNROLL
    for (uint32_t n = 0; n < TILE / 8; n++) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < D / 16; k++) {
        GPU_UNROLL
        for (uint32_t n = 0; n < TILE / 16; n++) {
            uint32_t b[4];
            gpu::ldmatrix_x4(b, keys + (n * 16 + row) * PITCH<D> + k * 16 + column);
            mma<BF16>(s[2 * n], q[k], b[0], b[1]);
            mma<BF16>(s[2 * n + 1], q[k], b[2], b[3]);
        }
    }
}

GPU_DEVICE float of_four(float x, bool max) {
    float y = __shfl_xor_sync(~0u, x, 1);
    x = max ? fmaxf(x, y) : x + y;
    y = __shfl_xor_sync(~0u, x, 2);
    return max ? fmaxf(x, y) : x + y;
}

// Replaces s by the weights exp(s - max') of seen slots, else 0; scales the state to max'.
template <int D>
GPU_DEVICE void weigh(const query (&q)[2], bool all_seen, uint32_t first, uint32_t n_slots, float (&s)[TILE / 8][4],
                      state<D> &state) {
    uint32_t column = first + threadIdx.x % 4 * 2;
    float most[2];
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        GPU_UNROLL
        for (uint32_t n = 0; n < TILE / 8 && !all_seen; n++) {
            GPU_UNROLL
            for (uint32_t k = 0; k < 2; k++) {
                uint32_t j = column + n * 8 + k;
                bool seen = j >= q[i].begin && j < q[i].end && j - first < n_slots;
                s[n][2 * i + k] = seen ? s[n][2 * i + k] : -INFINITY;
            }
        }
        most[i] = -INFINITY;
        GPU_UNROLL
        for (uint32_t n = 0; n < TILE / 8; n++) {
            most[i] = fmaxf(most[i], fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        }
        most[i] = fmaxf(state.max[i], of_four(most[i], true));
    }
    // factors are 1 where no maximum has changed
    if (__ballot_sync(~0u, most[0] != state.max[0] || most[1] != state.max[1]) != 0) {
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            float keep = most[i] != state.max[i] ? gpu::fast_exp2(state.max[i] - most[i]) : 1.0f;
            state.max[i] = most[i];
            state.sum[i] *= keep;
            GPU_UNROLL
            for (int n = 0; n < D / 8; n++) {
                state.out[n][2 * i] *= keep;
                state.out[n][2 * i + 1] *= keep;
            }
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        float base = most[i] == -INFINITY ? 0.0f : most[i], sum = 0.0f; // no slot seen yet
        GPU_UNROLL
        for (uint32_t n = 0; n < TILE / 8; n++) {
            GPU_UNROLL
            for (uint32_t k = 2 * i; k < 2 * i + 2; k++) {
                s[n][k] = gpu::fast_exp2(s[n][k] - base);
                sum += s[n][k];
            }
        }
        state.sum[i] += of_four(sum, false);
    }
}

// Adds P V of a tile to out.
template <int D, bool BF16>
GPU_DEVICE void add_values(const float (&p)[TILE / 8][4], const uint16_t *values, state<D> &state) {
    uint32_t lane = threadIdx.x % 32, row = lane % 16, column = lane / 16 * 8;
    GPU_UNROLL
    for (uint32_t k = 0; k < TILE / 16; k++) {
        const float(&lo)[4] = p[2 * k], (&hi)[4] = p[2 * k + 1];
        const uint32_t a[4] = {pack<BF16>(lo[0], lo[1]), pack<BF16>(lo[2], lo[3]), pack<BF16>(hi[0], hi[1]),
                               pack<BF16>(hi[2], hi[3])};
        GPU_UNROLL
        for (uint32_t n = 0; n < D / 16; n++) {
            uint32_t b[4];
            gpu::ldmatrix_x4_trans(b, values + (k * 16 + row) * PITCH<D> + n * 16 + column);
            mma<BF16>(state.out[2 * n], a, b[0], b[1]);
            mma<BF16>(state.out[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// --- a block ---------------------------------------------------------------------------------------------------------

struct range {
    uint32_t begin, end;
};

// Returns the slots that all of the warp's queries see.
GPU_DEVICE range seen_by_all(const query (&q)[2]) {
    range r = {0, ~0u};
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        r.begin = q[i].row >= 0 && q[i].begin > r.begin ? q[i].begin : r.begin;
        r.end = q[i].row >= 0 && q[i].end < r.end ? q[i].end : r.end;
    }
    for (int lanes = 4; lanes < 32; lanes *= 2) {
        uint32_t begin = __shfl_xor_sync(~0u, r.begin, lanes), end = __shfl_xor_sync(~0u, r.end, lanes);
        r = {begin > r.begin ? begin : r.begin, end < r.end ? end : r.end};
    }
    return r;
}

// Returns the slots that any of the warp's queries sees.
GPU_DEVICE range range_of_warp(const query (&q)[2]) {
    range r = {~0u, 0};
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        r.begin = q[i].row >= 0 && q[i].begin < r.begin ? q[i].begin : r.begin;
        r.end = q[i].row >= 0 && q[i].end > r.end ? q[i].end : r.end;
    }
    for (int lanes = 4; lanes < 32; lanes *= 2) {
        uint32_t begin = __shfl_xor_sync(~0u, r.begin, lanes), end = __shfl_xor_sync(~0u, r.end, lanes);
        r = {begin < r.begin ? begin : r.begin, end > r.end ? end : r.end};
    }
    return r;
}

GPU_DEVICE range range_of_block(const range &warp, range *shared) {
    if (threadIdx.x == 0) {
        *shared = {~0u, 0};
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        atomicMin(&shared->begin, warp.begin);
        atomicMax(&shared->end, warp.end);
    }
    __syncthreads();
    return *shared;
}

template <int D, bool BF16>
GPU_DEVICE void load_queries(const attend_call &c, const gpu_attend *call, const gpu_head *h, const query (&of)[2],
                             uint32_t (&q)[D / 16][4]) {
    int64_t stride = c.shape.q_stride > 0 ? c.shape.q_stride : (int64_t)c.shape.n_heads * D;
    float scale = c.shape.scale * LOG2_E;
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const float *x = call->q + of[i].row * stride + (int64_t)of[i].head * D + threadIdx.x % 4 * 2;
        size_t angle = 0;
        if (of[i].row >= 0 && c.shape.slot_cosines != nullptr) {
            angle = (size_t)(h->n_slots - (uint32_t)call->m + (uint32_t)of[i].row) * (D / 2) + threadIdx.x % 4 * 2;
        }
        GPU_UNROLL
        for (int k = 0; k < D / 16; k++) { // channels of the first half, and their rotation partners
            int pair = k / 2, at = pair * 16 + k % 2 * 8;
            float2 a = {0, 0}, b = {0, 0};
            if (of[i].row >= 0) {
                a = *(const float2 *)(x + at);
                b = *(const float2 *)(x + at + D / 2);
            }
            if (c.shape.slot_cosines != nullptr) {
                float2 cosine = *(const float2 *)(c.shape.slot_cosines + angle + at), from = a;
                float2 sine = *(const float2 *)(c.shape.slot_sines + angle + at);
                a = {from.x * cosine.x - b.x * sine.x, from.y * cosine.y - b.y * sine.y};
                b = {b.x * cosine.x + from.x * sine.x, b.y * cosine.y + from.y * sine.y};
            }
            q[pair][i + k % 2 * 2] = pack<BF16>(a.x * scale, a.y * scale);
            q[pair + D / 32][i + k % 2 * 2] = pack<BF16>(b.x * scale, b.y * scale);
        }
    }
}

// Loads keys or values of slots from `first` on.
template <int D, bool BF16, bool CODES>
GPU_DEVICE void load(const gpu_head *h, const uint32_t *listed, uint32_t first, uint32_t end, bool keys,
                     uint16_t *tile) {
    const uint32_t *slots = listed != nullptr ? listed + first : nullptr;
    if (CODES) {
        gpu::decode_tile16<D, BF16, THREADS>(h, slots, first, end - first, keys, tile);
    } else {
        gpu::load_tile16<D, THREADS>(h, slots, first, end - first, keys ? h->work.k : h->work.v, tile);
    }
}

struct split_slots { // slots of a head, or of its list
    const gpu_head *h;
    const uint32_t *listed;
    range of_split;
};

// Adds the slots to the warp's state. V follows K into shared memory, and the next K follows V.
template <int D, bool BF16, bool CODES>
GPU_DEVICE void add_slots(const attend_call &c, const split_slots &split, const range &of_warp, const query (&q)[2],
                          const uint32_t (&fragments)[D / 16][4], uint16_t *keys, state<D> &state) {
    const gpu_head *h = split.h;
    const uint32_t *listed = split.listed;
    uint16_t *values = keys + TILE * PITCH<D>;
    uint32_t first = split.of_split.begin / TILE * TILE, end = split.of_split.end;
    range all = seen_by_all(q);
    load<D, BF16, CODES>(h, listed, first, end, true, keys);
    for (; first < end; first += TILE) {
        const uint32_t *slots = listed != nullptr ? listed + first : nullptr;
        bool sees = first < of_warp.end && first + TILE > of_warp.begin;
        float s[TILE / 8][4];
        gpu::cp_async_wait<0>();
        __syncthreads(); // K has arrived; V has been used
        load<D, BF16, CODES>(h, listed, first, end, false, values);
        if (c.shape.slot_cosines != nullptr) {
            gpu::rotate_tile16<D, BF16, THREADS>(c.shape, slots, first, end - first, keys);
            __syncthreads();
        }
        if (sees) {
            bool all_seen = first >= all.begin && first + TILE <= all.end && first + TILE <= end;
            score<D, BF16>(fragments, keys, s);
            weigh(q, all_seen, first, end - first, s, state);
        }
        gpu::cp_async_wait<0>();
        __syncthreads(); // V has arrived; K has been used
        if (first + TILE < end) {
            load<D, BF16, CODES>(h, listed, first + TILE, end, true, keys);
        }
        if (sees) {
            add_values<D, BF16>(s, values, state);
        }
    }
    __syncthreads(); // V has been used
}

template <int D>
GPU_DEVICE void begin_whole(const attend_call &c, const gpu_attend *call, const query (&q)[2], whole &all) {
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        bool before = q[i].row >= 0 && call->before_max != nullptr && call->before_max[row_at(call, q[i])] != -INFINITY;
        all.max[i] = before ? call->before_max[row_at(call, q[i])] : -INFINITY;
        all.sum[i] = before ? call->before_sum[row_at(call, q[i])] : 0.0f;
        const float *out = call->before_out + (before ? out_at(c.shape, q[i]) : 0) + threadIdx.x % 4 * 2;
        for (int n = 0; n < D / 8; n++) {
            for (int k = 0; k < 2; k++) {
                all.out[(n * 4 + 2 * i + k) * 32] = before ? out[n * 8 + k] : 0.0f;
            }
        }
    }
}

template <int D>
GPU_DEVICE void store_whole(const attend_call &c, const gpu_attend *call, const query (&q)[2], const whole &all) {
    __syncwarp(); // all lanes have read the earlier state
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        if (q[i].row < 0) {
            continue;
        }
        bool unfinished = c.shape.unfinished, one = threadIdx.x % 4 == 0;
        float divisor = unfinished || all.sum[i] == 0.0f ? 1.0f : all.sum[i]; // a list may have no slots
        float *out = (unfinished ? call->before_out : call->out) + out_at(c.shape, q[i]) + threadIdx.x % 4 * 2;
        for (int n = 0; n < D / 8; n++) {
            for (int k = 0; k < 2; k++) {
                out[n * 8 + k] = all.out[(n * 4 + 2 * i + k) * 32] / divisor;
            }
        }
        if (one && unfinished) {
            call->before_max[row_at(call, q[i])] = all.max[i];
            call->before_sum[row_at(call, q[i])] = all.sum[i];
        } else if (one && call->lse != nullptr) {
            call->lse[row_at(call, q[i])] = all.max[i] + logf(all.sum[i]);
        }
    }
}

template <int D>
GPU_DEVICE void store_part(const attend_call &c, uint32_t split, const query (&q)[2], const state<D> &part) {
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        if (q[i].row < 0) {
            continue;
        }
        float *to = part_of(c, blockIdx.z, q[i], split);
        if (threadIdx.x % 4 == 0) {
            to[0] = part.max[i] * LN_2;
            to[1] = part.sum[i];
        }
        GPU_UNROLL
        for (int n = 0; n < D / 8; n++) {
            to[2 + n * 8 + (int)threadIdx.x % 4 * 2] = part.out[n][2 * i];
            to[3 + n * 8 + (int)threadIdx.x % 4 * 2] = part.out[n][2 * i + 1];
        }
    }
}

// blockIdx: tile of queries (and split), KV head, call.
template <int D, bool BF16, bool CODES>
static __global__ void __launch_bounds__(THREADS, 1) attend_tensor(attend_call c) {
    GPU_DYNAMIC_SHARED(uint16_t, keys); // and values, [TILE][PITCH] each; then `whole` [D / 8][4] for each thread
    __shared__ range block;
    uint16_t *values = keys + TILE * PITCH<D>;
    const gpu_attend *call = &c.calls[blockIdx.z];
    const gpu_head *h = &call->heads[blockIdx.y];
    const uint32_t *listed = c.listed.slots != nullptr ? c.listed.slots + blockIdx.y * c.listed.stride : nullptr;
    uint32_t first = blockIdx.x % c.n_tiles * QUERIES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if ((int)first >= call->m * (c.shape.n_heads / c.shape.n_kv_heads)) {
        return;
    }
    first += warp * ROWS + lane / 4;
    const query q[2] = {query_of(c, call, h, blockIdx.y, first), query_of(c, call, h, blockIdx.y, first + 8)};
    range of_warp = range_of_warp(q), of_block = range_of_block(of_warp, &block);
    uint32_t fragments[D / 16][4];
    load_queries<D, BF16>(c, call, h, q, fragments);
    whole all = {};
    all.out = (float *)(values + TILE * PITCH<D>)+warp * (D / 8) * 4 * 32 + lane;
    if (c.n_splits == 0) {
        begin_whole<D>(c, call, q, all);
    }
    state<D> part;
    uint32_t split = c.n_splits > 0 ? blockIdx.x / c.n_tiles : of_block.begin / SPLIT;
    for (; split * SPLIT < of_block.end; split++) {
        range of_split = {split * SPLIT > of_block.begin ? split * SPLIT : of_block.begin,
                          (split + 1) * SPLIT < of_block.end ? (split + 1) * SPLIT : of_block.end};
        clear(part);
        if (of_split.begin < of_split.end) {
            add_slots<D, BF16, CODES>(c, {h, listed, of_split}, of_warp, q, fragments, keys, part);
        }
        if (c.n_splits > 0) {
            store_part(c, split, q, part);
            return;
        }
        fold(all, part);
    }
    if (c.n_splits == 0) {
        store_whole<D>(c, call, q, all);
    }
}

// --- blocks of one warp: few queries ---------------------------------------------------------------------------------

// Starts the copy of K or V of a page; past the last page, commits an empty group, so that the count of groups is
// right.
template <int D>
GPU_DEVICE void load_alone(const gpu_head *h, const uint32_t *listed, uint32_t first, uint32_t end, uint32_t part,
                           uint16_t *tile) {
    if (first < end) {
        gpu::load_tile16<D, 32>(h, listed != nullptr ? listed + first : nullptr, first, end - first, part, tile);
    } else {
        gpu::cp_async_commit();
    }
}

// Adds slots as add_slots() does. The next K goes to the buffer of the previous V, the next V to the buffer of this K.
template <int D, bool BF16>
GPU_DEVICE void add_slots_alone(const attend_call &c, const split_slots &split, const query (&q)[2],
                                const uint32_t (&fragments)[D / 16][4], uint16_t *tiles, state<D> &state) {
    const gpu_head *h = split.h;
    const uint32_t *listed = split.listed;
    uint32_t first = split.of_split.begin / TILE * TILE, end = split.of_split.end, k = h->work.k, v = h->work.v;
    uint16_t *keys = tiles, *values = tiles + TILE * PITCH<D>, *next = values + TILE * PITCH<D>;
    range all = seen_by_all(q);
    load_alone<D>(h, listed, first, end, k, keys);
    load_alone<D>(h, listed, first, end, v, values);
    GPU_UNROLL_BY(1)
    for (; first < end; first += TILE) {
        load_alone<D>(h, listed, first + TILE, end, k, next);
        gpu::cp_async_wait<2>();
        __syncwarp(); // K is there
        if (c.shape.slot_cosines != nullptr) {
            const uint32_t *slots = listed != nullptr ? listed + first : nullptr;
            gpu::rotate_tile16<D, BF16, 32>(c.shape, slots, first, end - first, keys);
            __syncwarp();
        }
        float s[TILE / 8][4];
        score<D, BF16>(fragments, keys, s);
        weigh(q, first >= all.begin && first + TILE <= all.end && first + TILE <= end, first, end - first, s, state);
        __syncwarp(); // K has been used
        load_alone<D>(h, listed, first + TILE, end, v, keys);
        gpu::cp_async_wait<2>();
        __syncwarp(); // V has arrived
        add_values<D, BF16>(s, values, state);
        __syncwarp(); // V has been used
        uint16_t *used = values;
        values = keys, keys = next, next = used;
    }
}

// blockIdx: split, KV head, call. Shared memory limits it to four blocks for each multiprocessor of 9.0, three of 8.0.
template <int D, bool BF16> static __global__ void __launch_bounds__(32, 4) attend_alone(attend_call c) {
    GPU_DYNAMIC_SHARED(uint16_t, tiles); // [3][TILE][PITCH]
    const gpu_attend *call = &c.calls[blockIdx.z];
    const gpu_head *h = &call->heads[blockIdx.y];
    const uint32_t *listed = c.listed.slots != nullptr ? c.listed.slots + blockIdx.y * c.listed.stride : nullptr;
    uint32_t lane = threadIdx.x;
    const query q[2] = {query_of(c, call, h, blockIdx.y, lane / 4), query_of(c, call, h, blockIdx.y, lane / 4 + 8)};
    range seen = range_of_warp(q);
    range of_split = {blockIdx.x * SPLIT > seen.begin ? blockIdx.x * SPLIT : seen.begin,
                      (blockIdx.x + 1) * SPLIT < seen.end ? (blockIdx.x + 1) * SPLIT : seen.end};
    if (blockIdx.x * SPLIT >= seen.end) {
        return; // fold_splits() does not read it
    }
    uint32_t fragments[D / 16][4];
    load_queries<D, BF16>(c, call, h, q, fragments);
    state<D> part;
    clear(part);
    if (of_split.begin < of_split.end) {
        add_slots_alone<D, BF16>(c, {h, listed, of_split}, q, fragments, tiles, part);
    }
    store_part(c, blockIdx.x, q, part);
}

// --- launches --------------------------------------------------------------------------------------------------------

template <int D, bool BF16, bool CODES>
static void launch_blocks(struct gpu_queue *queue, const attend_call &c, int n_calls) {
    size_t bytes = 2 * TILE * PITCH<D> * sizeof(uint16_t) + THREADS * (D / 8) * 4 * sizeof(float);
    dim3 grid(c.n_tiles * (c.n_splits > 0 ? c.n_splits : 1), (unsigned)c.shape.n_kv_heads, (unsigned)n_calls);
    GPU_ALLOW_SHARED((attend_tensor<D, BF16, CODES>), bytes);
    GPU_LAUNCH((attend_tensor<D, BF16, CODES>), grid, THREADS, bytes, queue, c);
}

template <int D, bool BF16> static void launch(struct gpu_queue *queue, const attend_call &c, int n_calls) {
    if (c.shape.has_packed) { // a block even where queries are few: four warps decode
        launch_blocks<D, BF16, true>(queue, c, n_calls);
        return;
    }
    if (c.n_splits > 0 && (uint32_t)(c.most_rows * (c.shape.n_heads / c.shape.n_kv_heads)) <= ROWS) {
        size_t bytes = 3 * TILE * PITCH<D> * sizeof(uint16_t);
        GPU_ALLOW_SHARED((attend_alone<D, BF16>), bytes);
        GPU_LAUNCH((attend_alone<D, BF16>), dim3(c.n_splits, (unsigned)c.shape.n_kv_heads, (unsigned)n_calls), 32,
                   bytes, queue, c);
        return;
    }
    launch_blocks<D, BF16, false>(queue, c, n_calls);
}

template <int D> static bool launch_of(struct gpu_queue *queue, const attend_call &c, int n_calls) {
    if (c.shape.format == SL_KV_BF16) {
        launch<D, true>(queue, c, n_calls);
    } else {
        launch<D, false>(queue, c, n_calls);
    }
    return true;
}

bool gpu_attend_tensor(struct gpu_queue *queue, attend_call c, int n_calls) {
    bool halves = c.shape.format == SL_KV_F16 || c.shape.format == SL_KV_BF16;
    bool codes = !c.shape.has_packed || gpu::reads_codes(c.shape.packed_format);
    // partial rotation: not here
    bool rotated = c.shape.slot_cosines != nullptr && c.shape.rotary_dim != c.shape.head_dim;
    if (!halves || !codes || rotated || c.shape.q_stride % 2 != 0) {
        return false;
    }
    c.n_tiles = ((uint32_t)(c.most_rows * (c.shape.n_heads / c.shape.n_kv_heads)) + QUERIES - 1) / QUERIES;
    int d = c.shape.head_dim;
    return d == 64   ? launch_of<64>(queue, c, n_calls)
           : d == 96 ? launch_of<96>(queue, c, n_calls)
                     : d == 128 && launch_of<128>(queue, c, n_calls);
}
