// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the interface that kernels are written against: CUDA. Without nvcc the same
 *          interface comes from gpu_emulated.h of tests/emulator.
 *
 * Kernels and device functions are static; a host function launches them with GPU_LAUNCH, on a queue, which is a stream
 * of CUDA. GPU_UNROLL precedes loops over arrays that must be in registers: an array that is indexed by a variable is
 * in memory. Use GPU_UNROLL_BY where the compiler would unroll so far that registers spill, or that fewer blocks run at
 * a time.
 */
#pragma once

#if defined(__CUDACC__)
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "engine/tensor/cuda/launching.h"
#define GPU_UNROLL       _Pragma("unroll")
#define GPU_PRAGMA(x)    _Pragma(#x)
#define GPU_UNROLL_BY(n) GPU_PRAGMA(unroll n)
#define GPU_DYNAMIC_SHARED(type, name)                                                                                 \
    extern __shared__ __align__(128) unsigned char gpu_dynamic_[];                                                     \
    type *name = (type *)gpu_dynamic_
#define GPU_LAUNCH(kernel, grid, block, dynamic_bytes, queue, ...)                                                     \
    (sl_cuda_launching(#kernel), kernel<<<grid, block, dynamic_bytes, (cudaStream_t)(queue)>>>(__VA_ARGS__),           \
     sl_cuda_launched())
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) // only 9.0a: neither 9.0 nor newer architectures have it
#define GPU_HAS_WGMMA
#endif
// Call it before a launch with more than 48 KB of dynamic shared memory.
#define GPU_ALLOW_SHARED(kernel, bytes)                                                                                \
    (sl_cuda_launching(#kernel),                                                                                       \
     (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)))
#else
#include <gpu_emulated.h>
#endif

#define GPU_DEVICE             static __device__ __forceinline__
#define GPU_HOST_DEVICE        static __host__ __device__ __forceinline__
#define GPU_DEVICE_MEMBER      __device__ __forceinline__
#define GPU_HOST_DEVICE_MEMBER __host__ __device__ __forceinline__

namespace gpu {

// --- 16-bit floats as bits: rounding to nearest even. A NaN keeps as many of its bits as fit, as in engine/tensor/half

GPU_DEVICE float bf16_to_f32(uint16_t b) {
    return __uint_as_float((uint32_t)b << 16);
}
GPU_DEVICE uint16_t f32_to_bf16(float f) {
    uint32_t u = __float_as_uint(f);
    return (uint16_t)(f != f ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
GPU_DEVICE uint32_t pack_bf16(float lo, float hi) {
    return f32_to_bf16(lo) | (uint32_t)f32_to_bf16(hi) << 16;
}

/*
 * --- products of matrices: d += a b of a warp, f32 sums: A 16x16, B 16x8. With g = lane / 4, t = lane % 4 a register h
 * the pair at k, k + 1:
 *   a[0] A[g][2t]  a[1] A[g+8][2t]  a[2] A[g][2t+8]  a[3] A[g+8][2t+8]   b[0] B[2t][g]  b[1] B[2t+8][g]
 *   d[0..1] D[g][2t, 2t+1]   d[2..3] D[g+8][2t, 2t+1]
 * ldmatrix_x4: lane l has the address of row l % 8 of matrix l / 8 (8x8 of 16 bits); r[i] is lane l's pair of matrix i,
 * row l / 4, columns 2 (l % 4), + 1. transpose_8x8 replaces the pairs of a matrix by those of its transpose;
 * ldmatrix_x4_trans does so for all four.
 *
 * wgmma_m64n256k16_bf16 is executed by four warps (threads from a multiple of 128 on): d += A B^T, A 64x16, B 256x16,
 * both in shared memory, at the addresses of wgmma_matrix(). Warp w has rows 16 w to 16 w + 15, as above, d[4j..] of
 * columns 8j to 8j + 7. It runs in the background: wgmma_fence() comes before the first of a group, wgmma_commit()
 * after the last. Its sums may be read, and its operands overwritten, when wgmma_wait<N>() has left at most N later
 * groups. It does not see what threads or cp.async wrote until that thread has called fence_proxy_async() afterwards
 * (and, for other threads, a barrier).
 */
#if defined(__CUDACC__)
GPU_DEVICE float f16_to_f32(uint16_t h) {
    return __half2float(__ushort_as_half(h));
}
GPU_DEVICE uint16_t f32_to_f16(float f) {
    uint32_t u = __float_as_uint(f);
    return f != f ? (uint16_t)((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x1ffu))
                  : __half_as_ushort(__float2half_rn(f));
}
GPU_DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    __half2 x = __hfma2(*(__half2 *)&a, *(__half2 *)&b, *(__half2 *)&c);
    return *(uint32_t *)&x;
}
GPU_DEVICE uint32_t add_bf16x2(uint32_t a, uint32_t b) { // as a product with 1: 8.0 has no addition
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return y;
}
GPU_DEVICE uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    __half2 x = __hmul2(*(__half2 *)&a, *(__half2 *)&b);
    return *(uint32_t *)&x;
}
// Returns 2^x as softmax needs it: to two units in the last place, without subnormals, in one instruction. 0 for
// -infinity, exactly 1 for 0.
GPU_DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Rounds two numbers, with one instruction for each. A NaN stays NaN, but loses its other bits.
GPU_DEVICE uint32_t pack_f16_saturated(float lo, float hi) {
    uint32_t y;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
GPU_DEVICE uint32_t pack_bf16_fast(float lo, float hi) {
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}

// Statements that read or write memory declare it ("memory"); otherwise the compiler may move loads and stores across
// them (tests/kernels/cuda/test_asm.py).
#define GPU_MMA(name, type)                                                                                            \
    GPU_DEVICE void name(float(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2]) {                                 \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                            \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                      \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
    }
GPU_MMA(mma_bf16, "bf16")
GPU_MMA(mma_f16, "f16")
GPU_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
GPU_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
GPU_DEVICE uint32_t transpose_8x8(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
GPU_DEVICE uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t which) {
    return __byte_perm(a, b, which);
}
// Returns (x & mask) | bits in one instruction; with two constants the compiler makes two.
GPU_DEVICE uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}
GPU_DEVICE void cp_async16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}
// Reads adjacent words that are needed once, at a multiple of their size. The first-level cache keeps none of them.
GPU_DEVICE void read_once(const uint32_t *from, uint32_t (&to)[4]) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from)
                 : "memory");
}
GPU_DEVICE void read_once(const uint32_t *from, uint32_t (&to)[2]) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(from)
                 : "memory");
}
GPU_DEVICE void read_once(const uint32_t *from, uint32_t (&to)[1]) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(to[0]) : "l"(from) : "memory");
}
// Hides the origin of a pointer from the compiler, so that it adds to the pointer and does not compute it anew.
GPU_DEVICE float *settled(float *p) {
    asm volatile("" : "+l"(p));
    return p;
}
// Prefetches a line of 128 bytes into the second-level cache. No memory clobber: it is a hint, and no value depends on
// it.
GPU_DEVICE void prefetch(const void *line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}
GPU_DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> GPU_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#if defined(GPU_HAS_WGMMA)
#define GPU_REGISTERS_8(d, i)                                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define GPU_REGISTERS_32(d, i)                                                                                         \
    GPU_REGISTERS_8(d, i), GPU_REGISTERS_8(d, i + 8), GPU_REGISTERS_8(d, i + 16), GPU_REGISTERS_8(d, i + 24)
#define GPU_REGISTERS_128(d)                                                                                           \
    GPU_REGISTERS_32(d, 0), GPU_REGISTERS_32(d, 32), GPU_REGISTERS_32(d, 64), GPU_REGISTERS_32(d, 96)
GPU_DEVICE void wgmma_m64n256k16_bf16(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
                 "%128, %129, 1, 1, 1, 0, 0;"
                 : GPU_REGISTERS_128(d)
                 : "l"(a), "l"(b)
                 : "memory");
}
GPU_DEVICE void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU_DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> GPU_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Waits for all groups. The registers are operands; otherwise the compiler would read them before the wait.
GPU_DEVICE void wgmma_wait_for(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : GPU_REGISTERS_128(d)::"memory");
}
GPU_DEVICE void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif
GPU_DEVICE uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
#endif

// Rounds; a value beyond the range of f16 becomes its largest value, not infinity. A NaN stays NaN.
GPU_DEVICE uint16_t f32_to_f16_saturated(float f) {
    f = f > 65504.0f ? 65504.0f : f;
    return f32_to_f16(f < -65504.0f ? -65504.0f : f);
}

// Returns the descriptor of 16 columns from 16 i on. The rows have 64 numbers of 16 bits, 128 bytes each, from a
// multiple of 1,024 on; unit u of 16 bytes of row r is stored in the position of unit u ^ r % 8. The descriptor has the
// address, 1,024 bytes from eight rows to the next eight, and the 128-byte swizzle. All fields but the swizzle are in
// units of 16 bytes; the column offset is not used where whole rows are swizzled.
GPU_DEVICE uint64_t wgmma_matrix(const void *rows, uint32_t i) {
    uint64_t start = (shared_address(rows) + 32 * i) >> 4 & 0x3fff;
    return start | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

} // namespace gpu
