// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: K or V of 64 slots as 16-bit numbers in shared memory, for tensor cores: copies of rows that are in that
 *          format, and the values of codes, rounded to it.
 *
 * Design: for a page of codes a thread takes two channels of eight slots of K, or eight channels of two slots of V, so
 *         that two numbers fill a register in each step. Codes become f16 as in codes.h, and are multiplied by the
 *         scale and added to the zero in f32. Rows of a list are read one by one.
 */
#pragma once

#include "engine/tensor/cuda/attention/codes.h"
#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/pages.h"

namespace gpu {

constexpr uint32_t TILE = SL_PAGE_SLOTS;
template <int D> constexpr uint32_t PITCH = D + 8; // of rows in shared memory: eight rows use different banks

template <bool BF16> GPU_DEVICE uint32_t pack(float lo, float hi) {
    return BF16 ? gpu::pack_bf16_fast(lo, hi) : gpu::pack_f16_saturated(lo, hi);
}
template <bool BF16> GPU_DEVICE float2 unpack(uint32_t pair) {
    uint16_t lo = (uint16_t)pair, hi = (uint16_t)(pair >> 16);
    return BF16 ? float2{gpu::bf16_to_f32(lo), gpu::bf16_to_f32(hi)} : float2{gpu::f16_to_f32(lo), gpu::f16_to_f32(hi)};
}
// Starts copies of rows of n slots into shared memory; zeros after them, because 0 times unwritten memory might be NaN.
template <int D, uint32_t N_THREADS>
GPU_DEVICE void load_tile16(const gpu_head *h, const uint32_t *slots, uint32_t first, uint32_t n, uint32_t part,
                            uint16_t *tile) {
    constexpr uint32_t UNITS = D / 8;
    if (slots == nullptr && n >= TILE) { // a page: its rows are adjacent
        // after this many copies a thread is in the same column again
        constexpr uint32_t PERIOD = UNITS % 3 == 0 ? 3 : 1;
        const char *from = page_of(h, first) + part + threadIdx.x * 16;
        uint16_t *to[PERIOD];
        GPU_UNROLL
        for (uint32_t i = 0; i < PERIOD; i++) {
            uint32_t u = threadIdx.x + i * N_THREADS;
            to[i] = tile + u / UNITS * PITCH<D> + u % UNITS * 8;
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < TILE * UNITS / N_THREADS; i++) {
            cp_async16(to[i % PERIOD] + i / PERIOD * (PERIOD * N_THREADS / UNITS) * PITCH<D>,
                       from + i * (N_THREADS * 16));
        }
        cp_async_commit();
        return;
    }
    constexpr uint32_t AT_ONCE = N_THREADS == 32 ? 8 : 2; // otherwise every row would wait for its slot and its page
    GPU_UNROLL_BY(1)
    for (uint32_t u = threadIdx.x; u < TILE * UNITS; u += N_THREADS * AT_ONCE) {
        const char *from[AT_ONCE];
        GPU_UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            uint32_t j = (u + i * N_THREADS) / UNITS;
            uint32_t slot = slots != nullptr && j < n ? slots[j] : first + j;
            from[i] = j < n ? page_of(h, slot) + part + slot % SL_PAGE_SLOTS * (uint32_t)D * 2 : nullptr;
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            uint32_t j = (u + i * N_THREADS) / UNITS, c = (u + i * N_THREADS) % UNITS * 8;
            uint16_t *to = tile + j * PITCH<D> + c;
            if (from[i] != nullptr) {
                cp_async16(to, from[i] + c * 2);
            } else {
                *(uint4 *)to = {0, 0, 0, 0};
            }
        }
    }
    cp_async_commit();
}

// --- codes -----------------------------------------------------------------------------------------------------------

// (2^-at, -1,024 2^-at) of even and odd codes: turns the result of pair_of() into the codes themselves.
template <uint32_t AT> constexpr uint32_t UNIT = ((15 - AT) << 10) * TWICE;

// Returns code * scale + zero of the two codes of a register, in the format.
template <bool BF16, int BITS>
GPU_DEVICE uint32_t value_of(const uint32_t (&a)[2], const uint32_t (&b)[2], uint32_t e, uint32_t scales,
                             uint32_t zeros) {
    uint32_t x = pair_of<BITS>(a, b, e);
    uint32_t codes = e % 2 == 0 ? fma_f16x2(x, UNIT<AT_EVEN<BITS>>, OFFSET<AT_EVEN<BITS>>)
                                : fma_f16x2(x, UNIT<AT_ODD<BITS>>, OFFSET<AT_ODD<BITS>>);
    float2 code = unpack<false>(codes), scale = unpack<false>(scales), zero = unpack<false>(zeros);
    return pack<BF16>(fmaf(code.x, scale.x, zero.x), fmaf(code.y, scale.y, zero.y)); // f16 saturated, as pages are
}

template <int D, bool BF16, int BITS, uint32_t N_THREADS>
GPU_DEVICE void decode_keys(const sl_page_layout *layout, const char *page, uint16_t *tile) {
    const char *codes = page + layout->k;
    GPU_UNROLL_BY(1)
    for (uint32_t u = threadIdx.x; u < D / 2 * (TILE / 8); u += N_THREADS) {
        uint32_t c = u % (D / 2) * 2, octet = u / (D / 2), a[2] = {}, b[2] = {}, scales, zeros;
        read_codes<BITS, 8>(codes + c * (8 * BITS), octet, a);
        read_codes<BITS, 8>(codes + (c + 1) * (8 * BITS), octet, b);
        uint2 pair = *(const uint2 *)(page + layout->k_scale + c * 4);
        two_slots(pair.x, pair.y, scales, zeros);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            *(uint32_t *)(tile + (8 * octet + e) * PITCH<D> + c) = value_of<BF16, BITS>(a, b, e, scales, zeros);
        }
    }
}

template <int D, bool BF16, int BITS, uint32_t N_THREADS>
GPU_DEVICE void decode_values(const sl_page_layout *layout, const char *page, uint16_t *tile) {
    constexpr uint32_t ROW = D * BITS / 8;
    GPU_UNROLL_BY(1)
    for (uint32_t u = threadIdx.x; u < D / 8 * (TILE / 2); u += N_THREADS) {
        uint32_t octet = u % (D / 8), j = u / (D / 8) * 2, a[2] = {}, b[2] = {}, scales, zeros, x[8], y[8];
        read_codes<BITS, 8>(page + layout->v + j * ROW, octet, a);
        read_codes<BITS, 8>(page + layout->v + (j + 1) * ROW, octet, b);
        const uint32_t *pairs = (const uint32_t *)(page + layout->v_scale) + j * GROUPS<D> + octet * 8 / GROUP<D>;
        two_slots(pairs[0], pairs[GROUPS<D>], scales, zeros);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            x[e] = value_of<BF16, BITS>(a, b, e, scales, zeros);
        }
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++) { // from slot pairs to channel pairs
            two_slots(x[2 * e], x[2 * e + 1], y[e], y[4 + e]);
        }
        uint16_t *to = tile + j * PITCH<D> + octet * 8;
        *(uint4 *)to = {y[0], y[1], y[2], y[3]};
        *(uint4 *)(to + PITCH<D>) = {y[4], y[5], y[6], y[7]};
    }
}

template <int D, bool BF16, int BITS, uint32_t N_THREADS>
GPU_DEVICE void decode_page(const sl_page_layout *layout, const char *page, bool keys, uint16_t *tile) {
    if (keys) {
        decode_keys<D, BF16, BITS, N_THREADS>(layout, page, tile);
    } else {
        decode_values<D, BF16, BITS, N_THREADS>(layout, page, tile);
    }
}

// Does what load_tile16() does, for heads with pages of codes; those pages are complete at the next barrier.
template <int D, bool BF16, uint32_t N_THREADS>
GPU_DEVICE void decode_tile16(const gpu_head *h, const uint32_t *slots, uint32_t first, uint32_t n, bool keys,
                              uint16_t *tile) {
    if (slots == nullptr && first / SL_PAGE_SLOTS >= h->n_packed) {
        load_tile16<D, N_THREADS>(h, slots, first, n, keys ? h->work.k : h->work.v, tile);
        return;
    }
    if (slots == nullptr) {
        const char *page = page_of(h, first);
        switch (h->packed.format) {
#define X(name, bits)                                                                                                  \
    case SL_KV_##name:                                                                                                 \
        decode_page<D, BF16, bits, N_THREADS>(&h->packed, page, keys, tile);                                           \
        break;
            GPU_CODE_FORMATS(X)
#undef X
        default: // callers ask reads_codes()
            break;
        }
        return;
    }
    GPU_UNROLL_BY(1)
    for (uint32_t u = threadIdx.x; u < TILE * (D / 8); u += N_THREADS) {
        uint32_t j = u / (D / 8), c = u % (D / 8) * 8;
        float x[8] = {};
        if (j < n) {
            const sl_page_layout *layout = layout_of(h, slots[j] / SL_PAGE_SLOTS);
            const char *page = page_of(h, slots[j]);
            if (keys) {
                read_k8(layout, page, slots[j] % SL_PAGE_SLOTS, (int)c, x);
            } else {
                read_v8(layout, page, slots[j] % SL_PAGE_SLOTS, (int)c, x);
            }
        }
        *(uint4 *)(tile + j * PITCH<D> + c) = {pack<BF16>(x[0], x[1]), pack<BF16>(x[2], x[3]), pack<BF16>(x[4], x[5]),
                                               pack<BF16>(x[6], x[7])};
    }
}

// --- angles ----------------------------------------------------------------------------------------------------------

// Rotates by the angles of slots[j], or first + j.
template <int D, bool BF16, uint32_t N_THREADS>
GPU_DEVICE void rotate_tile16(const gpu_attention &shape, const uint32_t *slots, uint32_t first, uint32_t n,
                              uint16_t *keys) {
    constexpr uint32_t HALF = D / 2, UNITS = HALF / 8;
    GPU_UNROLL_BY(1)
    for (uint32_t u = threadIdx.x; u < TILE * UNITS; u += N_THREADS) {
        uint32_t j = u / UNITS, c = u % UNITS * 8;
        if (j >= n) {
            break;
        }
        size_t angle = (size_t)(slots != nullptr ? slots[j] : first + j) * HALF + c;
        uint32_t *at = (uint32_t *)(keys + j * PITCH<D> + c), *behind = at + HALF / 2;
        const float2 *cosines = (const float2 *)(shape.slot_cosines + angle);
        const float2 *sines = (const float2 *)(shape.slot_sines + angle);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            float2 a = unpack<BF16>(at[i]), b = unpack<BF16>(behind[i]), cosine = cosines[i], sine = sines[i];
            at[i] = pack<BF16>(a.x * cosine.x - b.x * sine.x, a.y * cosine.y - b.y * sine.y);
            behind[i] = pack<BF16>(b.x * cosine.x + a.x * sine.x, b.y * cosine.y + a.y * sine.y);
        }
    }
}

} // namespace gpu
