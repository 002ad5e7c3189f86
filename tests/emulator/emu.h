// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what a kernel of CUDA finds here in CUDA's place. Threads of a block are fibers of one host thread. Use that
 *          the emulator detects as wrong ends the process and names the source line.
 *
 * Design: a fiber runs until a barrier or an operation of its warp, and then switches to the next fiber. The emulator
 *         is never instrumented by ThreadSanitizer, but kernels may be. It tells ThreadSanitizer that fibers are
 *         threads and that only __syncthreads and __syncwarp order them, so ThreadSanitizer reports races between the
 *         threads of a block. Asynchronous copies happen when they are waited for, the latest that a GPU can; products
 *         of wgmma happen then or, in some orders of threads, at once. Data that they read must have been copied and
 *         fenced, and must not be overwritten before they are waited for. Shared memory is poisoned before every block.
 *
 * Not shown: time, banks, occupancy; the order of memory between blocks, which run one after another.
 */
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

struct gpu_queue;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Puts all shared memory into one section, which can be poisoned. Kernels and device functions must be static: a
// section holds no COMDAT.
#define __shared__ static __attribute__((section("gpu_shared")))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

namespace emu {

struct where { // in the source of a kernel
    const char *file;
    int line;
};

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
[[noreturn]] void die(const char *what, const char *file, int line);

struct place {
    dim3 thread, block, n_threads, n_blocks;
};
extern const place *running; // thread; NULL: none
inline const place &here() { // inline, because kernels ask in their loops
    if (running == nullptr) {
        die("kernel code outside of a kernel", "?", 0);
    }
    return *running;
}
void *dynamic_shared();
int barrier(int predicate, const char *file, int line); // returns how many threads passed a nonzero predicate

enum warp_op { SYNC, XOR, DOWN, UP, FROM, BALLOT, MMA_BF16, MMA_F16, LDMATRIX, MOVMATRIX };
struct shuffle { // which bytes move, by how many lanes, within groups of how many
    int bytes, amount, width;
};
// Executes one operation of the lanes in mask, from each lane's in to its out.
void together(warp_op op, unsigned mask, const void *in, void *out, where at, shuffle moves = {});

// cp.async
void copy_later(void *to, const void *from, unsigned bytes, const char *file, int line);
void copy_commit();
void copy_wait(size_t n_left);

// wgmma: see gpu.h
void wgmma(uint64_t a, uint64_t b, float *d, const char *file, int line);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(size_t n_left, const char *file, int line);
void fence_proxy_async();
uint32_t shared_address(const void *p);

void run(const char *kernel, dim3 grid, dim3 block, size_t dynamic_bytes, const std::function<void()> &thread);
void enqueue(gpu_queue *queue, const char *kernel, std::function<void()> work); // kernel NULL: the step is a copy

// Queues a kernel. It copies the arguments at the call, as CUDA does.
template <class... P, class... A>
void launch(const char *name, dim3 grid, dim3 block, size_t dynamic_bytes, gpu_queue *queue, void (*kernel)(P...),
            A... arguments) {
    std::function<void()> thread = [=] { kernel(P(arguments)...); };
    enqueue(queue, name, [=] { run(name, grid, block, dynamic_bytes, thread); });
}

} // namespace emu

#define threadIdx (emu::here().thread)
#define blockIdx  (emu::here().block)
#define blockDim  (emu::here().n_threads)
#define gridDim   (emu::here().n_blocks)

static inline void __syncthreads(EMU_HERE) {
    emu::barrier(0, file, line);
}
static inline int __syncthreads_count(int p, EMU_HERE) {
    return emu::barrier(p != 0, file, line);
}
static inline void __syncwarp(unsigned mask = ~0u, EMU_HERE) {
    emu::together(emu::SYNC, mask, nullptr, nullptr, {file, line});
}
#define EMU_SHUFFLE(name, op)                                                                                          \
    template <class T> static inline T name(unsigned mask, T v, int amount, int width = 32, EMU_HERE) {                \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a register or two");                                          \
        T out;                                                                                                         \
        emu::together(op, mask, &v, &out, {file, line}, {sizeof(T), amount, width});                                   \
        return out;                                                                                                    \
    }
EMU_SHUFFLE(__shfl_xor_sync, emu::XOR)
EMU_SHUFFLE(__shfl_down_sync, emu::DOWN)
EMU_SHUFFLE(__shfl_up_sync, emu::UP)
EMU_SHUFFLE(__shfl_sync, emu::FROM)
static inline unsigned __ballot_sync(unsigned mask, int p, EMU_HERE) {
    unsigned out;
    emu::together(emu::BALLOT, mask, &p, &out, {file, line});
    return out;
}

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline float __uint_as_float(uint32_t u) {
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t __float_as_uint(float f) {
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    return u;
}
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    return (uint64_t)((unsigned __int128)a * b >> 64);
}
static inline uint32_t atomicAdd(uint32_t *p, uint32_t v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
static inline uint32_t atomicMax(uint32_t *p, uint32_t v) {
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
static inline uint32_t atomicMin(uint32_t *p, uint32_t v) {
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old > v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
