// SPDX-License-Identifier: Apache-2.0
// Purpose: the interface of engine/tensor/cuda/gpu.h, which describes it, on the emulator.
#pragma once

#include <cstring>

#include "tests/emulator/emu.h"
#include "engine/tensor/half.h"
#define GPU_UNROLL
#define GPU_UNROLL_BY(n)
#define GPU_DYNAMIC_SHARED(type, name)  type *name = (type *)emu::dynamic_shared()
#define GPU_ALLOW_SHARED(kernel, bytes) (void)(bytes)
#define GPU_HAS_WGMMA
#define GPU_LAUNCH(kernel, grid, block, dynamic_bytes, queue, ...)                                                     \
    emu::launch(#kernel, grid, block, dynamic_bytes, queue, kernel, __VA_ARGS__)

namespace gpu {

// gpu.h defines these for both.
static inline float bf16_to_f32(uint16_t b);
static inline uint16_t f32_to_bf16(float f);
static inline uint16_t f32_to_f16_saturated(float f);

static inline float fast_exp2(float x) {
    return exp2f(x);
}
static inline float f16_to_f32(uint16_t h) {
    return sl_f16_to_f32(h);
}
static inline uint16_t f32_to_f16(float f) {
    return sl_f32_to_f16(f);
}
static inline uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    return f32_to_f16(f16_to_f32((uint16_t)a) * f16_to_f32((uint16_t)b)) |
           (uint32_t)f32_to_f16(f16_to_f32((uint16_t)(a >> 16)) * f16_to_f32((uint16_t)(b >> 16))) << 16;
}
static inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t lo = f32_to_f16(fmaf(f16_to_f32((uint16_t)a), f16_to_f32((uint16_t)b), f16_to_f32((uint16_t)c)));
    float x = f16_to_f32((uint16_t)(a >> 16)), y = f16_to_f32((uint16_t)(b >> 16));
    return lo | (uint32_t)f32_to_f16(fmaf(x, y, f16_to_f32((uint16_t)(c >> 16)))) << 16;
}
static inline uint32_t add_bf16x2(uint32_t a, uint32_t b) {
    return f32_to_bf16(bf16_to_f32((uint16_t)a) + bf16_to_f32((uint16_t)b)) |
           (uint32_t)f32_to_bf16(bf16_to_f32((uint16_t)(a >> 16)) + bf16_to_f32((uint16_t)(b >> 16))) << 16;
}
static inline uint32_t pack_f16_saturated(float lo, float hi) {
    return f32_to_f16_saturated(lo) | (uint32_t)f32_to_f16_saturated(hi) << 16;
}
static inline uint32_t pack_bf16_fast(float lo, float hi) {
    return f32_to_bf16(lo) | (uint32_t)f32_to_bf16(hi) << 16;
}

#define GPU_MMA(name, op)                                                                                              \
    static inline void name(float(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2], EMU_HERE) {                    \
        const uint32_t in[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};                                                   \
        emu::together(op, ~0u, in, d, {file, line});                                                                   \
    }
GPU_MMA(mma_bf16, emu::MMA_BF16)
GPU_MMA(mma_f16, emu::MMA_F16)
static inline void ldmatrix_x4(uint32_t (&r)[4], const void *row, EMU_HERE) {
    emu::together(emu::LDMATRIX, ~0u, row, r, {file, line});
}
static inline uint32_t transpose_8x8(uint32_t x, EMU_HERE) {
    uint32_t y;
    emu::together(emu::MOVMATRIX, ~0u, &x, &y, {file, line});
    return y;
}
static inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, EMU_HERE) {
    ldmatrix_x4(r, row, file, line);
    for (int i = 0; i < 4; i++) {
        r[i] = transpose_8x8(r[i], file, line);
    }
}
static inline uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t which) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        out |= (uint32_t)(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    }
    return out;
}
static inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
    return (x & mask) | bits;
}
static inline void cp_async16(void *to, const void *from, EMU_HERE) {
    emu::copy_later(to, from, 16, file, line);
}
template <int N> static inline void read_once(const uint32_t *from, uint32_t (&to)[N]) {
    memcpy(to, __builtin_assume_aligned(from, sizeof to), sizeof to);
}
static inline float *settled(float *p) {
    return p;
}
static inline void prefetch(const void *) {}
static inline void cp_async_commit() {
    emu::copy_commit();
}
template <int N> static inline void cp_async_wait() {
    emu::copy_wait(N);
}
static inline void wgmma_m64n256k16_bf16(float (&d)[128], uint64_t a, uint64_t b, EMU_HERE) {
    emu::wgmma(a, b, d, file, line);
}
static inline void wgmma_fence() {
    emu::wgmma_fence();
}
static inline void wgmma_commit() {
    emu::wgmma_commit();
}
template <int N> static inline void wgmma_wait(EMU_HERE) {
    emu::wgmma_wait(N, file, line);
}
static inline void wgmma_wait_for(float (&)[128], EMU_HERE) {
    emu::wgmma_wait(0, file, line);
}
static inline void fence_proxy_async() {
    emu::fence_proxy_async();
}
static inline uint32_t shared_address(const void *p) {
    return emu::shared_address(p);
}

} // namespace gpu
