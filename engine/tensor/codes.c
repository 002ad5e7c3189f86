// SPDX-License-Identifier: Apache-2.0
// Purpose: takes blocks of codes apart. See codes.h.
#include "engine/tensor/codes.h"

#include <string.h>

#include "engine/tensor/half.h"

static uint16_t half_at(const unsigned char *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

// --- 32 weights ------------------------------------------------------------------------------------------------------

// Codes i and i + 16 are the halves of byte i; `high`, if there is one, has the fifth bit of every code.
static void read_32(const unsigned char *codes, const unsigned char *high, struct sl_code_block *out) {
    for (int i = 0; i < 32; i++) {
        int nibble = i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
        out->codes[i] = (uint8_t)(nibble | (high != NULL ? (high[i / 8] >> (i % 8) & 1) << 4 : 0));
    }
    out->scales[0] = 1;
    out->offsets[0] = 1;
}

static void read_q4_0(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block);
    out->offset = 0;
    read_32(block + 2, NULL, out);
}

static void read_q4_1(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block);
    out->offset = half_at(block + 2);
    read_32(block + 4, NULL, out);
}

static void read_q5_0(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block);
    out->offset = 0;
    read_32(block + 6, block + 2, out);
}

static void read_q5_1(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block);
    out->offset = half_at(block + 2);
    read_32(block + 8, block + 4, out);
}

static void read_q8_0(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block);
    out->offset = 0;
    out->scales[0] = 1;
    for (int i = 0; i < 32; i++) {
        out->codes[i] = block[2 + i] ^ 0x80; // adds 128
    }
}

// --- 256 weights -----------------------------------------------------------------------------------------------------

static const uint16_t minus = 0x8000; // the sign of an f16

// A block has eight runs of 32 codes. 32 bytes hold a part of several runs: four runs of two bits, or two runs of four
// bits, or eight runs of one bit. Each function adds that part to the codes, shifted to the left.
static void add_two_bits(const unsigned char *bits, int shift, uint8_t *codes) {
    for (int run = 0; run < 8; run++) {
        for (int i = 0; i < 32; i++) {
            codes[32 * run + i] |= (uint8_t)((bits[run / 4 * 32 + i] >> (run % 4 * 2) & 3) << shift);
        }
    }
}

static void add_four_bits(const unsigned char *bits, uint8_t *codes) {
    for (int run = 0; run < 8; run++) {
        for (int i = 0; i < 32; i++) {
            codes[32 * run + i] |= bits[run / 2 * 32 + i] >> (run % 2 * 4) & 15;
        }
    }
}

static void add_one_bit(const unsigned char *bits, int shift, uint8_t *codes) {
    for (int run = 0; run < 8; run++) {
        for (int i = 0; i < 32; i++) {
            codes[32 * run + i] |= (uint8_t)((bits[i] >> run & 1) << shift);
        }
    }
}

static void read_q2_k(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block + 80);
    out->offset = half_at(block + 82) ^ minus;
    for (int g = 0; g < 16; g++) {
        out->scales[g] = (int8_t)(block[g] & 15);
        out->offsets[g] = block[g] >> 4;
    }
    memset(out->codes, 0, sizeof out->codes);
    add_two_bits(block + 16, 0, out->codes);
}

// s - 32 has four bits in bytes 96 to 103, and two in bytes 104 to 107.
static void read_q3_k(const unsigned char *block, struct sl_code_block *out) {
    const unsigned char *scales = block + 96;
    out->scale = half_at(block + 108);
    out->offset = 0;
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
        out->scales[g] = (int8_t)((low | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32);
    }
    memset(out->codes, 0, sizeof out->codes);
    add_two_bits(block + 32, 0, out->codes);
    add_one_bit(block, 2, out->codes);
}

// s and o have 6 bits each, in 12 bytes: whole for the first four runs, in two parts for the others.
static void read_scales_of_6_bits(const unsigned char *block, struct sl_code_block *out) {
    const unsigned char *scales = block + 4;
    out->scale = half_at(block);
    out->offset = half_at(block + 2) ^ minus;
    for (int g = 0; g < 4; g++) {
        out->scales[g] = (int8_t)(scales[g] & 63);
        out->offsets[g] = scales[g + 4] & 63;
        out->scales[g + 4] = (int8_t)((scales[g + 8] & 15) | scales[g] >> 6 << 4);
        out->offsets[g + 4] = (uint8_t)(scales[g + 8] >> 4 | scales[g + 4] >> 6 << 4);
    }
}

static void read_q4_k(const unsigned char *block, struct sl_code_block *out) {
    read_scales_of_6_bits(block, out);
    memset(out->codes, 0, sizeof out->codes);
    add_four_bits(block + 16, out->codes);
}

static void read_q5_k(const unsigned char *block, struct sl_code_block *out) {
    read_scales_of_6_bits(block, out);
    memset(out->codes, 0, sizeof out->codes);
    add_four_bits(block + 48, out->codes);
    add_one_bit(block + 16, 4, out->codes);
}

// Within each half of 128, runs 0 and 2, and 1 and 3, share bytes.
static void read_q6_k(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block + 208);
    out->offset = 0;
    memcpy(out->scales, block + 192, 16);
    for (int run = 0; run < 8; run++) {
        const unsigned char *low = block + run / 4 * 64 + run % 2 * 32;
        for (int i = 0; i < 32; i++) {
            out->codes[32 * run + i] = low[i] >> (run / 2 % 2 * 4) & 15;
        }
    }
    add_two_bits(block + 128, 4, out->codes);
}

// --- the table -------------------------------------------------------------------------------------------------------

static const struct sl_code_type types[] = {
    [SL_Q8_0] = {"Q8_0", 32, 34, 8, 32, 128, false, read_q8_0},
    [SL_Q4_0] = {"Q4_0", 32, 18, 4, 32, 8, false, read_q4_0},
    [SL_Q4_1] = {"Q4_1", 32, 20, 4, 32, 0, true, read_q4_1},
    [SL_Q5_0] = {"Q5_0", 32, 22, 5, 32, 16, false, read_q5_0},
    [SL_Q5_1] = {"Q5_1", 32, 24, 5, 32, 0, true, read_q5_1},
    [SL_Q2_K] = {"Q2_K", 256, 84, 4, 16, 0, true, read_q2_k},
    [SL_Q3_K] = {"Q3_K", 256, 110, 4, 16, 4, false, read_q3_k},
    [SL_Q4_K] = {"Q4_K", 256, 144, 4, 32, 0, true, read_q4_k},
    [SL_Q5_K] = {"Q5_K", 256, 176, 5, 32, 0, true, read_q5_k},
    [SL_Q6_K] = {"Q6_K", 256, 210, 6, 16, 32, false, read_q6_k},
};

const struct sl_code_type *sl_code_type(enum sl_dtype dtype) {
    return (size_t)dtype < sizeof types / sizeof types[0] && types[dtype].read != NULL ? &types[dtype] : NULL;
}

void sl_code_widen(const struct sl_code_type *type, const unsigned char *block, float *out) {
    struct sl_code_block parts;
    type->read(block, &parts);
    for (int i = 0; i < type->n_weights; i++) {
        int share = i / type->shared;
        float x = sl_f16_to_f32(parts.scale) * (float)parts.scales[share] * (float)((int)parts.codes[i] - type->zero);
        out[i] = type->has_offset ? x + sl_f16_to_f32(parts.offset) * (float)parts.offsets[share] : x;
    }
}
