// SPDX-License-Identifier: Apache-2.0
// Purpose: checks that blocks of codes, taken apart for kernels, are the numbers that the file's formulas give.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "engine/model/gguf/blocks.h"
#include "engine/tensor/codes.h"

static const struct {
    uint32_t id; // in the file
    enum sl_dtype dtype;
} types[] = {{2, SL_Q4_0},  {3, SL_Q4_1},  {6, SL_Q5_0},  {7, SL_Q5_1},  {8, SL_Q8_0},
             {10, SL_Q2_K}, {11, SL_Q3_K}, {12, SL_Q4_K}, {13, SL_Q5_K}, {14, SL_Q6_K}};

static uint64_t state = 7;

static unsigned char random_byte(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned char)(state >> 56);
}

static void test_codes_are_the_numbers_of_the_file(void **unused) {
    (void)unused;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const char *name;
        const struct sl_block_type *file = sl_block_type(types[t].id, &name);
        const struct sl_code_type *type = sl_code_type(types[t].dtype);
        assert_string_equal(type->name, name);
        assert_int_equal(type->n_weights, file->n_weights);
        assert_int_equal(type->bytes, file->bytes);
        for (int round = 0; round < 200; round++) {
            unsigned char block[256];
            float expected[SL_MAX_BLOCK], got[SL_MAX_BLOCK];
            for (size_t i = 0; i < type->bytes; i++) {
                block[i] = random_byte();
            }
            block[file->at + 1] &= 0xbf; // no scale is infinite or NaN
            block[file->at + 3] &= 0xbf;
            file->widen(block, expected);
            sl_code_widen(type, block, got);
            for (int i = 0; i < type->n_weights; i++) {
                assert_true(got[i] == expected[i]);
            }
        }
    }
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
        cmocka_unit_test(test_codes_fit_their_bits),
        cmocka_unit_test(test_numbers_are_no_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
