// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the inner loops of matmul with NEON, which every AArch64 processor has. See narrow.h for the whole.
 *
 * Design: a tile keeps up to 24 of the 32 registers in sums. Panels and the order of sums are those of AVX2, with one
 *         fused multiply-add a step, so both tiers give the same bits, except in activations.
 */
#include "engine/tensor/cpu/dense/narrow.h"
#include "engine/tensor/cpu/simd/vector.h"

#define INLINE    static inline __attribute__((always_inline))
#define REGISTERS (SL_NARROW / SL_VECTOR_FLOATS)

// The scales of a group of steps.
struct scales {
    float32x4_t by[4];
};

INLINE struct scales load_scales(enum sl_narrow_form form, const char *group) {
    struct scales scales = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
    if (form == SL_NARROW_INT8 || form == SL_NARROW_INT4) {
        for (int c = 0; c < 4; c++) {
            scales.by[c] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)group + 4 * c)));
        }
    }
    return scales;
}

// Returns four bits of every word, from bit `at` on, as s * code: the nibble is shifted to the top, where its sign
// becomes the word's.
INLINE float32x4_t from_nibbles(uint32x4_t words, int at, float32x4_t scale) {
    int32x4_t top = vreinterpretq_s32_u32((words << (28 - at)) & 0xf0000000u);
    return vmulq_f32(vcvtq_n_f32_s32(top, 28), scale);
}

// Loads the 16 weights of step 4 q + s of a group, widened; s is a constant.
INLINE void load_step(enum sl_narrow_form form, const char *group, int64_t q, int s, const struct scales *scales,
                      float32x4_t step[4]) {
    int64_t i = 4 * q + s;
    if (form == SL_NARROW_F32) {
        for (int c = 0; c < 4; c++) {
            step[c] = vld1q_f32((const float *)group + i * SL_NARROW + 4 * c);
        }
    } else if (form == SL_NARROW_F16) {
        for (int c = 0; c < 4; c++) {
            const uint16_t *halves = (const uint16_t *)group + i * SL_NARROW + 4 * c;
            step[c] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
        }
    } else if (form == SL_NARROW_BF16) {
        for (int c = 0; c < 2; c++) {
            uint32x4_t pairs = vld1q_u32((const uint32_t *)group + i * (SL_NARROW / 2) + 4 * c);
            step[c] = vreinterpretq_f32_u32(pairs << 16);
            step[c + 2] = vreinterpretq_f32_u32(pairs & 0xffff0000u);
        }
    } else if (form == SL_NARROW_INT8) {
        int8x16_t codes = vld1q_s8((const int8_t *)group + SL_NARROW_SCALES + i * SL_NARROW);
        int16x8_t lo = vmovl_s8(vget_low_s8(codes)), hi = vmovl_high_s8(codes);
        step[0] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), scales->by[0]);
        step[1] = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(lo)), scales->by[1]);
        step[2] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), scales->by[2]);
        step[3] = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(hi)), scales->by[3]);
    } else {
        for (int c = 0; c < 2; c++) {
            uint32x4_t words = vld1q_u32((const uint32_t *)(group + SL_NARROW_SCALES) + q * (SL_NARROW / 2) + 4 * c);
            step[c] = from_nibbles(words, 8 * s, scales->by[c]);
            step[c + 2] = from_nibbles(words, 8 * s + 4, scales->by[c + 2]);
        }
    }
}

#include "engine/tensor/cpu/dense/narrow_tiles.h"
