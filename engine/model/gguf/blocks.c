// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts blocks of quantized weights to numbers. See blocks.h for the formulas.
 *
 * To add a type: its functions, a line in types[], a line in tools/golden_gguf.py.
 */
#include "engine/model/gguf/blocks.h"

#include <math.h>
#include <string.h>

#include "engine/tensor/half.h"

#define Q8_0_WEIGHTS 32

static float half_at(const unsigned char *at) {
    return sl_f16_to_f32((uint16_t)(at[0] | at[1] << 8));
}

// --- numbers ---------------------------------------------------------------------------------------------------------

static void widen_f32(const unsigned char *at, float *out) {
    *out = sl_bits_to_f32((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

static void widen_f16(const unsigned char *at, float *out) {
    *out = half_at(at);
}

static void widen_bf16(const unsigned char *at, float *out) {
    *out = sl_bf16_to_f32((uint16_t)(at[0] | at[1] << 8));
}

// --- 32 weights ------------------------------------------------------------------------------------------------------

// Returns code i of 32 in 16 bytes; the low halves hold the first half of the codes.
static int nibble(const unsigned char *codes, int i) {
    return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
}

// Returns the same with a fifth bit: bit i of the four bytes at `high`.
static int five_bits(const unsigned char *high, const unsigned char *codes, int i) {
    return nibble(codes, i) | (high[i / 8] >> (i % 8) & 1) << 4;
}

// Writes scale * (c - middle) + offset of 32 codes; without `high` codes have four bits.
static void widen_32(const unsigned char *codes, const unsigned char *high, float scale, int middle, float offset,
                     float *restrict out) {
    for (int i = 0; i < 32; i++) {
        int code = high != NULL ? five_bits(high, codes, i) : nibble(codes, i);
        out[i] = scale * (float)(code - middle) + offset;
    }
}

static void widen_q4_0(const unsigned char *block, float *out) {
    widen_32(block + 2, NULL, half_at(block), 8, -0.0f,
             out); // keeps every number, and the sign of zeros
}

static void widen_q4_1(const unsigned char *block, float *out) {
    widen_32(block + 4, NULL, half_at(block), 0, half_at(block + 2), out);
}

static void widen_q5_0(const unsigned char *block, float *out) {
    widen_32(block + 6, block + 2, half_at(block), 16, -0.0f, out);
}

static void widen_q5_1(const unsigned char *block, float *out) {
    widen_32(block + 8, block + 4, half_at(block), 0, half_at(block + 2), out);
}

static void widen_q8_0(const unsigned char *block, float *restrict out) {
    float scale = half_at(block);
    for (int i = 0; i < 32; i++) {
        out[i] = scale * (float)(int8_t)block[2 + i];
    }
}

static void q4_0_to_q8_0(const unsigned char *block, unsigned char *out) {
    memcpy(out, block, 2);
    for (int i = 0; i < 32; i++) {
        out[2 + i] = (unsigned char)(nibble(block + 2, i) - 8);
    }
}

static void q5_0_to_q8_0(const unsigned char *block, unsigned char *out) {
    memcpy(out, block, 2);
    for (int i = 0; i < 32; i++) {
        out[2 + i] = (unsigned char)(five_bits(block + 2, block + 6, i) - 16);
    }
}

static void q8_0_to_q8_0(const unsigned char *block, unsigned char *out) {
    memcpy(out, block, SL_Q8_0_BYTES);
}

// --- 256 weights -----------------------------------------------------------------------------------------------------

// Returns the code of weight i, which is i % 32 of run i / 32. 32 bytes hold four runs of two bits, or two runs of
// four bits.
static int two_bits(const unsigned char *codes, int i) {
    return codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}

static int four_bits(const unsigned char *codes, int i) {
    return codes[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
}

// Returns one bit of the 8 runs in 32 bytes.
static int one_bit(const unsigned char *bits, int i) {
    return bits[i % 32] >> (i / 32) & 1;
}

static void widen_q2_k(const unsigned char *block, float *restrict out) {
    const unsigned char *scales = block, *codes = block + 16;
    float all_scale = half_at(block + 80), all_least = half_at(block + 82);
    for (int g = 0; g < 16; g++) {
        float scale = all_scale * (float)(scales[g] & 15), least = all_least * (float)(scales[g] >> 4);
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            out[i] = scale * (float)two_bits(codes, i) - least;
        }
    }
}

// Returns s - 32 of 16 weights: four bits in bytes 0 to 7, two in bytes 8 to 11.
static int q3_k_scale(const unsigned char *scales, int g) {
    int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    return (low | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
}

static int q3_k_code(const unsigned char *block, int i) {
    return two_bits(block + 32, i) - (one_bit(block, i) ? 0 : 4);
}

static void widen_q3_k(const unsigned char *block, float *restrict out) {
    float all_scale = half_at(block + 108);
    for (int g = 0; g < 16; g++) {
        float scale = all_scale * (float)q3_k_scale(block + 96, g);
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            out[i] = scale * (float)q3_k_code(block, i);
        }
    }
}

// Converts exactly: (s - 32) c ranges from -124 to 128. Negated it fits a byte, and D is negated as well.
static void q3_k_to_q8_0(const unsigned char *block, unsigned char *out) {
    for (int g = 0; g < 256 / Q8_0_WEIGHTS; g++, out += SL_Q8_0_BYTES) {
        out[0] = block[108];
        out[1] = block[109] ^ 0x80;
        for (int i = 0; i < Q8_0_WEIGHTS; i++) {
            int w = g * Q8_0_WEIGHTS + i;
            out[2 + i] = (unsigned char)-(q3_k_scale(block + 96, w / 16) * q3_k_code(block, w));
        }
    }
}

// Returns s and m of 32 weights, 6 bits each, in 12 bytes: whole for the first four runs, in two parts for the
// others.
static void q4_k_scale(const unsigned char *scales, int g, float *scale_out, float *least_out) {
    if (g < 4) {
        *scale_out = (float)(scales[g] & 63);
        *least_out = (float)(scales[g + 4] & 63);
    } else {
        *scale_out = (float)((scales[g + 4] & 15) | scales[g - 4] >> 6 << 4);
        *least_out = (float)(scales[g + 4] >> 4 | scales[g] >> 6 << 4);
    }
}

// high: NULL, or the fifth bits.
static void widen_with_least(const unsigned char *block, const unsigned char *codes, const unsigned char *high,
                             float *restrict out) {
    float all_scale = half_at(block), all_least = half_at(block + 2);
    for (int g = 0; g < 8; g++) {
        float scale, least;
        q4_k_scale(block + 4, g, &scale, &least);
        scale *= all_scale;
        least *= all_least;
        for (int i = 32 * g; i < 32 * g + 32; i++) {
            int code = four_bits(codes, i) | (high != NULL ? one_bit(high, i) << 4 : 0);
            out[i] = scale * (float)code - least;
        }
    }
}

static void widen_q4_k(const unsigned char *block, float *out) {
    widen_with_least(block, block + 16, NULL, out);
}

static void widen_q5_k(const unsigned char *block, float *out) {
    widen_with_least(block, block + 48, block + 16, out);
}

static void widen_q6_k(const unsigned char *block, float *restrict out) {
    const unsigned char *low = block, *high = block + 128, *scales = block + 192;
    float all_scale = half_at(block + 208);
    for (int g = 0; g < 16; g++) {
        float scale = all_scale * (float)(int8_t)scales[g];
        int run = g / 2 % 4; // within half g / 8: runs 0 and 2, and 1 and 3, share bytes
        const unsigned char *nibbles = low + g / 8 * 64 + run % 2 * 32;
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            int code = (nibbles[i % 32] >> (run / 2 * 4) & 15) | two_bits(high, i) << 4;
            out[i] = scale * (float)(code - 32);
        }
    }
}

// --- the table -------------------------------------------------------------------------------------------------------

static const struct sl_block_type types[] = {
    {0, "F32", 1, 4, widen_f32, NULL, 0, 0, 0},
    {1, "F16", 1, 2, widen_f16, NULL, 0, 0, 0},
    {2, "Q4_0", 32, 18, widen_q4_0, q4_0_to_q8_0, 0, 8, 0},
    {3, "Q4_1", 32, 20, widen_q4_1, NULL, 0, 15, 1},
    {6, "Q5_0", 32, 22, widen_q5_0, q5_0_to_q8_0, 0, 16, 0},
    {7, "Q5_1", 32, 24, widen_q5_1, NULL, 0, 31, 1},
    {8, "Q8_0", 32, SL_Q8_0_BYTES, widen_q8_0, q8_0_to_q8_0, 0, 128, 0},
    {10, "Q2_K", 256, 84, widen_q2_k, NULL, 80, 15 * 3, 15},
    {11, "Q3_K", 256, 110, widen_q3_k, q3_k_to_q8_0, 108, 32 * 4, 0},
    {12, "Q4_K", 256, 144, widen_q4_k, NULL, 0, 63 * 15, 63},
    {13, "Q5_K", 256, 176, widen_q5_k, NULL, 0, 63 * 31, 63},
    {14, "Q6_K", 256, 210, widen_q6_k, NULL, 208, 128 * 32, 0},
    {30, "BF16", 1, 2, widen_bf16, NULL, 0, 0, 0},
};

static const char *const others[] = {
    [9] = "Q8_1",   [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
    [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",   [22] = "IQ2_S",  [23] = "IQ4_XS",
    [24] = "I8",    [25] = "I16",    [26] = "I32",     [27] = "I64",    [28] = "F64",
    [29] = "IQ1_M", [34] = "TQ1_0",  [35] = "TQ2_0",   [39] = "MXFP4",
};

float sl_block_bound(const struct sl_block_type *type, const unsigned char *block) {
    float offset = type->offsets > 0 ? fabsf(half_at(block + type->at + 2)) : 0;
    return type->scales * fabsf(half_at(block + type->at)) + type->offsets * offset;
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
