// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how kernels access pages (engine/kvcache/page.h): parts, positions, state, and rows as f32, eight channels
 *          at a time: 16 bytes of a 16-bit format, one load.
 */
#pragma once

#include "engine/tensor/cuda/gpu.h"
#include "engine/tensor/cuda/heads.h"

namespace gpu {

GPU_DEVICE const sl_page_layout *layout_of(const gpu_head *h, uint32_t page) {
    return page < h->n_packed ? &h->packed : &h->work;
}

GPU_DEVICE char *page_of(const gpu_head *h, uint32_t slot) {
    return (char *)h->pages[slot / SL_PAGE_SLOTS];
}

GPU_DEVICE int64_t position_of(const gpu_head *h, uint32_t slot) {
    const sl_page_layout *layout = layout_of(h, slot / SL_PAGE_SLOTS);
    return layout->has_positions ? ((const int32_t *)(page_of(h, slot) + layout->positions))[slot % SL_PAGE_SLOTS]
                                 : (int64_t)slot;
}

// Returns 0 where a packed page has dropped its state.
GPU_DEVICE float state_of(const gpu_head *h, int plane, uint32_t slot) {
    const sl_page_layout *layout = layout_of(h, slot / SL_PAGE_SLOTS);
    const float *state = (const float *)(page_of(h, slot) + layout->states);
    return plane < layout->n_states ? state[plane * SL_PAGE_SLOTS + slot % SL_PAGE_SLOTS] : 0.0f;
}

// --- formats ---------------------------------------------------------------------------------------------------------

GPU_DEVICE int bits_of(sl_kv_format format) {
    switch (format) {
#define X(name, word, wire, bits, ...)                                                                                 \
    case SL_KV_##name:                                                                                                 \
        return bits;
        SL_KV_FORMATS(X)
#undef X
    }
    return 0;
}

GPU_DEVICE bool is_codes(sl_kv_format format) {
    switch (format) {
#define X(name, ...) case SL_KV_##name:
        SL_KV_CODE_FORMATS(X)
#undef X
        return true;
    default:
        return false;
    }
}

// Returns the bytes of a row in a float format; d is a multiple of 8.
GPU_DEVICE uint32_t row_bytes(const sl_page_layout *layout) {
    return (uint32_t)layout->head_dim * (uint32_t)bits_of(layout->format) / 8;
}

GPU_DEVICE int v_group(int head_dim) { // sl_v_group()
    return head_dim <= 64 ? head_dim : head_dim % 64 == 0 ? 64 : 32;
}

GPU_DEVICE float read_float(sl_kv_format format, const char *part, size_t e) {
    if (format == SL_KV_F32) {
        return ((const float *)part)[e];
    }
    uint16_t half = ((const uint16_t *)part)[e];
    return format == SL_KV_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

// Reads elements [e, e + 8) of a part in a float format, e a multiple of 8.
GPU_DEVICE void read_floats8(sl_kv_format format, const char *part, size_t e, float (&out)[8]) {
    if (format == SL_KV_F32) {
        float4 a = ((const float4 *)part)[e / 4], b = ((const float4 *)part)[e / 4 + 1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
        return;
    }
    uint4 a = ((const uint4 *)part)[e / 8];
    const uint32_t pairs[4] = {a.x, a.y, a.z, a.w};
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        uint16_t lo = (uint16_t)pairs[i], hi = (uint16_t)(pairs[i] >> 16);
        out[2 * i] = format == SL_KV_BF16 ? bf16_to_f32(lo) : f16_to_f32(lo);
        out[2 * i + 1] = format == SL_KV_BF16 ? bf16_to_f32(hi) : f16_to_f32(hi);
    }
}

// Writes elements [e, e + 8), rounded to the format, f16 saturated.
GPU_DEVICE void write_floats8(sl_kv_format format, char *part, size_t e, const float (&x)[8]) {
    if (format == SL_KV_F32) {
        ((float4 *)part)[e / 4] = {x[0], x[1], x[2], x[3]};
        ((float4 *)part)[e / 4 + 1] = {x[4], x[5], x[6], x[7]};
        return;
    }
    uint32_t pairs[4];
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        pairs[i] = format == SL_KV_BF16
                       ? pack_bf16(x[2 * i], x[2 * i + 1])
                       : f32_to_f16_saturated(x[2 * i]) | (uint32_t)f32_to_f16_saturated(x[2 * i + 1]) << 16;
    }
    ((uint4 *)part)[e / 8] = {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Returns x^ = code * scale + zero.
GPU_DEVICE float decode(uint32_t code, uint32_t pair) {
    return (float)code * f16_to_f32((uint16_t)pair) + f16_to_f32((uint16_t)(pair >> 16));
}

// Scale and zero as they are stored, rounded to f16 before any code is computed; and as f32 for computing. Only a file
// that is compiled with -fmad=false makes the bits of the reference.
struct code_group {
    uint32_t pair;
    float scale, zero, top;
};

GPU_DEVICE code_group group_of(float min, float max, int bits) {
    code_group g;
    g.top = (float)((1 << bits) - 1);
    uint16_t scale = f32_to_f16_saturated((max - min) / g.top), zero = f32_to_f16_saturated(min);
    g.pair = scale | (uint32_t)zero << 16;
    g.scale = f16_to_f32(scale);
    g.zero = f16_to_f32(zero);
    return g;
}

// Returns round-half-even(clamp((x - z) / s, 0, 2^b - 1)); 0 where s = 0, and for NaN.
GPU_DEVICE uint32_t encode(float x, const code_group &g) {
    float t = g.scale > 0.0f ? (x - g.zero) / g.scale : 0.0f;
    return !(t > 0.0f) ? 0u : t >= g.top ? (uint32_t)g.top : (uint32_t)rintf(t);
}

// Returns the code whose first bit is bit `at` of a row. Codes of 3 bits cross bytes, so it reads two: rows have scales
// after them.
GPU_DEVICE uint32_t code_at(const uint8_t *row, uint32_t at, int bits) {
    return ((uint32_t)row[at / 8] | (uint32_t)row[at / 8 + 1] << 8) >> at % 8 & ((1u << bits) - 1);
}

// --- rows: channels [c, c + 8) of slot j of a page, c a multiple of 8 ------------------------------------------------

GPU_DEVICE void read_k8(const sl_page_layout *layout, const char *page, uint32_t j, int c, float (&out)[8]) {
    if (!is_codes(layout->k_format)) {
        read_floats8(layout->k_format, page + layout->k, (size_t)j * (size_t)layout->head_dim + (size_t)c, out);
        return;
    }
    int bits = bits_of(layout->k_format);
    const uint32_t *pairs = (const uint32_t *)(page + layout->k_scale) + c;
    GPU_UNROLL
    for (int i = 0; i < 8; i++) {
        // codes are stored channel by channel
        const uint8_t *row = (const uint8_t *)page + layout->k + (c + i) * (SL_PAGE_SLOTS / 8) * bits;
        out[i] = decode(code_at(row, j * (uint32_t)bits, bits), pairs[i]);
    }
}

GPU_DEVICE void read_v8(const sl_page_layout *layout, const char *page, uint32_t j, int c, float (&out)[8]) {
    int d = layout->head_dim, group = v_group(d);
    if (!is_codes(layout->v_format)) {
        read_floats8(layout->v_format, page + layout->v, (size_t)j * (size_t)d + (size_t)c, out);
        return;
    }
    int bits = bits_of(layout->v_format); // also the bytes of eight codes
    const uint8_t *codes = (const uint8_t *)page + layout->v + ((size_t)j * (size_t)d + (size_t)c) / 8 * (size_t)bits;
    uint32_t pair = ((const uint32_t *)(page + layout->v_scale))[j * (uint32_t)(d / group) + (uint32_t)(c / group)];
    GPU_UNROLL
    for (int i = 0; i < 8; i++) {
        out[i] = decode(code_at(codes, (uint32_t)(i * bits), bits), pair);
    }
}

} // namespace gpu
