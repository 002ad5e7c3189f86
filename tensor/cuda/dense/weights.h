// SPDX-License-Identifier: Apache-2.0
// Purpose: weights as kernels read them; struct gpu_matrix says where they lie.
#pragma once

#include "tensor/cuda/dense/launch.h"
#include "tensor/cuda/gpu.h"

namespace gpu {

GPU_DEVICE float stored_weight(const gpu_matrix &w, int64_t row, int64_t i) {
    if (w.kind == GPU_WEIGHT_F32) {
        return ((const float *)w.weights)[row * w.pitch + i];
    }
    uint16_t half = ((const uint16_t *)w.weights)[row * w.pitch + i];
    return w.kind == GPU_WEIGHT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

// Weights [i, i + 8) of a row as f32, i a multiple of 8 below the pitch.
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

// --- what a product goes through -------------------------------------------------------------------------------------

GPU_DEVICE float activate(int activation, float x) {
    switch (activation) {
    case GPU_ACT_SILU:
        return x / (1.0f + expf(-x));
    case GPU_ACT_GELU:
        return x * (1.0f + erff(x * 0.70710678f)) * 0.5f;
    case GPU_ACT_GELU_TANH:
        return x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x))) * 0.5f;
    default:
        return x;
    }
}

} // namespace gpu
