// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: code that the packers of all tiers share: access to rows of a matrix in the model's files, and the one
 *         quantization of them, so that every tier computes with the same codes and scales.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/tensor/codes.h"
#include "engine/tensor/half.h"
#include "engine/tensor/ops.h"

// Returns the bytes of one weight; not for types that come in blocks.
static inline size_t sl_dtype_bytes(enum sl_dtype dtype) {
    return dtype == SL_F32 ? 4 : 2;
}

static inline bool sl_dtype_is_codes(enum sl_dtype dtype) {
    return dtype >= SL_Q8_0;
}

// Returns the bytes of a block of SL_Q8_0 or SL_Q4_0: the scale, then the codes.
static inline size_t sl_dtype_block_bytes(enum sl_dtype dtype) {
    return 2 + (dtype == SL_Q8_0 ? SL_WEIGHT_GROUP : SL_WEIGHT_GROUP / 2);
}

// Returns the bytes of a row of k weights; types that come in blocks fill whole blocks.
static inline size_t sl_dtype_row_bytes(enum sl_dtype dtype, int64_t k) {
    const struct sl_code_type *type = sl_code_type(dtype);
    return type != NULL ? (size_t)(k / type->n_weights) * type->bytes : (size_t)k * sl_dtype_bytes(dtype);
}

// Returns code i of a block.
static inline int8_t sl_block_code(const unsigned char *block, enum sl_dtype dtype, int i) {
    const unsigned char *codes = block + 2;
    if (dtype == SL_Q8_0) {
        return (int8_t)codes[i];
    }
    return (int8_t)((i < SL_WEIGHT_GROUP / 2 ? codes[i] & 15 : codes[i - SL_WEIGHT_GROUP / 2] >> 4) - 8);
}

// Returns how many groups of a row, each with one scale, there are.
static inline int64_t sl_weight_groups(int64_t k) {
    return (k + SL_WEIGHT_GROUP - 1) / SL_WEIGHT_GROUP;
}

// Returns the type of part i.
static inline enum sl_dtype sl_part_dtype(const struct sl_matrix *w, int i) {
    return w->format == SL_WEIGHT_CODES ? w->parts[i].dtype : w->dtype;
}

// Returns row j of W, [k] of its part's type, of any alignment.
static inline const unsigned char *sl_weight_row(const struct sl_matrix *w, int64_t j) {
    for (int i = 0; i < SL_MAX_PARTS; i++) {
        if (j < w->parts[i].n) {
            return (const unsigned char *)w->parts[i].data + (size_t)j * sl_dtype_row_bytes(sl_part_dtype(w, i), w->k);
        }
        j -= w->parts[i].n;
    }
    assert(!"a row beyond the parts of a matrix");
    return NULL;
}

// Returns element i of a row as f32. Of the types of codes, only SL_Q8_0 and SL_Q4_0.
static inline float sl_weight_element(const unsigned char *row, enum sl_dtype dtype, int64_t i) {
    uint16_t half;
    float value;
    if (dtype == SL_F32) {
        memcpy(&value, row + 4 * i, sizeof value);
        return value;
    }
    if (sl_dtype_is_codes(dtype)) {
        const unsigned char *block = row + (size_t)(i / SL_WEIGHT_GROUP) * sl_dtype_block_bytes(dtype);
        memcpy(&half, block, sizeof half);
        return sl_f16_to_f32(half) * (float)sl_block_code(block, dtype, (int)(i % SL_WEIGHT_GROUP));
    }
    memcpy(&half, row + 2 * i, sizeof half);
    return dtype == SL_F16 ? sl_f16_to_f32(half) : sl_bf16_to_f32(half);
}

/*
 * Writes the codes and the scale (f16) of group g of row j, as enum sl_weight_format defines them. Returns how many
 * codes the group has. INT4 codes are written one to a byte here.
 */
int sl_weight_quantize_group(const struct sl_matrix *w, int64_t j, int64_t g, int8_t *codes_out, uint16_t *scale_out);

// Writes row j to out[k], as f32.
void sl_weight_widen_row(const struct sl_matrix *w, int64_t j, float *out);

// --- activations and gates as formulas -------------------------------------------------------------------------------

float sl_activate(enum sl_activation activation, float x);
