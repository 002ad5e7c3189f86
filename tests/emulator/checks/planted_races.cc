// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: kernels with a race, which a build with ThreadSanitizer must report, and the same ones without it.
 *
 *      planted_races none | barrier | overwrite | shuffle
 */
#include <cstdio>
#include <cstring>

#include "tests/emulator/emulator.h"
#include "engine/tensor/cuda/gpu.h"

constexpr int THREADS = 128, TILE = 32;

// Sums over a block by way of shared memory. Without the second barrier a fast warp overwrites what a slow one still reads.
static float block_sum(float x, bool barrier) {
    __shared__ float sums[THREADS / 32];
    for (int i = 16; i > 0; i /= 2) {
        x += __shfl_xor_sync(~0u, x, i);
    }
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = 0;
    for (int i = 0; i < THREADS / 32; i++) {
        x += sums[i];
    }
    if (barrier) {
        __syncthreads();
    }
    return x;
}

static __global__ void sum_twice(float *out, bool barrier) {
    float once = block_sum((float)threadIdx.x, barrier);
    out[threadIdx.x] = block_sum(once, true);
}

// Tiles through two stages of shared memory; without the barrier at the end a stage is filled while others read it.
static __global__ void staged(const float *x, int n_tiles, float *out, bool barrier) {
    __shared__ __attribute__((aligned(16))) float stage[2][4 * TILE];
    float sum = 0;
    auto load = [&](int tile) {
        if (threadIdx.x < TILE) {
            gpu::cp_async16(&stage[tile % 2][4 * threadIdx.x], x + 4 * (tile * TILE + (int)threadIdx.x));
        }
        gpu::cp_async_commit();
    };
    load(0);
    for (int tile = 0; tile < n_tiles; tile++) {
        if (tile + 1 < n_tiles) {
            load(tile + 1);
            gpu::cp_async_wait<1>();
        } else {
            gpu::cp_async_wait<0>();
        }
        __syncthreads();
        for (int i = 0; i < 4 * TILE; i++) {
            sum += stage[tile % 2][i];
        }
        if (barrier) {
            __syncthreads();
        }
    }
    out[threadIdx.x] = sum;
}

// A shuffle hands over a register; it does not order what lanes write to memory.
static __global__ void neighbours(float *out, bool barrier) {
    __shared__ float row[32];
    row[threadIdx.x] = (float)threadIdx.x;
    float x = __shfl_xor_sync(~0u, 1.0f, 1);
    if (barrier) {
        __syncwarp();
    }
    out[threadIdx.x] = x + row[threadIdx.x ^ 1];
}

int main(int argc, char **argv) {
    const char *plant = argc > 1 ? argv[1] : "none";
    constexpr int TILES = 5;
    struct gpu_queue *queue = sl_emu_queue_open();
    float *x = (float *)sl_emu_alloc(TILES * 4 * TILE * sizeof(float));
    float *out = (float *)sl_emu_alloc(THREADS * sizeof(float));
    static float ones[TILES * 4 * TILE], got[THREADS];
    for (float &one : ones) {
        one = 1;
    }
    for (unsigned order = 0; order < 4; order++) {
        sl_emu_set_order(order);
        sl_emu_copy(queue, x, ones, sizeof ones);
        GPU_LAUNCH(sum_twice, 2, THREADS, 0, queue, out, strcmp(plant, "barrier") != 0);
        GPU_LAUNCH(neighbours, 1, 32, 0, queue, out, strcmp(plant, "shuffle") != 0);
        GPU_LAUNCH(staged, 2, THREADS, 0, queue, x, TILES, out, strcmp(plant, "overwrite") != 0);
        sl_emu_copy(queue, got, out, sizeof got);
        sl_emu_wait(queue);
    }
    sl_emu_free(x);
    sl_emu_free(out);
    sl_emu_queue_close(&queue);
    printf("%g\n", (double)got[0]);
    return 0;
}
