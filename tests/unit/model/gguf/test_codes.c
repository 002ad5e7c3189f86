// SPDX-License-Identifier: Apache-2.0
// Purpose: checks that blocks of codes, taken apart for kernels, are the numbers that the file's formulas give: those of
// blocks.h, written out here type by type.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "engine/model/gguf/blocks.h"
#include "engine/tensor/codes.h"
#include "engine/tensor/half.h"

static float half_at(const unsigned char *at) {
    return sl_f16_to_f32((uint16_t)(at[0] | at[1] << 8));
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

// --- tests -----------------------------------------------------------------------------------------------------------

static const struct {
    uint32_t id; // in the file
    enum sl_dtype dtype;
    void (*widen)(const unsigned char *block, float *out);
} types[] = {{2, SL_Q4_0, widen_q4_0},  {3, SL_Q4_1, widen_q4_1},  {6, SL_Q5_0, widen_q5_0},  {7, SL_Q5_1, widen_q5_1},
             {8, SL_Q8_0, widen_q8_0},  {10, SL_Q2_K, widen_q2_k}, {11, SL_Q3_K, widen_q3_k}, {12, SL_Q4_K, widen_q4_k},
             {13, SL_Q5_K, widen_q5_k}, {14, SL_Q6_K, widen_q6_k}};

static uint64_t state = 7;

static unsigned char random_byte(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned char)(state >> 56);
}

// Makes a block of random codes whose scales are not infinities.
static void random_block(const struct sl_block_type *type, unsigned char *block) {
    for (size_t i = 0; i < type->bytes; i++) {
        block[i] = random_byte();
    }
    block[type->at + 1] &= 0xbf;
    block[type->at + 3] &= 0xbf;
}

static void test_codes_are_the_numbers_of_the_file(void **unused) {
    (void)unused;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const char *name;
        const struct sl_block_type *file = sl_block_type(types[t].id, &name);
        const struct sl_code_type *type = sl_code_type(types[t].dtype);
        assert_ptr_equal(file, sl_block_type_of(types[t].dtype));
        assert_string_equal(type->name, name);
        assert_int_equal(type->n_weights, file->n_weights);
        assert_int_equal(type->bytes, file->bytes);
        for (int round = 0; round < 200; round++) {
            unsigned char block[256];
            float expected[SL_MAX_BLOCK], got[SL_MAX_BLOCK];
            random_block(file, block);
            types[t].widen(block, expected);
            sl_block_widen(file, block, got);
            for (int i = 0; i < type->n_weights; i++) {
                assert_true(got[i] == expected[i] && signbit(got[i]) == signbit(expected[i]));
            }
        }
    }
}

static void test_codes_of_8_bits_are_the_same_numbers(void **unused) {
    (void)unused;
    int n_types = 0;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const struct sl_block_type *type = sl_block_type_of(types[t].dtype);
        for (int round = 0; type->fits_q8_0 && round < 200; round++) {
            unsigned char block[256], codes[SL_MAX_BLOCK / 32 * SL_Q8_0_BYTES];
            float expected[SL_MAX_BLOCK], got[32];
            random_block(type, block);
            types[t].widen(block, expected);
            sl_block_to_q8_0(type, block, codes);
            for (int i = 0; i < type->n_weights; i++) {
                if (i % 32 == 0) {
                    widen_q8_0(codes + i / 32 * SL_Q8_0_BYTES, got);
                }
                assert_true(got[i % 32] == expected[i]);
            }
        }
        n_types += type->fits_q8_0;
    }
    assert_int_equal(n_types, 4); // Q4_0, Q5_0, Q8_0, Q3_K
}

static void test_codes_fit_their_bits(void **unused) {
    (void)unused;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const struct sl_code_type *type = sl_code_type(types[t].dtype);
        unsigned char block[256];
        struct sl_code_block parts;
        memset(block, 0xff, sizeof block);
        sl_code_read(type, block, &parts);
        for (int i = 0; i < type->n_weights; i++) {
            assert_true(parts.codes[i] < 1 << type->bits);
        }
    }
}

static void test_numbers_are_no_codes(void **unused) {
    (void)unused;
    assert_null(sl_code_type(SL_F32));
    assert_null(sl_code_type(SL_F16));
    assert_null(sl_code_type(SL_BF16));
    assert_null(sl_code_type(SL_DTYPES));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_are_the_numbers_of_the_file),
        cmocka_unit_test(test_codes_of_8_bits_are_the_same_numbers),
        cmocka_unit_test(test_codes_fit_their_bits),
        cmocka_unit_test(test_numbers_are_no_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
