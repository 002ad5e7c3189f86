// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what everybody who uses tile registers needs: their configuration, and what compilers are not told of them.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

/*
 * Operand of LDTILECFG. Keep it in static const memory, which is written before the program runs: compilers take the
 * instruction to read no more than its first bytes, and may drop what is stored into the others.
 */
struct sl_tile_config {
    uint8_t palette, start_row, reserved[14]; // palette 1: 8 registers of 1 KiB
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// 32 f32 as bf16, rounded to nearest even, and what that leaves, as bf16: together 16 bits of each.
static inline void sl_amx_split(__m512 lo, __m512 hi, __m512i *first_out, __m512i *second_out) {
    __m512i first = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
    __m512i first_lo = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(first)), 16);
    __m512i first_hi = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(first, 1)), 16);
    *first_out = first;
    *second_out =
        (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(hi, (__m512)first_hi), _mm512_sub_ps(lo, (__m512)first_lo));
}

// Before tiles are loaded from what was just written: compilers are not told that the instruction reads memory.
static inline void sl_amx_written(void) {
    __asm__ volatile("" ::: "memory");
}
