// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: weights that a file keeps as blocks of codes (GGUF): what a block consists of, so that kernels can multiply
 *          the codes themselves.
 *
 *     x = (D s) (c - zero) + (O o)       c: the code of the weight; s, o: of the `shared` weights that it is one of;
 *                                        D, O: of the block
 *
 * Design: one description for all types. Types of 32 weights have D and O alone (s = o = 1). Types of 256 weights have
 *         small integers s and o, so D s is exact in f32. engine/model/gguf/blocks.h has the formulas of the format.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/ops.h"

#define SL_MAX_BLOCK  256 // weights
#define SL_MAX_SHARES 16  // of a block: groups of weights that share s and o

struct sl_code_block {
    uint16_t scale, offset;       // D and O, f16; O is 0 where the type has none
    int8_t scales[SL_MAX_SHARES]; // s
    uint8_t offsets[SL_MAX_SHARES];
    uint8_t codes[SL_MAX_BLOCK]; // c, without a sign
};

struct sl_code_type {
    const char *name;
    int n_weights; // of a block
    size_t bytes;  // of a block
    int bits;      // of a code: 4, 5, 6 or 8
    int shared;    // weights that share s and o: 16 or 32
    int zero;
    bool has_offset;
    void (*read)(const unsigned char *block, struct sl_code_block *out); // all fields for n_weights weights
};

// Returns NULL for types that are numbers.
const struct sl_code_type *sl_code_type(enum sl_dtype dtype);

// Writes the n_weights weights of a block as f32, by the formula above.
void sl_code_widen(const struct sl_code_type *type, const unsigned char *block, float *out);
