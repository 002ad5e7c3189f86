// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: y = act(x W^T + bias), and its gated form, by tensor cores, for rows of prompts: the time goes into the
 *         products.
 *
 * Design: x becomes bf16 first. A block has a tile of N by N, for a gated matrix half of it from each side, and four
 *         warps, two by two. Shared memory holds three stages of 32 along k. x, and W where it is bf16, arrive by
 *         cp.async, two stages ahead. Codes go through registers, one stage ahead, and are widened there. They are
 *         exact in bf16, and the sum of 32 is multiplied by their scale. A row of a stage has four units of 16 bytes,
 *         whose positions are permuted by the row, so that neither eight rows of one unit nor two rows of all units use
 *         a bank twice. Adjacent blocks in x have the same columns: W comes from memory once.
 */
#include "engine/tensor/cuda/dense/tensor_cores.h"
#include "engine/tensor/cuda/dense/weights.h"

constexpr uint32_t THREADS = 128, DEPTH = 32, STAGES = 3;
constexpr int64_t MOST_ROWS = 2048; // of a launch, for whose bf16 x the work memory has room
constexpr int64_t LARGE = 64;       // blocks of large tiles: fewer would leave half of a GPU idle

template <uint32_t N> struct stage {
    uint4 x[4 * N], w[4 * N];
    uint16_t scales[N]; // for codes
};
template <uint32_t N, bool CODES> struct bytes_of_stage {
    static constexpr uint32_t VALUE = 2 * 4 * N * 16 + (CODES ? N * 2 : 0); // no scales for bf16
};

// Returns the index of eight k, from 8 u on, of a row of a stage.
GPU_DEVICE uint32_t unit(uint32_t row, uint32_t u) {
    return row * 4 + (u ^ (row >> 1 & 3));
}

// The tile of a block: rows from r0 on; columns from j0 on, and for a gated matrix as many of its second half.
template <uint32_t N, uint32_t SIDES> struct tile {
    static constexpr uint32_t COLUMNS = N / SIDES; // of y
    static constexpr uint32_t DOWN = N / 32, ACROSS = N / 16,
                              EACH = ACROSS / SIDES; // of 16 x 8, for a warp; and for a side
    int64_t r0, j0, n_columns;

    // Return the row of x and of W for a row of the stage. Past the last one they return it again, for unused elements.
    GPU_DEVICE_MEMBER int64_t row_of_x(uint32_t t, int64_t m) const { return r0 + t < m ? r0 + t : m - 1; }
    GPU_DEVICE_MEMBER int64_t row_of_w(uint32_t t) const {
        int64_t j = j0 + t % COLUMNS;
        return (j < n_columns ? j : n_columns - 1) + t / COLUMNS * n_columns;
    }
    // Returns the first of the 8 rows of W of a warp's columns.
    GPU_DEVICE_MEMBER static uint32_t first(uint32_t across) {
        return across / EACH * COLUMNS + threadIdx.x / 32 % 2 * (COLUMNS / 2) + across % EACH * 8;
    }
};

// --- stages ----------------------------------------------------------------------------------------------------------

// The addresses from which a thread copies into every stage: a unit of some rows of x, and of W.
template <uint32_t N> struct sources {
    static constexpr uint32_t EACH = 4 * N / THREADS;
    const uint16_t *x, *w[EACH];
    uint32_t x_at[EACH]; // below MOST_ROWS times the pitch
};

template <uint32_t N, uint32_t SIDES, bool CODES>
GPU_DEVICE void find_sources(const gpu_matrix &w, const uint16_t *x, int64_t m, const tile<N, SIDES> &of,
                             sources<N> &out) {
    out.x = x;
    GPU_UNROLL
    for (uint32_t i = 0; i < sources<N>::EACH; i++) {
        uint32_t t = threadIdx.x / 4 + i * (THREADS / 4), k = threadIdx.x % 4 * 8;
        out.x_at[i] = (uint32_t)(of.row_of_x(t, m) * w.pitch) + k;
        out.w[i] = CODES ? nullptr : (const uint16_t *)w.weights + of.row_of_w(t) * w.pitch + k;
    }
}

template <uint32_t N, bool CODES> GPU_DEVICE void load(const sources<N> &from, uint32_t k0, stage<N> *to) {
    GPU_UNROLL
    for (uint32_t i = 0; i < sources<N>::EACH; i++) {
        uint32_t at = unit(threadIdx.x / 4, threadIdx.x % 4) + i * THREADS;
        gpu::cp_async16(&to->x[at], from.x + (from.x_at[i] + k0));
        if (!CODES) {
            gpu::cp_async16(&to->w[at], from.w[i] + k0);
        }
    }
}

// Codes of a stage in a thread's registers: all 32 of its row of W, or half of them.
template <uint32_t N, int KIND> struct codes {
    static constexpr uint32_t N_CODES = DEPTH * N / THREADS, WORDS = N_CODES / (KIND == GPU_WEIGHT_INT8 ? 4 : 8);
    uint32_t word[WORDS];
    uint16_t scale;
};

// first: the thread's codes of the first stage; scales: those of its row.
template <uint32_t N, int KIND>
GPU_DEVICE void fetch(const uint32_t *first, const uint16_t *scales, uint32_t s, codes<N, KIND> &next) {
    constexpr uint32_t WORDS = codes<N, KIND>::WORDS;
    const uint32_t *from = first + s * (WORDS * THREADS / N);
    constexpr uint32_t WIDE = WORDS % 4 == 0 ? 4 : 2; // words of a load
    GPU_UNROLL
    for (uint32_t i = 0; i < WORDS; i += WIDE) {
        uint4 four = {0, 0, 0, 0};
        if (WIDE == 4) {
            four = *(const uint4 *)(from + i);
        } else {
            uint2 two = *(const uint2 *)(from + i);
            four.x = two.x, four.y = two.y;
        }
        next.word[i] = four.x, next.word[i + 1] = four.y;
        if (WIDE == 4) {
            next.word[(i + 2) % WORDS] = four.z, next.word[(i + 3) % WORDS] = four.w;
        }
    }
    next.scale = scales[s];
}

template <uint32_t N, int KIND> GPU_DEVICE void put(const codes<N, KIND> &next, stage<N> *to) {
    typedef codes<N, KIND> C;
    uint32_t t = threadIdx.x * N / THREADS, u0 = threadIdx.x % (THREADS / N) * (C::N_CODES / 8);
    GPU_UNROLL
    for (uint32_t i = 0; i < C::N_CODES / 8; i++) {
        to->w[unit(t, u0 + i)] = KIND == GPU_WEIGHT_INT8
                                     ? gpu::widen8_int8(next.word[2 * i % C::WORDS], next.word[(2 * i + 1) % C::WORDS])
                                     : gpu::widen8_int4(next.word[i % C::WORDS]);
    }
    to->scales[t] = next.scale; // both halves write the same value
}

// --- products --------------------------------------------------------------------------------------------------------

// Adds x W^T over a stage to sums; sums of codes are multiplied by the scale of their column.
template <uint32_t N, uint32_t SIDES, bool CODES>
GPU_DEVICE void multiply(const stage<N> *from, float (&sums)[N / 16][N / 32][4]) {
    typedef tile<N, SIDES> T;
    uint32_t lane = threadIdx.x % 32, a[2][T::DOWN][4];
    GPU_UNROLL
    for (uint32_t i = 0; i < 2 * T::DOWN; i++) {
        uint32_t row = threadIdx.x / 64 * (N / 2) + i / 2 * 16 + lane % 16;
        gpu::ldmatrix_x4(a[i % 2][i / 2], &from->x[unit(row, i % 2 * 2 + lane / 16)]);
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < T::ACROSS; j++) {
        uint32_t b[4]; // the whole depth: two operands
        gpu::ldmatrix_x4(b, &from->w[unit(T::first(j) + lane % 8, lane / 8)]);
        const uint32_t halves[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
        float part[T::DOWN][4] = {};
        GPU_UNROLL
        for (uint32_t i = 0; i < 2 * T::DOWN; i++) {
            gpu::mma_bf16(CODES ? part[i % T::DOWN] : sums[j][i % T::DOWN], a[i / T::DOWN][i % T::DOWN],
                          halves[i / T::DOWN]);
        }
        if (CODES) {
            uint32_t two = *(const uint32_t *)&from->scales[T::first(j) + lane % 4 * 2];
            const float scales[2] = {gpu::f16_to_f32((uint16_t)two), gpu::f16_to_f32((uint16_t)(two >> 16))};
            GPU_UNROLL
            for (uint32_t i = 0; i < T::DOWN * 4; i++) {
                sums[j][i / 4][i % 4] = fmaf(scales[i % 2], part[i / 4][i % 4], sums[j][i / 4][i % 4]);
            }
            __syncwarp(); // otherwise so many loads are in flight that registers spill
        }
    }
}

// Writes y of a warp's sums, 16 rows at a time, through shared memory of the warp's own.
template <uint32_t N, uint32_t SIDES>
GPU_DEVICE void finish(const gpu_matrix &w, const sl_matmul &args, const tile<N, SIDES> &of,
                       const float (&sums)[N / 16][N / 32][4], float *piece) {
    typedef tile<N, SIDES> T;
    constexpr uint32_t PITCH = N / 2 + 8, WIDTH = N / 2 / SIDES; // of y
    uint32_t lane = threadIdx.x % 32;
    GPU_UNROLL
    for (uint32_t i = 0; i < T::DOWN; i++) {
        GPU_UNROLL
        for (uint32_t j = 0; j < 2 * T::ACROSS; j++) {
            const float(&sum)[4] = sums[j / 2][i];
            *(float2 *)&piece[(lane / 4 + j % 2 * 8) * PITCH + j / 2 * 8 + lane % 4 * 2] = {sum[j % 2 * 2],
                                                                                            sum[j % 2 * 2 + 1]};
        }
        __syncwarp();
        gpu::write_piece<SIDES, WIDTH, PITCH>(w, args, of.n_columns, piece, of.r0 + threadIdx.x / 64 * (N / 2) + i * 16,
                                              of.j0 + threadIdx.x / 32 % 2 * WIDTH);
        __syncwarp(); // before it is written again
    }
}

// blockIdx: tiles of rows, of columns. x: [m][pitch] as bf16.
template <uint32_t N, uint32_t SIDES, int KIND>
static __global__ void __launch_bounds__(THREADS, 2)
    many_rows(gpu_matrix w, const uint16_t *x, sl_matmul args, int64_t n_columns) {
    constexpr bool CODES = KIND != GPU_WEIGHT_BF16;
    typedef codes<N, CODES ? KIND : GPU_WEIGHT_INT8> held;
    GPU_DYNAMIC_SHARED(char, stages);
    const tile<N, SIDES> of = {blockIdx.x * (int64_t)N, blockIdx.y * (int64_t)(N / SIDES), n_columns};
    auto at = [&](uint32_t s) { return (stage<N> *)(stages + s % STAGES * bytes_of_stage<N, CODES>::VALUE); };
    uint32_t n_steps = (uint32_t)((w.k + DEPTH - 1) / DEPTH);
    sources<N> from;
    find_sources<N, SIDES, CODES>(w, x, args.m, of, from);
    int64_t row = of.row_of_w(threadIdx.x * N / THREADS);
    const uint32_t *first =
        (const uint32_t *)w.weights +
        (row * w.pitch + threadIdx.x % (THREADS / N) * held::N_CODES) / (held::N_CODES / held::WORDS);
    const uint16_t *scales = w.scales + row * (w.pitch / DEPTH);
    held next;
    float sums[N / 16][N / 32][4] = {};
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n_steps) {
            load<N, CODES>(from, s * DEPTH, at(s));
        }
        gpu::cp_async_commit();
    }
    if (CODES) {
        fetch(first, scales, 0, next);
        put(next, at(0));
        fetch(first, scales, n_steps > 1 ? 1 : 0, next);
    }
    GPU_UNROLL_BY(1)
    for (uint32_t s = 0; s < n_steps; s++) {
        gpu::cp_async_wait<STAGES - 2>(); // s has arrived
        __syncthreads();                  // from all threads, and all have finished s - 1
        if (s + 2 < n_steps) {
            load<N, CODES>(from, (s + 2) * DEPTH, at(s + 2));
        }
        gpu::cp_async_commit();
        multiply<N, SIDES, CODES>(at(s), sums);
        if (CODES && s + 1 < n_steps) {
            put(next, at(s + 1));
        }
        if (CODES && s + 2 < n_steps) {
            fetch(first, scales, s + 2, next);
        }
    }
    __syncthreads(); // the stages are not used any more
    finish<N, SIDES>(w, args, of, sums, (float *)stages + threadIdx.x / 32 * 16 * (N / 2 + 8));
}

// --- launches --------------------------------------------------------------------------------------------------------

template <uint32_t N, uint32_t SIDES, int KIND>
static void launch_tiles(struct gpu_queue *queue, const gpu_matrix &w, const sl_matmul &args, int64_t n_columns) {
    constexpr size_t BYTES = STAGES * bytes_of_stage<N, (KIND != GPU_WEIGHT_BF16)>::VALUE;
    constexpr int64_t COLUMNS = N / SIDES;
    dim3 grid((unsigned)((args.m + N - 1) / N), (unsigned)((n_columns + COLUMNS - 1) / COLUMNS));
    GPU_ALLOW_SHARED((many_rows<N, SIDES, KIND>), BYTES);
    GPU_LAUNCH((many_rows<N, SIDES, KIND>), grid, THREADS, BYTES, queue, w, (const uint16_t *)args.scratch, args,
               n_columns);
}

template <uint32_t SIDES, int KIND>
static void launch(struct gpu_queue *queue, const gpu_matrix &w, const sl_matmul &args, int64_t n_columns) {
    int64_t n_large = (args.m + 127) / 128 * ((n_columns * SIDES + 127) / 128);
    if (args.m > 64 && n_large >= LARGE) {
        launch_tiles<128, SIDES, KIND>(queue, w, args, n_columns);
    } else {
        launch_tiles<64, SIDES, KIND>(queue, w, args, n_columns);
    }
}

template <int KIND>
static void launch_sides(struct gpu_queue *queue, const gpu_matrix &w, const sl_matmul &args, int64_t n_columns) {
    if (w.gated) {
        launch<2, KIND>(queue, w, args, n_columns);
    } else {
        launch<1, KIND>(queue, w, args, n_columns);
    }
}

size_t sl_gpu_many_rows_work(const struct gpu_matrix *w, int64_t m) {
    return (size_t)((m < MOST_ROWS ? m : MOST_ROWS) * w->pitch) * sizeof(uint16_t);
}

void sl_gpu_matmul_many_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args,
                             int64_t n_columns) {
    for (int64_t first = 0; first < args->m; first += MOST_ROWS) {
        sl_matmul some = *args;
        some.m = args->m - first < MOST_ROWS ? args->m - first : MOST_ROWS;
        some.x += first * args->x_stride;
        some.y += first * args->y_stride;
        sl_gpu_round_rows(queue, some.x, some.x_stride, some.m, w->k, w->pitch, some.scratch);
        gpu::by_kind(*w, [&](auto kind) { launch_sides<decltype(kind)::value>(queue, *w, some, n_columns); });
    }
}
