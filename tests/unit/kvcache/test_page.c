// SPDX-License-Identifier: Apache-2.0
// Purpose: page layouts: names, sizes by hand, alignment, and no two parts on the same bytes.
#include "tests/unit/kvcache/fixture.h"

static void test_format_names_round_trip(void **state) {
    (void)state;
    enum sl_kv_format format = SL_KV_F32;
    for (int f = 0; f < SL_KV_N_FORMATS; f++) {
        assert_int_equal(sl_kv_format_parse(sl_kv_format_name((enum sl_kv_format)f), &format), SL_OK);
        assert_int_equal(format, f);
    }
    assert_int_equal(sl_kv_format_parse("int3", &format), SL_ERR_INVALID);
    assert_int_equal(sl_kv_format_bits(SL_KV_INT2), 2);
    assert_int_equal(sl_kv_format_bits(SL_KV_BF16), 16);
}

static void test_layout_has_the_sizes_of_the_drawing(void **state) {
    (void)state;
    struct sl_page_layout l;
    assert_int_equal(sl_page_layout_init(&l, SL_KV_F16, 64, 0, false), SL_OK);
    assert_int_equal(l.bytes, 64 * 64 * 2 * 2);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_F32, 128, 1, true), SL_OK);
    assert_int_equal(l.bytes, 64 * 128 * 4 * 2 + 64 * 4 + 64 * 4);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_INT4, 128, 0, true), SL_OK); // two groups in a V row
    assert_int_equal(l.bytes, 2 * (64 * 128 / 2) + 128 * 4 + 64 * 2 * 4 + 64 * 4);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_INT4, 96, 0, true), SL_OK); // three
    assert_int_equal(l.bytes, 2 * (64 * 96 / 2) + 96 * 4 + 64 * 3 * 4 + 64 * 4);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_INT1, 8, 0, false), SL_OK);
    assert_int_equal(l.bytes, 64 + 64 + 64 + 64 * 4); // 8 channels' pairs are 32 bytes, padded to 64
}

static void test_layout_parts_are_aligned_and_apart(void **state) {
    (void)state;
    for (int f = 0; f < SL_KV_N_FORMATS; f++) {
        for (int d = 8; d <= 512; d += 8) {
            struct sl_page_layout l;
            enum sl_status status = sl_page_layout_init(&l, (enum sl_kv_format)f, d, 3, true);
            if (sl_kv_format_is_quantized((enum sl_kv_format)f) && d > 64 && d % 32 != 0) {
                assert_int_equal(status, SL_ERR_INVALID);
                continue;
            }
            assert_int_equal(status, SL_OK);
            const uint32_t starts[] = {l.k, l.k_scale, l.v, l.v_scale, l.positions, l.states, l.bytes};
            for (int i = 0; i < 7; i++) {
                assert_int_equal(starts[i] % 64, 0);
                assert_true(i == 0 || starts[i] >= starts[i - 1]);
            }
            uint32_t rows = (uint32_t)(64 * d * sl_kv_format_bits((enum sl_kv_format)f) / 8);
            assert_true(l.k_scale - l.k >= rows && l.v_scale - l.v >= rows);
            assert_true(l.states - l.positions >= 256 && l.bytes - l.states >= 3 * 256);
        }
    }
}

static void test_layout_refuses_what_it_cannot_hold(void **state) {
    (void)state;
    struct sl_page_layout l;
    assert_int_equal(sl_page_layout_init(&l, SL_KV_F16, 0, 0, false), SL_ERR_INVALID);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_F16, 12, 0, false), SL_ERR_INVALID);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_F16, 520, 0, false), SL_ERR_INVALID);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_F16, 64, -1, false), SL_ERR_INVALID);
    assert_int_equal(sl_page_layout_init(&l, SL_KV_F16, 64, SL_MAX_STATES + 1, false), SL_ERR_INVALID);
    assert_int_equal(sl_page_layout_init(&l, (enum sl_kv_format)SL_KV_N_FORMATS, 64, 0, false), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_names_round_trip),
        cmocka_unit_test(test_layout_has_the_sizes_of_the_drawing),
        cmocka_unit_test(test_layout_parts_are_aligned_and_apart),
        cmocka_unit_test(test_layout_refuses_what_it_cannot_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
