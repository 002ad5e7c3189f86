// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: y = act(x W^T + bias), and its gated form, by tensor cores, for up to 8 rows: the time goes into reading the
 *         weights.
 *
 * Design: a warp has 16 columns of y, for a gated matrix of each side, and a piece of k (tensor_cores.h). The units of
 *         its piece go from memory to registers, several ahead, and from there into products (units.h); no warp waits
 *         for another before the end. A block has all pieces of its columns, which are added up in shared memory. Each
 *         warp reads x as f32 and rounds it: x is in the caches, which W bypasses.
 */
#include "engine/tensor/cuda/dense/tensor_cores.h"

#include "engine/tensor/cuda/dense/units.h"

constexpr uint32_t ROWS = GPU_FEW_ROWS, THREADS = 256, WARPS = THREADS / 32;
template <uint32_t SIDES> constexpr uint32_t AHEAD = SIDES == 1 ? 4 : 3; // units: more would spill registers

// A lane's row of x; it may have none.
struct row_of_x {
    const float *at; // of its eight numbers of a unit
    uint32_t left;   // units from there on that have any of it
    int64_t k;       // numbers from there on to the row's end
};

GPU_DEVICE row_of_x x_at(const sl_matmul &args, int64_t k, uint32_t u) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int64_t from = gpu::UNIT * (int64_t)u + 8 * t, left = g < args.m && from < k ? k - from : 0;
    return {args.x + (g < args.m ? g : 0) * args.x_stride + from, (uint32_t)((left + gpu::UNIT - 1) / gpu::UNIT), left};
}

GPU_DEVICE void advance(row_of_x &x, uint32_t n_units) {
    x.at += n_units * gpu::UNIT;
    x.left = x.left > n_units ? x.left - n_units : 0;
    x.k -= n_units * gpu::UNIT;
}

// WIDE: rows are whole groups of eight, at multiples of 16 bytes.
template <bool WIDE> GPU_DEVICE void fetch_x(const row_of_x &row, uint32_t i, float (&out)[8]) {
    const float *from = row.at + i * gpu::UNIT;
    if (WIDE) {
        float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
        if (i < row.left) {
            a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
        }
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
        GPU_UNROLL
        for (int e = 0; e < 8; e++) {
            out[e] = i * gpu::UNIT + e < row.k ? from[e] : 0.0f;
        }
    }
}

template <uint32_t SIDES, int KIND> struct ahead {
    gpu::unit_of_w<KIND> w[SIDES];
    float x[8];
};

template <uint32_t SIDES, int KIND> struct sources {
    gpu::rows_of_w<KIND> w[SIDES];
    row_of_x x;
};

template <uint32_t SIDES, int KIND, bool WIDE>
GPU_DEVICE void fetch(const sources<SIDES, KIND> &from, uint32_t i, ahead<SIDES, KIND> &out) {
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        gpu::fetch_unit<KIND>(from.w[side], i, out.w[side]);
    }
    fetch_x<WIDE>(from.x, i, out.x);
}

template <uint32_t SIDES, int KIND> GPU_DEVICE void multiply(const ahead<SIDES, KIND> &unit, float (&sums)[SIDES][4]) {
    uint4 b = gpu::pairs_of<KIND>(unit.x);
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        uint32_t a[2][4];
        float scales[2];
        gpu::operands<KIND>(unit.w[side], a);
        gpu::scales_of<KIND>(unit.w[side], scales);
        gpu::add_unit<KIND>(a, b, scales, sums[side]);
    }
}

// Adds x W^T over n units to sums.
template <uint32_t SIDES, int KIND, bool WIDE>
GPU_DEVICE void add_piece(sources<SIDES, KIND> &from, uint32_t n, float (&sums)[SIDES][4]) {
    constexpr uint32_t N = AHEAD<SIDES>;
    ahead<SIDES, KIND> next[N];
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i++) {
        if (i < n) {
            fetch<SIDES, KIND, WIDE>(from, i, next[i]);
        }
    }
    GPU_UNROLL_BY(1)
    for (; n >= N; n -= N) {
        GPU_UNROLL
        for (uint32_t side = 0; side < SIDES; side++) {
            gpu::advance<KIND>(from.w[side], N);
        }
        advance(from.x, N);
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++) {
            multiply<SIDES, KIND>(next[i], sums);
            if (i + N < n) {
                fetch<SIDES, KIND, WIDE>(from, i, next[i]);
            }
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i++) {
        if (i < n) {
            multiply<SIDES, KIND>(next[i], sums);
        }
    }
}

// blockIdx: tiles of 16 columns, WARPS / n_pieces of them.
template <uint32_t SIDES, int KIND, bool WIDE>
static __global__ void __launch_bounds__(THREADS, WIDE ? 2 : 1)
    few_rows(gpu_matrix w, sl_matmul args, int64_t n_columns, uint32_t n_pieces) {
    __shared__ float pieces[WARPS][SIDES][ROWS][16 + 1];
    uint32_t warp = threadIdx.x / 32, piece = warp % n_pieces, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t n_units = (uint32_t)(w.pitch / gpu::UNIT), n_wide = WARPS / n_pieces * 16; // columns of the block
    uint32_t begin = gpu::begin_of(piece, n_pieces, n_units), end = gpu::begin_of(piece + 1, n_pieces, n_units);
    int64_t first = blockIdx.x * (int64_t)n_wide;
    sources<SIDES, KIND> from;
    GPU_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        from.w[side] =
            gpu::rows_at<KIND>(w, side * n_columns + first + warp / n_pieces * 16, (side + 1) * n_columns, begin);
    }
    from.x = x_at(args, w.k, begin);
    float sums[SIDES][4] = {};
    add_piece<SIDES, KIND, WIDE>(from, (end < n_units ? end : n_units) - begin, sums);
    GPU_UNROLL
    for (uint32_t e = 0; e < SIDES * 4; e++) {
        pieces[warp][e / 4][2 * t + e % 2][g + e % 4 / 2 * 8] = sums[e / 4][e % 4];
    }
    __syncthreads();
    GPU_UNROLL_BY(1)
    for (uint32_t i = threadIdx.x; i < n_wide * (uint32_t)args.m; i += THREADS) {
        uint32_t r = i / n_wide, c = i % n_wide, p0 = c / 16 * n_pieces;
        int64_t j = first + c;
        float sum[SIDES];
        GPU_UNROLL
        for (uint32_t side = 0; side < SIDES; side++) {
            sum[side] = pieces[p0][side][r][c % 16] + pieces[p0 + 1][side][r][c % 16];
            for (uint32_t p = 2; p < n_pieces; p += 2) {
                sum[side] += pieces[p0 + p][side][r][c % 16] + pieces[p0 + p + 1][side][r][c % 16];
            }
        }
        if (j < n_columns) {
            float *y = args.y + r * args.y_stride + j;
            *y = gpu::finished<SIDES>(w, j, sum[0] + (args.accumulate ? *y : 0.0f), sum[SIDES - 1]);
        }
    }
}

template <int KIND, bool WIDE>
static void launch_sides(struct gpu_queue *queue, const gpu_matrix &w, const sl_matmul &args, int64_t n_columns) {
    uint32_t n_pieces = GPU_PIECES(w);
    int64_t n_wide = WARPS / n_pieces * 16;
    unsigned grid = (unsigned)((n_columns + n_wide - 1) / n_wide);
    if (w.gated) {
        GPU_LAUNCH((few_rows<2, KIND, WIDE>), grid, THREADS, 0, queue, w, args, n_columns, n_pieces);
    } else {
        GPU_LAUNCH((few_rows<1, KIND, WIDE>), grid, THREADS, 0, queue, w, args, n_columns, n_pieces);
    }
}

template <int KIND>
static void launch(struct gpu_queue *queue, const gpu_matrix &w, const sl_matmul &args, int64_t n_columns) {
    if ((w.k % 8 | args.x_stride % 4) == 0 && ((uintptr_t)args.x & 15) == 0) {
        launch_sides<KIND, true>(queue, w, args, n_columns);
    } else {
        launch_sides<KIND, false>(queue, w, args, n_columns);
    }
}

void sl_gpu_matmul_few_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args,
                            int64_t n_columns) {
    gpu::by_kind(*w, [&](auto kind) { launch<decltype(kind)::value>(queue, *w, *args, n_columns); });
}
