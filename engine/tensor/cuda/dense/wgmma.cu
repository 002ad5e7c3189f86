// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: y = act(x W^T + bias), and its gated form, for bf16 weights and many rows, by wgmma, which only compute
 *          capability 9.0 has.
 *
 * Design: a block has 128 rows of y by 256 columns, for a gated matrix 128 of each side, and eight warps; four of them
 *         share 64 rows. Shared memory holds four stages of 64 along k, in rows of 128 bytes whose units of 16 are
 *         permuted as wgmma requires. All threads copy by cp.async, two stages ahead: they wait only at the block's
 *         barriers, which all threads reach. While one stage's products are computed, those of the next are queued. A
 *         stage is filled again when all threads have seen its products done. Every element is one chain along k,
 *         whatever the number of rows.
 */
#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/dense/weights.h"

constexpr uint32_t THREADS = 256, ROWS = 128, COLUMNS = 256, DEPTH = 64, STAGES = 4;

struct stage {
    uint4 x[ROWS * DEPTH / 8], w[COLUMNS * DEPTH / 8];
};
constexpr size_t BYTES = STAGES * sizeof(stage) + 1024; // stages begin at a multiple of 1,024

#if defined(GPU_HAS_WGMMA)

constexpr uint32_t PITCH = COLUMNS + 8; // of sums in shared memory

// The addresses from which a thread copies into every stage: a unit of 4 rows of x, and of 8 of W. The last row is
// repeated past the end.
struct sources {
    const uint16_t *x, *w;
    uint32_t x_at[ROWS / 32], w_at[COLUMNS / 32];
};

template <uint32_t SIDES>
GPU_DEVICE void find_sources(const gpu_matrix &w, const uint16_t *x, int64_t m, int64_t n_columns, sources &out) {
    uint32_t row = threadIdx.x / 8, k = threadIdx.x % 8 * 8;
    out.x = x;
    out.w = (const uint16_t *)w.weights;
    GPU_UNROLL
    for (uint32_t i = 0; i < ROWS / 32; i++) {
        int64_t r = blockIdx.x * (int64_t)ROWS + row + 32 * i;
        out.x_at[i] = (uint32_t)((r < m ? r : m - 1) * w.pitch) + k;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < COLUMNS / 32; i++) {
        uint32_t t = row + 32 * i;
        int64_t j = blockIdx.y * (int64_t)(COLUMNS / SIDES) + t % (COLUMNS / SIDES);
        j = j < n_columns ? j : n_columns - 1;
        out.w_at[i] = (uint32_t)((j + t / (COLUMNS / SIDES) * n_columns) * w.pitch) + k;
    }
}

GPU_DEVICE void load(const sources &from, uint32_t k0, stage *to) {
    uint32_t row = threadIdx.x / 8, at = row * 8 + (threadIdx.x % 8 ^ row % 8);
    GPU_UNROLL
    for (uint32_t i = 0; i < ROWS / 32; i++) {
        gpu::cp_async16(&to->x[at + i * THREADS], from.x + (from.x_at[i] + k0));
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < COLUMNS / 32; i++) {
        gpu::cp_async16(&to->w[at + i * THREADS], from.w + (from.w_at[i] + k0));
    }
}

// Writes y of a warp's 16 rows, through shared memory of its own.
template <uint32_t SIDES>
GPU_DEVICE void finish(const gpu_matrix &w, const sl_matmul &args, int64_t n_columns, const float (&sums)[128],
                       float *piece) {
    uint32_t lane = threadIdx.x % 32;
    GPU_UNROLL
    for (uint32_t i = 0; i < 64; i++) { // eight columns, eight rows
        float *to = piece + (lane / 4 + i % 2 * 8) * PITCH + i / 2 * 8 + lane % 4 * 2;
        *(float2 *)to = {sums[2 * i], sums[2 * i + 1]};
    }
    __syncwarp();
    gpu::write_piece<SIDES, COLUMNS / SIDES, PITCH>(w, args, n_columns, piece,
                                                    blockIdx.x * (int64_t)ROWS + threadIdx.x / 32 * 16,
                                                    blockIdx.y * (int64_t)(COLUMNS / SIDES));
}

#endif

// blockIdx: tiles of rows, of columns. x: [m][pitch] as bf16; pitch: a multiple of 64. Does nothing on other
// architectures.
template <uint32_t SIDES>
static __global__ void __launch_bounds__(THREADS, 1)
    wgmma(gpu_matrix w, const uint16_t *x, sl_matmul args, int64_t n_columns) {
#if defined(GPU_HAS_WGMMA)
    GPU_DYNAMIC_SHARED(char, shared);
    stage *stages = (stage *)(shared + ((1024 - gpu::shared_address(shared) % 1024) & 1023));
    uint32_t n_steps = (uint32_t)(w.pitch / DEPTH);
    sources from;
    float sums[128] = {};
    find_sources<SIDES>(w, x, args.m, n_columns, from);
    for (uint32_t s = 0; s < 2; s++) {
        if (s < n_steps) {
            load(from, s * DEPTH, &stages[s]);
        }
        gpu::cp_async_commit();
    }
    GPU_UNROLL_BY(1)
    for (uint32_t s = 0; s < n_steps; s++) {
        const stage *now = &stages[s % STAGES];
        gpu::cp_async_wait<1>(); // this thread's part of s has arrived,
        gpu::fence_proxy_async();
        __syncthreads(); // and the parts of all threads; and products of s - 2 are done
        gpu::wgmma_fence();
        GPU_UNROLL
        for (uint32_t i = 0; i < DEPTH / 16; i++) {
            gpu::wgmma_m64n256k16_bf16(sums, gpu::wgmma_matrix(&now->x[threadIdx.x / 128 * 64 * 8], i),
                                       gpu::wgmma_matrix(now->w, i));
        }
        gpu::wgmma_commit();
        if (s + 2 < n_steps) {
            load(from, (s + 2) * DEPTH, &stages[(s + 2) % STAGES]);
        }
        gpu::cp_async_commit();
        gpu::wgmma_wait<1>();
    }
    gpu::wgmma_wait_for(sums);
    __syncthreads(); // the stages are not used any more
    finish<SIDES>(w, args, n_columns, sums, (float *)stages + threadIdx.x / 32 * 16 * PITCH);
#endif
}

template <uint32_t SIDES>
static void launch(struct gpu_queue *queue, const gpu_matrix &w, const void *x, const sl_matmul &args,
                   int64_t n_columns) {
    constexpr int64_t EACH = COLUMNS / SIDES;
    dim3 grid((unsigned)((args.m + ROWS - 1) / ROWS), (unsigned)((n_columns + EACH - 1) / EACH));
    GPU_ALLOW_SHARED(wgmma<SIDES>, BYTES);
    GPU_LAUNCH((wgmma<SIDES>), grid, THREADS, BYTES, queue, w, (const uint16_t *)x, args, n_columns);
}

void sl_gpu_matmul_wgmma(struct gpu_queue *queue, const struct gpu_matrix *w, const void *x,
                         const struct sl_matmul *args) {
    if (args->m > 0 && w->gated) {
        launch<2>(queue, *w, x, *args, w->n / 2);
    } else if (args->m > 0) {
        launch<1>(queue, *w, x, *args, w->n);
    }
}
