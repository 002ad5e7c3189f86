// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: codes of packed pages as operands of tensor cores, with one instruction for each number: attend_packed.cu.
 *
 * To add a format: a line in GPU_CODE_FORMATS, and what its codes need below. Other formats are read element by
 * element (engine/tensor/cuda/pages.h).
 */
#pragma once

#include "engine/tensor/cuda/gpu.h"
#include "engine/tensor/cuda/heads.h"

// name, bits: integers from 0 on
#define GPU_CODE_FORMATS(X) X(INT8, 8) X(INT4, 4) X(INT2, 2) X(INT1, 1)

namespace gpu {

// Returns true for formats that these functions read.
static inline bool reads_codes(sl_kv_format format) {
    switch (format) {
#define X(name, bits) case SL_KV_##name:
        GPU_CODE_FORMATS(X)
#undef X
        return true;
    default:
        return false;
    }
}

constexpr uint32_t TWICE = 0x10001, MAGIC = 0x6400 * TWICE; // 1,024
// The positions of the bits of even and of odd codes. They are as high as possible without an extra instruction, which
// makes 1,024's share of the sums smaller.
template <int BITS> constexpr uint32_t AT_EVEN = BITS == 1 ? 8 : BITS == 2 ? 6 : 0;
template <int BITS> constexpr uint32_t AT_ODD = BITS == 8 ? 0 : AT_EVEN<BITS> + BITS;
// -1,024 2^-at
template <uint32_t AT> constexpr uint32_t OFFSET = (0x8000 | (25 - AT) << 10) * TWICE;

// Reads N codes, 8 or 4, the first in the lowest bits. With BITS 1 four codes are half a byte; `i` is its number.
template <int BITS, int N> GPU_DEVICE void read_codes(const char *at, uint32_t i, uint32_t (&codes)[2]) {
    if (BITS * N == 64) {
        uint2 both = *(const uint2 *)(at + i * 8);
        codes[0] = both.x;
        codes[1] = both.y;
    } else if (BITS * N == 4) {
        codes[0] = (uint32_t) * ((const uint8_t *)at + i / 2) >> 4 * (i % 2) & 15;
    } else {
        codes[0] = BITS * N == 32   ? ((const uint32_t *)at)[i]
                   : BITS * N == 16 ? (uint32_t)((const uint16_t *)at)[i]
                                    : (uint32_t)((const uint8_t *)at)[i];
    }
}

// Returns code e of a and of b, e a constant, as f16: 1,024 + code 2^AT.
template <int BITS> GPU_DEVICE uint32_t pair_of(const uint32_t (&a)[2], const uint32_t (&b)[2], uint32_t e) {
    constexpr uint32_t EACH_HALF = 16 / BITS, MASK = (1u << BITS) - 1;
    uint32_t half = e / EACH_HALF, from = e % EACH_HALF * BITS, at = e % 2 == 0 ? AT_EVEN<BITS> : AT_ODD<BITS>;
    uint32_t x = bytes_of(a[half / 2], b[half / 2], half % 2 == 0 ? 0x5410 : 0x7632);
    if (BITS == 8) {
        return bytes_of(x, MAGIC >> 8 | MAGIC, e % 2 == 0 ? 0x4240 : 0x4341);
    }
    x = from > at ? x >> (from - at) : x << (at - from); // bits that cross between the halves are masked
    return and_or(x, (MASK << at) * TWICE, MAGIC);
}

// Makes operand A of tile i: a0, a1 hold neighbors along the sum, then b0, b1.
template <int BITS> GPU_DEVICE void operand(const uint32_t (&codes)[4][2], uint32_t i, uint32_t (&a)[4]) {
    a[0] = pair_of<BITS>(codes[0], codes[1], 2 * i);
    a[1] = pair_of<BITS>(codes[0], codes[1], 2 * i + 1);
    a[2] = pair_of<BITS>(codes[2], codes[3], 2 * i);
    a[3] = pair_of<BITS>(codes[2], codes[3], 2 * i + 1);
}

GPU_DEVICE void two_slots(uint32_t x, uint32_t y, uint32_t &low, uint32_t &high) {
    low = bytes_of(x, y, 0x5410);
    high = bytes_of(x, y, 0x7632);
}

// The channels of a group with a scale of its own, as sl_v_group(). A lane has EACH adjacent channels of each group.
template <int D> constexpr uint32_t GROUP = D % 64 == 0 ? 64 : 32;
template <int D> constexpr uint32_t GROUPS = D / GROUP<D>;
template <int D> constexpr uint32_t EACH = GROUP<D> / 8;
template <int D> constexpr uint32_t SUMS = (GROUPS<D> + 1) / 2;

// Reads (scale, zero) of slot j and the next one, of all groups: out[slot][group].
template <int D> GPU_DEVICE void read_pairs(const char *at, uint32_t j, uint32_t (&out)[2][GROUPS<D>]) {
    const uint2 *from = (const uint2 *)(at + j * GROUPS<D> * 4); // j is even
    uint32_t all[2 * GROUPS<D>];
    if (GROUPS<D> == 2) {
        uint4 x = *(const uint4 *)from;
        all[0] = x.x, all[1] = x.y, all[2 * GROUPS<D> - 2] = x.z, all[2 * GROUPS<D> - 1] = x.w;
    } else {
        GPU_UNROLL
        for (uint32_t i = 0; i < GROUPS<D>; i++) {
            uint2 x = from[i];
            all[2 * i] = x.x;
            all[2 * i + 1] = x.y;
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < 2 * GROUPS<D>; i++) {
        out[i / GROUPS<D>][i % GROUPS<D>] = all[i];
    }
}

} // namespace gpu
