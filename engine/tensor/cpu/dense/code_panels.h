// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: weights that stay the codes of their file (engine/tensor/codes.h), arranged for products: half panels of 16
 *          rows of W.
 *
 * Design: a product reads codes, scales and offsets in the order in which it needs them, and no byte more than the file
 *         has (but for Q2_K and Q3_K, whose codes take four bits here). A half panel is blocks one after the other, as
 *         in a row of the file: 32 or 256 weights of 16 rows c:
 *
 *             D[16]  O[16]                   f16; O where the type has offsets
 *             for every 32 weights:
 *               s[16] o[16]                  bytes, once or twice (`shared` is 32 or 16); only in blocks of 256
 *               codes                        8 steps of 4 weights: byte 4 c + i of a step is weight i of row c
 *
 *         Steps of 8 bits are 64 bytes each. Otherwise the low four bits of steps 2 j and 2 j + 1 share 64 bytes; a
 *         fifth bit is bit 4 c + i of the 64-bit word of the step; bits 5 and 6 of steps 4 j .. 4 j + 3 share 64 bytes.
 *
 *         The parts of a matrix of SL_WEIGHT_CODES may have different types. Each part starts a half panel. INT8 and
 *         INT4 become blocks of Q8_0 and Q4_0, all halves of the first panel, then those of the second.
 */
#pragma once

#include "engine/tensor/codes.h"
#include "engine/tensor/cpu/dense/panels.h"

#define SL_HALF       16 // rows of W
#define SL_CODE_GROUP 32 // weights of a row that share a scale of x
#define SL_CODE_STEPS 8  // of a group

// A type as constants of a kernel: struct sl_code_type has the same.
struct sl_code_form {
    int bits, shared;
    bool has_offset;
    int zero_shift; // zero is 1 << zero_shift; -1: it is 0
    int block;      // groups of a block
};

// Defines a kernel for every type: KERNEL(type, bits, shared, has_offset, zero_shift, block).
#define SL_CODE_FORMS(KERNEL)                                                                                          \
    KERNEL(Q4_0, 4, 32, false, 3, 1)                                                                                   \
    KERNEL(Q4_1, 4, 32, true, -1, 1)                                                                                   \
    KERNEL(Q5_0, 5, 32, false, 4, 1)                                                                                   \
    KERNEL(Q5_1, 5, 32, true, -1, 1)                                                                                   \
    KERNEL(Q8_0, 8, 32, false, 7, 1)                                                                                   \
    KERNEL(Q2_K, 4, 16, true, -1, 8)                                                                                   \
    KERNEL(Q3_K, 4, 16, false, 2, 8)                                                                                   \
    KERNEL(Q4_K, 4, 32, true, -1, 8)                                                                                   \
    KERNEL(Q5_K, 5, 32, true, -1, 8)                                                                                   \
    KERNEL(Q6_K, 6, 16, false, 5, 8)

// Returns the bytes of the codes of a group of 16 rows.
static inline size_t sl_code_group_bytes(int bits) {
    return (size_t)SL_HALF * SL_CODE_GROUP * (size_t)bits / 8;
}

// Returns the bytes of a block of 16 rows.
static inline size_t sl_code_block_bytes(const struct sl_code_type *type) {
    size_t shares = type->n_weights > SL_CODE_GROUP ? (size_t)(type->n_weights / type->shared) : 0;
    return SL_HALF * (2 + shares) * (type->has_offset ? 2 : 1) +
           (size_t)(type->n_weights / SL_CODE_GROUP) * sl_code_group_bytes(type->bits);
}

// Returns the bytes of 16 rows of k weights. The last block of quantized rows may be padded.
static inline size_t sl_code_half_bytes(const struct sl_code_type *type, int64_t k) {
    return (size_t)sl_div_up(k, type->n_weights) * sl_code_block_bytes(type);
}

// Returns true for matrices that are codes here: those of a file, and those that pack() quantizes.
static inline bool sl_code_is(const struct sl_matrix *w) {
    return w->format != SL_WEIGHT_STORED;
}

struct sl_code_half {
    enum sl_dtype dtype;
    const struct sl_code_type *type; // of dtype; NULL: beyond the last row
    const char *data;
};

// Returns half `half` (0 or 1) of panel p (panels.h).
struct sl_code_half sl_code_half_at(const struct sl_matrix *w, int64_t p, int half);

// Implements ops->pack for matrices whose sl_code_is() is true; sl_panels_free() is the inverse.
enum sl_status sl_code_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);
