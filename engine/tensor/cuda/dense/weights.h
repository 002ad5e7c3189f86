// SPDX-License-Identifier: Apache-2.0
// Purpose: weights as kernels read them; struct gpu_matrix describes their layout.
#pragma once

#include <type_traits>

#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/gpu.h"

namespace gpu {

GPU_DEVICE float stored_weight(const gpu_matrix &w, int64_t row, int64_t i) {
    if (w.kind == GPU_WEIGHT_F32) {
        return ((const float *)w.weights)[row * w.pitch + i];
    }
    uint16_t half = ((const uint16_t *)w.weights)[row * w.pitch + i];
    return w.kind == GPU_WEIGHT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

// Reads weights [i, i + 8) of a row as f32, i a multiple of 8 below the pitch.
GPU_DEVICE void read_weights8(const gpu_matrix &w, int64_t row, int64_t i, float (&out)[8]) {
    int64_t at = row * w.pitch + i;
    if (w.kind == GPU_WEIGHT_F32) {
        float4 a = ((const float4 *)w.weights)[at / 4], b = ((const float4 *)w.weights)[at / 4 + 1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
        return;
    }
    if (w.kind == GPU_WEIGHT_F16 || w.kind == GPU_WEIGHT_BF16) {
        uint4 a = ((const uint4 *)w.weights)[at / 8];
        const uint32_t pairs[4] = {a.x, a.y, a.z, a.w};
        GPU_UNROLL
        for (int e = 0; e < 8; e++) {
            uint16_t half = (uint16_t)(pairs[e / 2] >> e % 2 * 16);
            out[e] = w.kind == GPU_WEIGHT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        }
        return;
    }
    float scale = f16_to_f32(w.scales[at / 32]);
    uint64_t codes =
        w.kind == GPU_WEIGHT_INT8 ? ((const uint64_t *)w.weights)[at / 8] : ((const uint32_t *)w.weights)[at / 8];
    GPU_UNROLL
    for (int e = 0; e < 8; e++) {
        int code = w.kind == GPU_WEIGHT_INT8 ? (int8_t)(codes >> 8 * e) : (int)(codes >> 4 * e & 15) - 8;
        out[e] = scale * (float)code;
    }
}

// Calls f with the kind of weights that tensor cores multiply, as a constant.
template <class F> static void by_kind(const gpu_matrix &w, F f) {
    switch (w.kind) {
    case GPU_WEIGHT_INT8:
        f(std::integral_constant<int, GPU_WEIGHT_INT8>());
        break;
    case GPU_WEIGHT_INT4:
        f(std::integral_constant<int, GPU_WEIGHT_INT4>());
        break;
    default:
        f(std::integral_constant<int, GPU_WEIGHT_BF16>());
    }
}

// --- factors of tensor cores -----------------------------------------------------------------------------------------

// Reads [k, k + 8) of a row of n_k floats, with zeros after its end.
GPU_DEVICE void read8(const float *row, int64_t k, int64_t n_k, float (&x)[8]) {
    const float *from = row + k;
    if (k + 8 <= n_k && ((uintptr_t)from & 15) == 0) {
        float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        GPU_UNROLL
        for (int e = 0; e < 8; e++) {
            x[e] = k + e < n_k ? from[e] : 0.0f;
        }
    }
}
// Returns the same as bf16.
GPU_DEVICE uint4 round8(const float *row, int64_t k, int64_t n_k) {
    float x[8];
    read8(row, k, n_k, x);
    return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
}

// Widens codes to bf16, which is exact. For n of seven bits, 0x4300 | n is the bf16 128 + n, so one operation makes 128
// + n, and another subtracts 128, or 256 where a byte's eighth bit says that it is negative.
GPU_DEVICE uint32_t widen2_int8(uint32_t bytes) { // in bits 0..7 and 16..23
    return add_bf16x2(and_or(bytes, 0x007f007fu, 0x43004300u), and_or(bytes, 0x00800080u, 0xc300c300u));
}
GPU_DEVICE uint4 widen8_int8(uint32_t low, uint32_t high) {
    return {widen2_int8(bytes_of(low, 0, 0x4140)), widen2_int8(bytes_of(low, 0, 0x4342)),
            widen2_int8(bytes_of(high, 0, 0x4140)), widen2_int8(bytes_of(high, 0, 0x4342))};
}
GPU_DEVICE uint32_t widen2_int4(uint32_t halves) { // in bits 0..3 and 16..19, 8 added
    return add_bf16x2(and_or(halves, 0x000f000fu, 0x43004300u), 0xc308c308u);
}
GPU_DEVICE uint4 widen8_int4(uint32_t codes) {
    uint32_t second = codes >> 4; // of each byte
    return {widen2_int4(bytes_of(codes, second, 0x4400)), widen2_int4(bytes_of(codes, second, 0x5511)),
            widen2_int4(bytes_of(codes, second, 0x6622)), widen2_int4(bytes_of(codes, second, 0x7733))};
}

// --- bias, activation and gate ---------------------------------------------------------------------------------------

GPU_DEVICE float activate(sl_activation activation, float x) {
    switch (activation) {
    case SL_ACT_SILU:
        return x / (1.0f + expf(-x));
    case SL_ACT_GELU:
        return x * (1.0f + erff(x * 0.70710678f)) * 0.5f;
    case SL_ACT_GELU_TANH:
        return x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x))) * 0.5f;
    default:
        return x;
    }
}

// Returns y of a sum, and for a gated matrix of the sum of its second half.
template <uint32_t SIDES> GPU_DEVICE float finished(const gpu_matrix &w, int64_t j, float sum, float up) {
    float value = activate(w.activation, sum + (w.bias != nullptr ? w.bias[j] : 0.0f));
    if (SIDES > 1) {
        value *= up + (w.bias != nullptr ? w.bias[w.up_bias + j] : 0.0f);
    }
    return value;
}

// Writes y of 16 rows from r0 on, WIDTH columns from j0 on, by a warp. The sums are in shared memory, PITCH from row to
// row; those of a gated matrix's second half follow WIDTH others. So rows are written contiguously, and the code for
// bias, activation and gate exists once, and not for every register that holds a sum.
template <uint32_t SIDES, uint32_t WIDTH, uint32_t PITCH>
GPU_DEVICE void write_piece(const gpu_matrix &w, const sl_matmul &args, int64_t n_columns, const float *sums,
                            int64_t r0, int64_t j0) {
    bool in_pairs = (args.y_stride % 2 | n_columns % 2) == 0 && ((uintptr_t)args.y & 7) == 0;
    GPU_UNROLL_BY(1)
    for (uint32_t p = threadIdx.x % 32; p < 16 * WIDTH / 2; p += 32) {
        const float *at = sums + p / (WIDTH / 2) * PITCH + p % (WIDTH / 2) * 2, *up = at + WIDTH * (SIDES - 1);
        int64_t r = r0 + p / (WIDTH / 2), j = j0 + p % (WIDTH / 2) * 2;
        float *y = args.y + r * args.y_stride + j;
        if (r < args.m && j + 1 < n_columns && in_pairs) {
            float2 before = args.accumulate ? *(const float2 *)y : float2{0, 0};
            *(float2 *)y = {finished<SIDES>(w, j, at[0] + before.x, up[0]),
                            finished<SIDES>(w, j + 1, at[1] + before.y, up[1])};
            continue;
        }
        for (uint32_t e = 0; e < 2 && r < args.m && j + e < n_columns; e++) {
            y[e] = finished<SIDES>(w, j + e, at[e] + (args.accumulate ? y[e] : 0.0f), up[e]);
        }
    }
}

} // namespace gpu
