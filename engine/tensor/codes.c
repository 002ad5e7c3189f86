// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/codes.h"

#include <string.h>

#include "engine/tensor/half.h"

static uint16_t half_at(const unsigned char *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

static const uint16_t minus = 0x8000; // the sign of an f16

// --- 32 weights ------------------------------------------------------------------------------------------------------

static void read_scale(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block);
    out->offset = 0;
    out->scales[0] = 1;
    out->offsets[0] = 1;
}

static void read_scale_and_offset(const unsigned char *block, struct sl_code_block *out) {
    read_scale(block, out);
    out->offset = half_at(block + 2);
}

// --- 256 weights -----------------------------------------------------------------------------------------------------

static void read_q2_k(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block + 80);
    out->offset = half_at(block + 82) ^ minus;
    for (int g = 0; g < 16; g++) {
        out->scales[g] = (int8_t)(block[g] & 15);
        out->offsets[g] = block[g] >> 4;
    }
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
}

// s and o of Q4_K and Q5_K have 6 bits each, in 12 bytes: whole for the first four runs, in two parts for the others.
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

static void read_q6_k(const unsigned char *block, struct sl_code_block *out) {
    out->scale = half_at(block + 208);
    out->offset = 0;
    memcpy(out->scales, block + 192, 16);
}

// --- the table -------------------------------------------------------------------------------------------------------

static const struct sl_code_type types[] = {
    [SL_Q8_0] = {"Q8_0", 32, 34, 8, 32, 128, false, read_scale},
    [SL_Q4_0] = {"Q4_0", 32, 18, 4, 32, 8, false, read_scale},
    [SL_Q4_1] = {"Q4_1", 32, 20, 4, 32, 0, true, read_scale_and_offset},
    [SL_Q5_0] = {"Q5_0", 32, 22, 5, 32, 16, false, read_scale},
    [SL_Q5_1] = {"Q5_1", 32, 24, 5, 32, 0, true, read_scale_and_offset},
    [SL_Q2_K] = {"Q2_K", 256, 84, 4, 16, 0, true, read_q2_k},
    [SL_Q3_K] = {"Q3_K", 256, 110, 4, 16, 4, false, read_q3_k},
    [SL_Q4_K] = {"Q4_K", 256, 144, 4, 32, 0, true, read_scales_of_6_bits},
    [SL_Q5_K] = {"Q5_K", 256, 176, 5, 32, 0, true, read_scales_of_6_bits},
    [SL_Q6_K] = {"Q6_K", 256, 210, 6, 16, 32, false, read_q6_k},
};

const struct sl_code_type *sl_code_type(enum sl_dtype dtype) {
    return (size_t)dtype < sizeof types / sizeof types[0] && types[dtype].read_scales != NULL ? &types[dtype] : NULL;
}

void sl_code_read(const struct sl_code_type *type, const unsigned char *block, struct sl_code_block *out) {
    type->read_scales(block, out);
    for (int i = 0; i < type->n_weights; i += 8) {
        uint64_t codes = sl_code_eight((enum sl_dtype)(type - types), block, i);
        memcpy(out->codes + i, &codes, sizeof codes);
    }
}

void sl_code_widen(const struct sl_code_type *type, const unsigned char *block, float *out) {
    struct sl_code_block parts;
    sl_code_read(type, block, &parts);
    for (int share = 0; share < type->n_weights / type->shared; share++) {
        float scale = sl_f16_to_f32(parts.scale) * (float)parts.scales[share];
        float offset = sl_f16_to_f32(parts.offset) * (float)parts.offsets[share];
        for (int i = share * type->shared; i < (share + 1) * type->shared; i++) {
            float x = scale * (float)((int)parts.codes[i] - type->zero);
            out[i] = type->has_offset ? x + offset : x;
        }
    }
}
