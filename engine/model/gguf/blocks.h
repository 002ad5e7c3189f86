// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the types of tensors in GGUF files: numbers, and blocks of quantized weights of a row that share scales.
 *
 *   F32, F16, BF16                                                   32 weights a block, s and m f16:
 *   Q4_0  x = s (c - 8), c of 4 bits                                 Q8_0  x = s c, c of 8 bits with a sign
 *   Q4_1  x = s c + m, c of 4 bits                                   Q5_0, Q5_1  as Q4_0 (c - 16) and Q4_1, c of 5 bits
 *                                                                    256 weights a block, D and M f16:
 *   Q2_K  x = D s c - M m, c of 2 bits, s and m of 4 for every 16    Q3_K  x = D (s - 32) c, c -4 .. 3, s of 6 bits, 16
 *   Q4_K  x = D s c - M m, c of 4 bits, s and m of 6 for every 32    Q5_K  the same with c of 5 bits
 *   Q6_K  x = D s (c - 32), c of 6 bits, s of 8 with a sign for every 16
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/codes.h"

#define SL_Q8_0_BYTES 34 // for 32 weights: engine/tensor/ops.h

struct sl_block_type {
    uint32_t id; // in the file
    const char *name;
    enum sl_dtype dtype;
    int n_weights; // weights per block; 1: a number
    size_t bytes;
    bool fits_q8_0; // sl_block_to_q8_0() is possible
    // Every weight of a block is at most scales |D| + offsets |M| in magnitude (s and m of 32 weights). D is at `at`,
    // and M, if offsets is not 0, follows it.
    int at;
    float scales, offsets;
};

// Returns this bound for a block.
float sl_block_bound(const struct sl_block_type *type, const unsigned char *block);

// Writes out[n_weights] in f32, by the formulas above from left to right.
void sl_block_widen(const struct sl_block_type *type, const unsigned char *block, float *out);

// Writes the same weights as n_weights / 32 blocks of Q8_0, code by code, without loss.
void sl_block_to_q8_0(const struct sl_block_type *type, const unsigned char *block, unsigned char *out);

const struct sl_block_type *sl_block_type_of(enum sl_dtype dtype);

// Returns NULL for an unsupported type; *name_out is then its name, if known.
const struct sl_block_type *sl_block_type(uint32_t id, const char **name_out);
