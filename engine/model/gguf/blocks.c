// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of the types of tensors, and their conversions. engine/tensor/codes.c takes blocks apart.
 *
 * To add a type: a line in types[], its parts in engine/tensor/codes.c, a line in tools/golden_gguf.py.
 */
#include "engine/model/gguf/blocks.h"

#include <math.h>

#include "engine/tensor/half.h"

#define Q8_0_WEIGHTS 32

static const struct sl_block_type types[] = {
    {0, "F32", SL_F32, 1, 4, false, 0, 0, 0},
    {1, "F16", SL_F16, 1, 2, false, 0, 0, 0},
    {2, "Q4_0", SL_Q4_0, 32, 18, true, 0, 8, 0},
    {3, "Q4_1", SL_Q4_1, 32, 20, false, 0, 15, 1},
    {6, "Q5_0", SL_Q5_0, 32, 22, true, 0, 16, 0},
    {7, "Q5_1", SL_Q5_1, 32, 24, false, 0, 31, 1},
    {8, "Q8_0", SL_Q8_0, 32, SL_Q8_0_BYTES, true, 0, 128, 0},
    {10, "Q2_K", SL_Q2_K, 256, 84, false, 80, 15 * 3, 15},
    {11, "Q3_K", SL_Q3_K, 256, 110, true, 108, 32 * 4, 0},
    {12, "Q4_K", SL_Q4_K, 256, 144, false, 0, 63 * 15, 63},
    {13, "Q5_K", SL_Q5_K, 256, 176, false, 0, 63 * 31, 63},
    {14, "Q6_K", SL_Q6_K, 256, 210, false, 208, 128 * 32, 0},
    {30, "BF16", SL_BF16, 1, 2, false, 0, 0, 0},
};

static const char *const others[] = {
    [9] = "Q8_1",   [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
    [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",   [22] = "IQ2_S",  [23] = "IQ4_XS",
    [24] = "I8",    [25] = "I16",    [26] = "I32",     [27] = "I64",    [28] = "F64",
    [29] = "IQ1_M", [34] = "TQ1_0",  [35] = "TQ2_0",   [39] = "MXFP4",
};

static float half_at(const unsigned char *at) {
    return sl_f16_to_f32((uint16_t)(at[0] | at[1] << 8));
}

void sl_block_widen(const struct sl_block_type *type, const unsigned char *block, float *out) {
    switch (type->dtype) {
    case SL_F32:
        *out = sl_bits_to_f32((uint32_t)block[0] | (uint32_t)block[1] << 8 | (uint32_t)block[2] << 16 |
                              (uint32_t)block[3] << 24);
        break;
    case SL_F16:
        *out = half_at(block);
        break;
    case SL_BF16:
        *out = sl_bf16_to_f32((uint16_t)(block[0] | block[1] << 8));
        break;
    default:
        sl_code_widen(sl_code_type(type->dtype), block, out);
    }
}

// s (c - zero) is from -128 to 127, but of Q3_K from -124 to 128: there it and D are negated.
void sl_block_to_q8_0(const struct sl_block_type *type, const unsigned char *block, unsigned char *out) {
    const struct sl_code_type *codes = sl_code_type(type->dtype);
    struct sl_code_block parts;
    sl_code_read(codes, block, &parts);
    int sign = type->dtype == SL_Q3_K ? -1 : 1;
    uint16_t scale = sign < 0 ? parts.scale ^ 0x8000 : parts.scale;
    for (int i = 0; i < codes->n_weights; i++, out++) {
        if (i % Q8_0_WEIGHTS == 0) {
            *out++ = (unsigned char)scale;
            *out++ = (unsigned char)(scale >> 8);
        }
        *out = (unsigned char)(sign * parts.scales[i / codes->shared] * (parts.codes[i] - codes->zero));
    }
}

float sl_block_bound(const struct sl_block_type *type, const unsigned char *block) {
    float offset = type->offsets > 0 ? fabsf(half_at(block + type->at + 2)) : 0;
    return type->scales * fabsf(half_at(block + type->at)) + type->offsets * offset;
}

const struct sl_block_type *sl_block_type_of(enum sl_dtype dtype) {
    const struct sl_block_type *type = types;
    while (type->dtype != dtype) {
        type++;
    }
    return type;
}

const struct sl_block_type *sl_block_type(uint32_t id, const char **name_out) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].id == id) {
            *name_out = types[i].name;
            return &types[i];
        }
    }
    bool is_known = id < sizeof others / sizeof others[0] && others[id] != NULL;
    *name_out = is_known ? others[id] : "one that is not known";
    return NULL;
}
