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

// Loads the 16 weights of a step, widened.
INLINE void load_step(enum sl_narrow_form form, const char *weights, float32x4_t step[4]) {
    if (form == SL_NARROW_F32) {
        for (int c = 0; c < 4; c++) {
            step[c] = vld1q_f32((const float *)weights + 4 * c);
        }
    } else if (form == SL_NARROW_F16) {
        for (int c = 0; c < 4; c++) {
            step[c] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)weights + 4 * c)));
        }
    } else {
        for (int c = 0; c < 2; c++) {
            uint32x4_t pairs = vld1q_u32((const uint32_t *)weights + 4 * c);
            step[c] = vreinterpretq_f32_u32(pairs << 16);
            step[c + 2] = vreinterpretq_f32_u32(pairs & 0xffff0000u);
        }
    }
}

#include "engine/tensor/cpu/dense/narrow_tiles.h"
