// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: y = act(x W^T + bias), and its gated form, by tensor cores, for more than 8 rows that are not a prompt's:
 *          decode steps of many sequences.
 *
 * Design: x becomes bf16 first, in the order of units (units.h). A block has 128 columns, R rows, and two pieces of k,
 *         one after the other (tensor_cores.h). So a matrix of 4,096 columns is 128 blocks, and each reads a quarter of
 *         x. A warp has 16 of the columns and all of the rows. Its units of W go from memory to registers, four ahead,
 *         and no other warp needs them; x is in shared memory, three stages of four units, by cp.async. The sum of two
 *         pieces is written to memory, and a later pass adds the sums up for bias, activation and gate.
 */
#include "engine/tensor/cuda/dense/tensor_cores.h"

#include "engine/tensor/cuda/dense/units.h"

// of a stage; as many units of W are fetched ahead
constexpr uint32_t THREADS = 256, COLUMNS = 128, STAGES = 3, UNITS = gpu::QUAD;
constexpr int64_t MOST_ROWS = 128; // of a launch

template <uint32_t R> struct stage {
    static constexpr uint32_t PITCH =
        R * 4 + 4; // of a unit: four times 16 bytes for each row; the 4 more keep two units of a row in different banks
    uint4 x[UNITS * PITCH];
};

// Loads units [u0, u0 + UNITS), those below `end`, of R rows. Past the last row it loads that again, for unused sums.
template <uint32_t R>
GPU_DEVICE void load(const uint4 *x, uint32_t units, int64_t r0, int64_t m, uint32_t u0, uint32_t end, stage<R> *to) {
    GPU_UNROLL
    for (uint32_t i = 0; i < R * UNITS * 4 / THREADS; i++) {
        uint32_t at = i * THREADS + threadIdx.x, row = at / (UNITS * 4), u = at / 4 % UNITS, t = at % 4;
        int64_t r = r0 + row < m ? r0 + row : m - 1;
        if (u0 + u < end) {
            gpu::cp_async16(&to->x[u * stage<R>::PITCH + row * 4 + t], x + (r * units + u0 + u) * 4 + t);
        }
    }
}

template <uint32_t R, int KIND>
GPU_DEVICE void multiply(const gpu::unit_of_w<KIND> &w, const uint4 *x, float (&sums)[R / 8][4]) {
    uint32_t a[2][4];
    float scales[2];
    gpu::operands<KIND>(w, a);
    gpu::scales_of<KIND>(w, scales);
    GPU_UNROLL
    for (uint32_t i = 0; i < R / 8; i++) {
        gpu::add_unit<KIND>(a, x[32 * i + threadIdx.x % 32], scales, sums[i]);
        if (i % (KIND == GPU_WEIGHT_BF16 ? 8 : 4) == 3 || i + 1 == R / 8) {
            __syncwarp(); // otherwise so many loads are in flight that registers spill
        }
    }
}

// Writes a lane's sums: rows [0, n_rows) and columns [0, n_columns) from `out` on, which points to row 2 t and column
// g.
template <uint32_t R>
GPU_DEVICE void write(const float (&sums)[R / 8][4], bool add, int n_rows, int n_columns, float *out, int64_t pitch) {
    bool first = n_columns > 0, second = n_columns > 8;
    GPU_UNROLL
    for (uint32_t i = 0; i < R / 8; i++) {
        float *next = gpu::settled(out + pitch);
        bool even = (int)(8 * i) < n_rows, odd = (int)(8 * i + 1) < n_rows;
        const float before[4] = {add && even && first ? out[0] : 0.0f, add && odd && first ? next[0] : 0.0f,
                                 add && even && second ? out[8] : 0.0f, add && odd && second ? next[8] : 0.0f};
        if (even && first) {
            out[0] = before[0] + sums[i][0];
        }
        if (odd && first) {
            next[0] = before[1] + sums[i][1];
        }
        if (even && second) {
            out[8] = before[2] + sums[i][2];
        }
        if (odd && second) {
            next[8] = before[3] + sums[i][3];
        }
        out = gpu::settled(out + 8 * pitch);
    }
}

// blockIdx: tiles of rows, of columns, and pairs of pieces. out: [pairs][m][n_columns], `pitch` from row to row.
template <uint32_t R, int KIND>
static __global__ void __launch_bounds__(THREADS, R <= 64 ? 2 : 1)
    some_rows(gpu_matrix w, const uint4 *x, int64_t m, int64_t n_columns, float *out, int64_t pitch) {
    GPU_DYNAMIC_SHARED(stage<R>, stages);
    uint32_t units = (uint32_t)(w.pitch / gpu::UNIT), pieces = 2 * gridDim.z, first = 2 * blockIdx.z;
    uint32_t begin = gpu::begin_of(first, pieces, units), middle = gpu::begin_of(first + 1, pieces, units),
             end = gpu::begin_of(first + 2, pieces, units);
    int64_t r0 = blockIdx.x * (int64_t)R, j0 = blockIdx.y * (int64_t)COLUMNS + threadIdx.x / 32 * 16;
    gpu::rows_of_w<KIND> rows = gpu::rows_at<KIND>(w, j0, n_columns, begin);
    gpu::unit_of_w<KIND> next[UNITS];
    float sums[R / 8][4] = {};
    end = end < units ? end : units;
    GPU_UNROLL
    for (uint32_t i = 0; i < UNITS; i++) {
        if (begin + i < end) {
            gpu::fetch_unit<KIND>(rows, i, next[i]);
        }
    }
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        load<R>(x, units, r0, m, begin + s * UNITS, end, &stages[s]);
        gpu::cp_async_commit();
    }
    uint32_t now = 0, u0 = begin;
    do {                                  // once where there are no units: an empty sum must be written
        gpu::cp_async_wait<STAGES - 2>(); // it has arrived
        __syncthreads();                  // from all threads, and all have finished the previous one
        load<R>(x, units, r0, m, u0 + (STAGES - 1) * UNITS, end, &stages[(now + STAGES - 1) % STAGES]);
        gpu::cp_async_commit();
        gpu::advance<KIND>(rows, UNITS);
        GPU_UNROLL
        for (uint32_t i = 0; i < UNITS; i++) {
            if (u0 + i < end) {
                multiply<R, KIND>(next[i], &stages[now].x[i * stage<R>::PITCH], sums);
            }
            if (u0 + i + UNITS < end) {
                gpu::fetch_unit<KIND>(rows, i, next[i]);
            }
        }
        now = (now + 1) % STAGES;
        u0 += UNITS;
        if (u0 == middle ||
            u0 >= end) { // a piece; the first sum waits in its output memory, because no registers are left for it
            int64_t r = r0 + threadIdx.x % 4 * 2, j = j0 + threadIdx.x % 32 / 4;
            write<R>(sums, u0 > middle && middle > begin, (int)(m - r), (int)(n_columns - j < 16 ? n_columns - j : 16),
                     out + (blockIdx.z * m + r) * pitch + j, pitch);
            GPU_UNROLL
            for (uint32_t e = 0; e < R / 2; e++) {
                sums[e / 4][e % 4] = 0.0f;
            }
        }
    } while (u0 < end);
}

// --- launches --------------------------------------------------------------------------------------------------------

template <uint32_t R, int KIND>
static void launch_tiles(struct gpu_queue *queue, const gpu_matrix &w, int64_t m, const void *x, int64_t n_columns,
                         float *out, int64_t pitch) {
    constexpr size_t BYTES = STAGES * sizeof(stage<R>);
    dim3 grid((unsigned)((m + R - 1) / R), (unsigned)((n_columns + COLUMNS - 1) / COLUMNS), GPU_PIECES(w) / 2);
    GPU_ALLOW_SHARED((some_rows<R, KIND>), BYTES);
    GPU_LAUNCH((some_rows<R, KIND>), grid, THREADS, BYTES, queue, w, (const uint4 *)x, m, n_columns, out, pitch);
}

template <int KIND>
static void launch(struct gpu_queue *queue, const gpu_matrix &w, int64_t m, const void *x, int64_t n_columns,
                   float *out, int64_t pitch) {
    if (m <= 16) {
        launch_tiles<16, KIND>(queue, w, m, x, n_columns, out, pitch);
    } else if (m <= 32) {
        launch_tiles<32, KIND>(queue, w, m, x, n_columns, out, pitch);
    } else if (m <= 64 || KIND != GPU_WEIGHT_BF16) { // with codes, two tiles compute longer than they read
        launch_tiles<64, KIND>(queue, w, m, x, n_columns, out, pitch);
    } else {
        launch_tiles<128, GPU_WEIGHT_BF16>(queue, w, m, x, n_columns, out, pitch);
    }
}

// Returns true where the sums are already y, as for a step's logits.
static bool is_plain(const gpu_matrix &w, const sl_matmul &args) {
    return GPU_PIECES(w) == 2 && !w.gated && w.bias == nullptr && w.activation == SL_ACT_NONE && !args.accumulate;
}

static size_t bytes_of_x(const gpu_matrix &w, int64_t m) {
    return (size_t)(m * w.pitch) * sizeof(uint16_t);
}

size_t sl_gpu_some_rows_work(const struct gpu_matrix *w, int64_t m) {
    m = m < MOST_ROWS ? m : MOST_ROWS;
    return bytes_of_x(*w, m) + (size_t)(GPU_PIECES(*w) / 2 * m * w->n) * sizeof(float);
}

void sl_gpu_matmul_some_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args,
                             int64_t n_columns) {
    int64_t n_sums = w->gated ? 2 * n_columns : n_columns;
    bool plain = is_plain(*w, *args);
    for (int64_t first = 0; first < args->m; first += MOST_ROWS) {
        sl_matmul some = *args;
        some.m = args->m - first < MOST_ROWS ? args->m - first : MOST_ROWS;
        some.x += first * args->x_stride;
        some.y += first * args->y_stride;
        float *sums = plain ? some.y : (float *)((char *)some.scratch + bytes_of_x(*w, some.m));
        int64_t pitch = plain ? some.y_stride : n_sums;
        sl_gpu_pair_rows(queue, w, &some);
        gpu::by_kind(*w, [&](auto kind) {
            launch<decltype(kind)::value>(queue, *w, some.m, some.scratch, n_sums, sums, pitch);
        });
        if (!plain) {
            sl_gpu_finish_parts(queue, w, sums, GPU_PIECES(*w) / 2, &some, n_columns);
        }
    }
}
