// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention of rows over the slots of their heads, for pages of every format, windows and keys that are
 *          rotated by their slot. It writes finished outputs, or the softmax over slots that come before the rows'.
 *
 * Formula: with the scores s_j of a tile and the state (max, sum, out) of a split of SPLIT slots
 *
 *              max' = max(max, max_j s_j)      c = exp(max - max')
 *              sum  = sum c + sum_j exp(s_j - max')      out = out c + sum_j exp(s_j - max') V_j
 *
 *          The states of the splits are folded in ascending order into the state of earlier slots.
 *
 * Design: a block has 16 queries of a KV head, rows and query heads alike. It goes over the slots by tiles in shared
 *         memory, in f32: K, and then V in the same memory. A warp has two queries: a lane scores slots, then adds up
 *         channels. Where rows are few, splits are blocks, and another kernel folds their stored states. The bits are
 *         the same, and depend on neither the number of rows nor the calls. attend_tensor.cu and attend_packed.cu use
 *         tensor cores where they can.
 */
#include "engine/tensor/cuda/attention/calls.h"
#include "engine/tensor/cuda/attention/tiles.h"

constexpr uint32_t THREADS = 256, WARPS = THREADS / 32, QUERIES = 16, EACH = QUERIES / WARPS;
// blocks that keep a device busy; the most queries of a block, here and with tensor cores
constexpr size_t ENOUGH_BLOCKS = 512, MOST_QUERIES = 64;

// Channel `lane` + 32 i of a query is out[i], a register. Loops over channels must be bounded by PER alone.
#define FOR_CHANNELS(i, at, d)                                                                                         \
    GPU_UNROLL                                                                                                         \
    for (int i = 0, at = (int)threadIdx.x % 32; i < PER; i++, at += 32)                                                \
        if (at < (d))
template <int PER> struct softmax { float max, sum, out[PER]; };

template <int PER> GPU_DEVICE void clear(softmax<PER> &s) {
    s.max = -INFINITY;
    s.sum = 0.0f;
    GPU_UNROLL
    for (int i = 0; i < PER; i++) {
        s.out[i] = 0.0f;
    }
}

// Folds `part` into `all`. Both have seen slots, or `all` has seen none.
template <int PER> GPU_DEVICE void fold(softmax<PER> &all, const softmax<PER> &part) {
    if (part.max == -INFINITY) {
        return;
    }
    float max = fmaxf(all.max, part.max), a = expf(all.max - max), b = expf(part.max - max);
    all.max = max;
    all.sum = folded(a, all.sum, b, part.sum);
    GPU_UNROLL
    for (int i = 0; i < PER; i++) {
        all.out[i] = folded(a, all.out[i], b, part.out[i]);
    }
}

// --- load the earlier state, store the result ------------------------------------------------------------------------

template <int PER>
GPU_DEVICE void load_before(const attend_call &c, const gpu_attend *call, const query &q, softmax<PER> &s) {
    clear(s);
    if (call->before_max == nullptr || call->before_max[row_at(call, q)] == -INFINITY) {
        return;
    }
    s.max = call->before_max[row_at(call, q)];
    s.sum = call->before_sum[row_at(call, q)];
    FOR_CHANNELS(i, at, c.shape.head_dim) {
        s.out[i] = call->before_out[out_at(c.shape, q) + (size_t)at];
    }
}

template <int PER>
GPU_DEVICE void store(const attend_call &c, const gpu_attend *call, const query &q, const softmax<PER> &s) {
    bool one = threadIdx.x % 32 == 0;
    // A list may have no slots.
    float divisor = c.shape.unfinished || s.sum == 0.0f ? 1.0f : s.sum;
    float *out = (c.shape.unfinished ? call->before_out : call->out) + out_at(c.shape, q);
    __syncwarp(); // all lanes have read the earlier state
    FOR_CHANNELS(i, at, c.shape.head_dim) {
        out[at] = s.out[i] / divisor;
    }
    if (one && c.shape.unfinished) {
        call->before_max[row_at(call, q)] = s.max;
        call->before_sum[row_at(call, q)] = s.sum;
    } else if (one && call->lse != nullptr) {
        call->lse[row_at(call, q)] = s.max + logf(s.sum);
    }
}

// --- a tile ----------------------------------------------------------------------------------------------------------

// A multiprocessor of 8.6 has shared memory for no more slots besides 16 queries of the longest rows.
GPU_HOST_DEVICE uint32_t slots_of_tile(int head_dim) {
    return head_dim <= 256 ? gpu::tile_slots(head_dim) : 16;
}

struct tile_slots { // slots of a tile
    uint32_t first, n;
};

// Writes weights[j] = exp(s_j - max') of the slots that the query sees; scales out and sum to max'.
template <int PER>
GPU_DEVICE void score(const gpu_attention &shape, const query &q, const float *of_query, const float *keys,
                      const tile_slots &slots, float *weights, softmax<PER> &s) {
    uint32_t lane = threadIdx.x % 32;
    float scores[2], most = s.max;
    GPU_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t j = lane + 32 * k;
        scores[k] = -INFINITY;
        if (j < slots.n && slots.first + j >= q.begin && slots.first + j < q.end) {
            const float4 *x = (const float4 *)of_query;
            const float4 *y = (const float4 *)(keys + (int)j * gpu::pitch_of(shape.head_dim));
            float dot = 0.0f;
            GPU_UNROLL_BY(2)
            for (int i = 0; i < shape.head_dim / 4; i++) {
                float4 a = x[i], b = y[i];
                dot += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
            }
            scores[k] = dot * shape.scale;
            most = fmaxf(most, scores[k]);
        }
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
    }
    float keep = most == -INFINITY ? 1.0f : expf(s.max - most), sum = 0.0f; // no slot seen yet: nothing to scale
    GPU_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        float weight = scores[k] == -INFINITY ? 0.0f : expf(scores[k] - most);
        weights[lane + 32 * k] = weight;
        sum += weight;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        sum += __shfl_xor_sync(~0u, sum, lanes);
    }
    s.max = most;
    s.sum = s.sum * keep + sum;
    GPU_UNROLL
    for (int i = 0; i < PER; i++) {
        s.out[i] *= keep;
    }
    __syncwarp();
}

// Does not read unseen slots: they may hold any bits, and 0 times NaN is NaN.
template <int PER>
GPU_DEVICE void add_values(const gpu_attention &shape, const query &q, const float *values, uint32_t first, uint32_t n,
                           const float *weights, softmax<PER> &s) {
    uint32_t begin = q.begin > first ? q.begin - first : 0, end = q.end > first ? q.end - first : 0;
    [[maybe_unused]] constexpr int BY = PER > 8 ? 1 : 2;
    GPU_UNROLL_BY(BY)
    for (uint32_t j = begin; j < n && j < end; j++) {
        float weight = weights[j];
        const float *row = values + (int)j * gpu::pitch_of(shape.head_dim);
        FOR_CHANNELS(i, at, shape.head_dim) {
            s.out[i] += weight * row[at];
        }
    }
}

// --- a block ---------------------------------------------------------------------------------------------------------

struct block_memory { // after the queries [QUERIES][d] and a tile [slots][pitch]
    float weights[QUERIES][SL_PAGE_SLOTS];
    uint32_t slots[QUERIES]; // the queries' own slots
    uint32_t begin, end;     // the slots that any of them sees
};

GPU_DEVICE void load_queries(const attend_call &c, const gpu_attend *call, const gpu_head *h, uint32_t kv_head,
                             uint32_t first, float *queries, block_memory *m) {
    int d = c.shape.head_dim;
    int64_t stride = c.shape.q_stride > 0 ? c.shape.q_stride : (int64_t)c.shape.n_heads * d;
    if (threadIdx.x == 0) {
        m->begin = ~0u;
        m->end = 0;
    }
    __syncthreads();
    if (threadIdx.x < QUERIES) {
        query q = query_of(c, call, h, kv_head, first + threadIdx.x);
        m->slots[threadIdx.x] = q.row < 0 ? 0 : h->n_slots - (uint32_t)call->m + (uint32_t)q.row;
        if (q.row >= 0) {
            atomicMin(&m->begin, q.begin);
            atomicMax(&m->end, q.end);
        }
    }
    int group = c.shape.n_heads / c.shape.n_kv_heads;
    for (int i = (int)threadIdx.x; i < (int)QUERIES * d; i += (int)THREADS) {
        int at = (int)first + i / d, row = at / group, head = (int)kv_head * group + at % group;
        queries[i] = row < call->m ? call->q[row * stride + (int64_t)head * d + i % d] : 0.0f;
    }
    __syncthreads();
    if (c.shape.slot_cosines != nullptr) {
        gpu::rotate_tile(c.shape, queries, d, QUERIES, m->slots, 0);
    }
    __syncthreads();
}

struct split_slots { // slots [begin, end) of a head, or of its list
    const gpu_head *h;
    const uint32_t *listed;
    uint32_t begin, end;
};

// Adds the slots to the states of the warp's queries. The tile follows the queries.
template <int PER>
GPU_DEVICE void add_slots(const attend_call &c, const split_slots &split, const query (&q)[EACH], float *queries,
                          block_memory *m, softmax<PER> (&s)[EACH]) {
    const gpu_head *h = split.h;
    float *tile = queries + (int)QUERIES * c.shape.head_dim;
    uint32_t warp = threadIdx.x / 32, end = split.end;
    uint32_t step = slots_of_tile(c.shape.head_dim);
    for (uint32_t first = split.begin / step * step; first < end; first += step) {
        uint32_t n = end - first < step ? end - first : step;
        const uint32_t *slots = split.listed != nullptr ? split.listed + first : nullptr;
        gpu::load_tile(h, slots, first, n, true, tile);
        __syncthreads();
        if (c.shape.slot_cosines != nullptr) {
            gpu::rotate_tile(c.shape, tile, gpu::pitch_of(c.shape.head_dim), n, slots, first);
            __syncthreads();
        }
        GPU_UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            if (q[k].row >= 0) {
                uint32_t at = warp + WARPS * k;
                score(c.shape, q[k], queries + (int)at * c.shape.head_dim, tile, {first, n}, m->weights[at], s[k]);
            }
        }
        __syncthreads();
        gpu::load_tile(h, slots, first, n, false, tile);
        __syncthreads();
        GPU_UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            if (q[k].row >= 0) {
                add_values(c.shape, q[k], tile, first, n, m->weights[warp + WARPS * k], s[k]);
            }
        }
        __syncthreads();
    }
}

// blockIdx: tile of queries (and split), KV head, call. Two blocks for each multiprocessor: 128 registers, and loops
// are unrolled for that.
template <int PER> static __global__ void __launch_bounds__(THREADS, 2) attend(attend_call c) {
    GPU_DYNAMIC_SHARED(float, queries);
    __shared__ block_memory m;
    const gpu_attend *call = &c.calls[blockIdx.z];
    const gpu_head *h = &call->heads[blockIdx.y];
    const uint32_t *listed = c.listed.slots != nullptr ? c.listed.slots + blockIdx.y * c.listed.stride : nullptr;
    uint32_t first = blockIdx.x % c.n_tiles * QUERIES, warp = threadIdx.x / 32;
    query q[EACH];
    softmax<PER> all[EACH], part[EACH];
    if ((int)first >= call->m * (c.shape.n_heads / c.shape.n_kv_heads)) {
        return;
    }
    load_queries(c, call, h, blockIdx.y, first, queries, &m);
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++) {
        q[k] = query_of(c, call, h, blockIdx.y, first + warp + WARPS * k);
        if (q[k].row >= 0 && c.n_splits == 0) {
            load_before(c, call, q[k], all[k]);
        }
    }
    uint32_t split = c.n_splits > 0 ? blockIdx.x / c.n_tiles : m.begin / SPLIT;
    for (; split * SPLIT < m.end; split++) {
        uint32_t begin = split * SPLIT > m.begin ? split * SPLIT : m.begin;
        uint32_t end = (split + 1) * SPLIT < m.end ? (split + 1) * SPLIT : m.end;
        GPU_UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            clear(part[k]);
        }
        add_slots(c, {h, listed, begin, end}, q, queries, &m, part);
        if (c.n_splits > 0) {
            break;
        }
        GPU_UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            fold(all[k], part[k]);
        }
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++) {
        if (q[k].row >= 0 && c.n_splits == 0) {
            store(c, call, q[k], all[k]);
        } else if (q[k].row >= 0 && split * SPLIT < m.end) {
            float *to = part_of(c, blockIdx.z, q[k], split);
            if (threadIdx.x % 32 == 0) {
                to[0] = part[k].max;
                to[1] = part[k].sum;
            }
            FOR_CHANNELS(i, at, c.shape.head_dim) {
                to[2 + at] = part[k].out[i];
            }
        }
    }
}

// A warp for each query. blockIdx: row and query head of a KV head, KV head, call.
template <int PER> static __global__ void fold_splits(attend_call c) {
    const gpu_attend *call = &c.calls[blockIdx.z];
    const gpu_head *h = &call->heads[blockIdx.y];
    query q = query_of(c, call, h, blockIdx.y, blockIdx.x);
    constexpr uint32_t AT_ONCE = PER <= 4 ? 8 : 16 / PER; // otherwise every split would wait for memory
    softmax<PER> all, parts[AT_ONCE];
    if (q.row < 0) {
        return;
    }
    load_before(c, call, q, all);
    for (uint32_t split = q.begin / c.split; split * c.split < q.end; split += AT_ONCE) {
        GPU_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            clear(parts[k]);
            if ((split + k) * c.split < q.end) {
                const float *from = part_of(c, blockIdx.z, q, split + k);
                parts[k].max = from[0];
                parts[k].sum = from[1];
                FOR_CHANNELS(i, at, c.shape.head_dim) {
                    parts[k].out[i] = from[2 + at];
                }
            }
        }
        GPU_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            fold(all, parts[k]);
        }
    }
    store(c, call, q, all);
}

// --- launches --------------------------------------------------------------------------------------------------------

template <int PER> static void launch(struct gpu_queue *queue, const attend_call &c, int n_calls) {
    int d = c.shape.head_dim, group = c.shape.n_heads / c.shape.n_kv_heads;
    uint32_t tile_slots = slots_of_tile(d), heads = (uint32_t)c.shape.n_kv_heads;
    size_t bytes = (QUERIES * (size_t)d + tile_slots * ((size_t)d + 4)) * sizeof(float);
    dim3 grid(c.n_tiles * (c.n_splits > 0 ? c.n_splits : 1), heads, (unsigned)n_calls);
    if (!gpu_attend_packed(queue, c, n_calls) && !gpu_attend_tensor(queue, c, n_calls)) {
        GPU_ALLOW_SHARED(attend<PER>, bytes);
        GPU_LAUNCH(attend<PER>, grid, THREADS, bytes, queue, c);
    }
    if (c.n_splits > 0) {
        GPU_LAUNCH(fold_splits<PER>, dim3((unsigned)(c.most_rows * group), heads, (unsigned)n_calls), 32, 0, queue, c);
    }
}

size_t sl_gpu_attend_work(int n_calls, int most_rows, uint32_t most_slots, const struct gpu_attention *shape) {
    size_t splits = (most_slots + SPLIT - 1) / SPLIT, queries = (size_t)most_rows * (size_t)shape->n_heads;
    size_t tiles = (queries / (size_t)shape->n_kv_heads + MOST_QUERIES - 1) / MOST_QUERIES;
    // Counts the blocks of one call: one long session among many must not be left to one block.
    size_t blocks = (size_t)shape->n_kv_heads * tiles;
    size_t bytes = (size_t)n_calls * queries * splits * (size_t)(2 + shape->head_dim) * sizeof(float);
    return blocks < ENOUGH_BLOCKS && bytes <= GPU_MOST_WORK ? bytes : 0;
}

static void attend_calls(struct gpu_queue *queue, attend_call c, int n_calls, uint32_t most_slots, void *work) {
    int group = c.shape.n_heads / c.shape.n_kv_heads, d = c.shape.head_dim;
    c.n_tiles = ((uint32_t)(c.most_rows * group) + QUERIES - 1) / QUERIES;
    c.split = gpu_attends_packed(c) ? PACKED_SPLIT : SPLIT;
    c.n_splits = work != nullptr ? (most_slots + c.split - 1) / c.split : 0;
    c.parts = (float *)work;
    if (n_calls <= 0 || c.most_rows <= 0) {
        return;
    }
    if (d <= 64) {
        launch<2>(queue, c, n_calls);
    } else if (d <= 128) {
        launch<4>(queue, c, n_calls);
    } else if (d <= 256) {
        launch<8>(queue, c, n_calls);
    } else {
        launch<16>(queue, c, n_calls);
    }
}

void sl_gpu_attend(struct gpu_queue *queue, const struct gpu_attend *calls, int n_calls, int most_rows,
                   uint32_t most_slots, const struct gpu_attention *shape, void *work) {
    attend_call c = {};
    c.calls = calls, c.shape = *shape, c.most_rows = most_rows;
    attend_calls(queue, c, n_calls, most_slots, work);
}

void sl_gpu_attend_slots(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_listed,
                         const struct gpu_attention *shape, struct gpu_lists listed, void *work) {
    attend_call c = {};
    c.calls = call, c.shape = *shape, c.most_rows = 1;
    c.listed = listed;
    attend_calls(queue, c, 1, most_listed, work);
}
