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
#include <string.h>

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
    void (*read_scales)(const unsigned char *block, struct sl_code_block *out); // all fields but the codes
};

// Returns NULL for types that are numbers.
const struct sl_code_type *sl_code_type(enum sl_dtype dtype);

// Reads all fields for n_weights weights.
void sl_code_read(const struct sl_code_type *type, const unsigned char *block, struct sl_code_block *out);

// Writes the n_weights weights of a block as f32, by the formula above.
void sl_code_widen(const struct sl_code_type *type, const unsigned char *block, float *out);

// --- codes -----------------------------------------------------------------------------------------------------------

#define SL_BITS_OF_EIGHT(bits) (0x0101010101010101u * ((1u << (bits)) - 1)) // the low bits of 8 bytes

static inline uint64_t sl_code_load(const unsigned char *at) {
    uint64_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

// Returns the bits of a byte as 8 bytes.
static inline uint64_t sl_code_spread(unsigned char bits) {
    uint64_t apart = bits * SL_BITS_OF_EIGHT(1) & 0x8040201008040201u;
    return (apart + SL_BITS_OF_EIGHT(7)) >> 7 & SL_BITS_OF_EIGHT(1);
}

// Returns eight of 32 codes: code i and code i + 16 are the halves of byte i.
static inline uint64_t sl_code_halves(const unsigned char *codes, int first) {
    return sl_code_load(codes + first % 16) >> (first / 16 * 4) & SL_BITS_OF_EIGHT(4);
}

// Returns eight of 256 codes, which are eight runs of 32: 32 bytes hold `bits` bits of 8 / bits runs.
static inline uint64_t sl_code_runs(const unsigned char *codes, int first, int bits) {
    int runs = 8 / bits, run = first / 32;
    return sl_code_load(codes + run / runs * 32 + first % 32) >> (run % runs * bits) & SL_BITS_OF_EIGHT(bits);
}

/*
 * Returns codes first .. first + 7 of a block, one in each byte; first is a multiple of 8. Loops pass a constant dtype,
 * and become as fast as memory.
 */
static inline uint64_t sl_code_eight(enum sl_dtype dtype, const unsigned char *block, int first) {
    switch (dtype) {
    case SL_Q8_0:
        return sl_code_load(block + 2 + first) ^ 0x8080808080808080u; // adds 128
    case SL_Q4_0:
        return sl_code_halves(block + 2, first);
    case SL_Q4_1:
        return sl_code_halves(block + 4, first);
    case SL_Q5_0: // the fifth bits come first
        return sl_code_halves(block + 6, first) | sl_code_spread(block[2 + first / 8]) << 4;
    case SL_Q5_1:
        return sl_code_halves(block + 8, first) | sl_code_spread(block[4 + first / 8]) << 4;
    case SL_Q2_K:
        return sl_code_runs(block + 16, first, 2);
    case SL_Q3_K:
        return sl_code_runs(block + 32, first, 2) | sl_code_runs(block, first, 1) << 2;
    case SL_Q4_K:
        return sl_code_runs(block + 16, first, 4);
    case SL_Q5_K:
        return sl_code_runs(block + 48, first, 4) | sl_code_runs(block + 16, first, 1) << 4;
    case SL_Q6_K: { // within each half of 128, runs 0 and 2, and 1 and 3, share bytes
        int run = first / 32;
        const unsigned char *low = block + run / 4 * 64 + run % 2 * 32 + first % 32;
        return (sl_code_load(low) >> (run / 2 % 2 * 4) & SL_BITS_OF_EIGHT(4)) | sl_code_runs(block + 128, first, 2)
                                                                                    << 4;
    }
    default:
        return 0; // numbers have no codes
    }
}
