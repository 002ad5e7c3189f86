// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what everybody who uses tile registers needs: their configuration, and what compilers are not told of them.
 */
#pragma once

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

// Before tiles are loaded from what was just written: compilers are not told that the instruction reads memory.
static inline void sl_amx_written(void) {
    __asm__ volatile("" ::: "memory");
}
