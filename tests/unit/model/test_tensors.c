// SPDX-License-Identifier: Apache-2.0
// Purpose: the form in memory of tensors of quantized blocks: codes, f16 where it has room for them, else bf16.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/model/tensors.h"
#include "engine/tensor/half.h"

#define N_BLOCKS 3

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, Q2_K = 10, Q6_K = 14, BF16 = 30 };

struct blocks {
    unsigned char bytes[N_BLOCKS * 210];
    struct sl_tensor_source source;
};

// Makes blocks of a type, or numbers. The halves at `at` of the last block, s or D and the m or M after it, are the arguments.
static const struct sl_tensor_source *make(struct blocks *b, uint32_t id, int at, float scale, float offset) {
    const char *name;
    const struct sl_block_type *type = sl_block_type(id, &name);
    assert_non_null(type);
    memset(b, 0, sizeof *b);
    uint16_t halves[] = {sl_f32_to_f16(scale), sl_f32_to_f16(offset)};
    memcpy(b->bytes + (N_BLOCKS - 1) * type->bytes + at, halves, type->bytes - (size_t)at >= 4 ? 4 : 2);
    b->source = (struct sl_tensor_source){.type = type,
                                   .data = b->bytes,
                                   .bytes = N_BLOCKS * type->bytes,
                                   .rows = 1,
                                   .columns = N_BLOCKS * type->n_weights};
    return &b->source;
}

static void assert_becomes(uint32_t id, int at, float scale, float offset, enum sl_dtype dtype) {
    struct blocks b;
    make(&b, id, at, scale, offset);
    assert_int_equal(sl_sources_type(&b.source, 1, SL_F16, SL_WEIGHT_STORED), dtype);
    assert_int_equal(sl_sources_type(&b.source, 1, SL_BF16, SL_WEIGHT_STORED), dtype == SL_F16 ? SL_BF16 : dtype);
}

static void test_blocks_without_codes_become_f16_where_it_has_room(void **state) {
    (void)state;
    assert_becomes(Q4_1, 0, 0.01F, -0.1F, SL_F16);
    assert_becomes(Q6_K, 208, 1e-5F, 0, SL_F16);
    assert_becomes(Q2_K, 80, 0.01F, 0.01F, SL_F16);
    assert_becomes(Q2_K, 80, 0, 1, SL_F16);
    // 15 s + |m| is more than f16 has, and an infinite scale is
    assert_becomes(Q4_1, 0, 4300, 0, SL_F16);
    assert_becomes(Q4_1, 0, 4300, -2000, SL_BF16);
    assert_becomes(Q6_K, 208, -17, 0, SL_BF16);
    assert_becomes(Q2_K, 80, 0, 5000, SL_BF16);
    assert_becomes(Q4_1, 0, INFINITY, 0, SL_BF16);
    assert_becomes(Q4_1, 0, NAN, 0, SL_BF16);
    // where all are so small that f16 loses their bits
    assert_becomes(Q4_1, 0, 6e-5F, 0, SL_BF16);
    assert_becomes(Q4_1, 0, 0, 0, SL_BF16);
}

static void test_types_of_ours_stay(void **state) {
    (void)state;
    assert_becomes(Q8_0, 0, 1e-6F, 0, SL_Q8_0);
    assert_becomes(Q4_0, 0, 60000, 0, SL_Q4_0);
    assert_becomes(F32, 0, 0, 0, SL_F32);
    assert_becomes(BF16, 0, 0, 0, SL_BF16);
}

// q, k and v, or gate and up, have one type.
static void test_parts_take_what_all_of_them_need(void **state) {
    (void)state;
    static const struct {
        uint32_t second;
        float scale;
        enum sl_dtype dtype;
    } cases[] = {
        {Q4_1, 0.01F, SL_F16}, {Q8_0, 0.01F, SL_F16}, {Q8_0, 1000, SL_BF16}, {Q4_1, 10000, SL_BF16},
        {F16, 0, SL_F16},      {BF16, 0, SL_BF16},    {F32, 0, SL_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct blocks first, second;
        struct sl_tensor_source parts[] = {*make(&first, Q4_1, 0, 0.01F, 0.1F),
                                    *make(&second, cases[i].second, 0, cases[i].scale, 0)};
        assert_int_equal(sl_sources_type(parts, 2, SL_F16, SL_WEIGHT_STORED), cases[i].dtype);
        // what is quantized anyway is rounded once
        assert_int_equal(sl_sources_type(parts, 2, SL_F16, SL_WEIGHT_INT8), SL_F32);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_without_codes_become_f16_where_it_has_room),
        cmocka_unit_test(test_types_of_ours_stay),
        cmocka_unit_test(test_parts_take_what_all_of_them_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
