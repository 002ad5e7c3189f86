// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations for all files that use tile registers: their configuration, and memory effects of tile
 * instructions that compilers do not know.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

/*
 * Operand of LDTILECFG. Keep it in static const memory, which is written before the program runs: compilers assume that
 * the instruction reads only the first bytes, and may drop stores to the others.
 */
struct sl_tile_config {
    uint8_t palette, start_row, reserved[14]; // palette 1: 8 registers of 1 KiB
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Splits 32 f32 into bf16, rounded to nearest even, and the remainder as bf16: together 16 bits of each.
static inline void sl_amx_split(__m512 lo, __m512 hi, __m512i *first_out, __m512i *second_out) {
    __m512i first = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
    __m512i first_lo = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(first)), 16);
    __m512i first_hi = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(first, 1)), 16);
    *first_out = first;
    *second_out =
        (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(hi, (__m512)first_hi), _mm512_sub_ps(lo, (__m512)first_lo));
}

// Call it before tiles are loaded from memory that was just written: compilers do not know that the instruction reads
// memory.
static inline void sl_amx_written(void) {
    __asm__ volatile("" ::: "memory");
}
