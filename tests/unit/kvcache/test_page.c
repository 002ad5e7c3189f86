// SPDX-License-Identifier: Apache-2.0
// Purpose: page layouts: names, sizes by hand, alignment, and no two parts on the same bytes.
#include "tests/unit/kvcache/fixture.h"

static const enum sl_kv_format pairs[] = {
#define X(word, wire, ...) (enum sl_kv_format) wire,
    SL_KV_PAIRS(X)
#undef X
};
#define N_PAIRS (sizeof pairs / sizeof pairs[0])

static void test_format_names_round_trip(void **state) {
    (void)state;
    enum sl_kv_format format = SL_KV_F32;
    for (int f = 0; f < SL_KV_N_FORMATS; f++) {
        assert_int_equal(sl_kv_format_parse(sl_kv_format_name((enum sl_kv_format)f), &format), SL_OK);
        assert_int_equal(format, f);
    }
    assert_int_equal(sl_kv_format_parse("int5", &format), SL_ERR_INVALID);
    assert_int_equal(sl_kv_format_parse("k4v4", &format), SL_ERR_INVALID); // that is int4
    for (size_t i = 0; i < N_PAIRS; i++) {
        assert_int_equal(sl_kv_format_parse(sl_kv_format_name(pairs[i]), &format), SL_OK);
        assert_int_equal(format, pairs[i]);
        assert_true(sl_kv_format_is_quantized(pairs[i]) && sl_kv_format_is_of_page(pairs[i]));
        assert_false(sl_kv_format_is_known(pairs[i]));
    }
    assert_int_equal(sl_kv_format_parse("k4v2", &format), SL_OK);
    assert_int_equal(sl_kv_format_keys(format), SL_KV_INT4);
    assert_int_equal(sl_kv_format_values(format), SL_KV_INT2);
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
    enum sl_kv_format pair;
    assert_int_equal(sl_kv_format_parse("k4v2", &pair), SL_OK);
    assert_int_equal(sl_page_layout_init(&l, pair, 128, 0, true), SL_OK);
    assert_int_equal(l.bytes, 64 * 128 / 2 + 128 * 4 + 64 * 128 / 4 + 64 * 2 * 4 + 64 * 4);
    assert_int_equal(sl_kv_format_parse("k4v3", &pair), SL_OK); // 3 bytes hold 8 codes of 3 bits
    assert_int_equal(sl_page_layout_init(&l, pair, 128, 0, true), SL_OK);
    assert_int_equal(l.bytes, 64 * 128 / 2 + 128 * 4 + 64 * 128 / 8 * 3 + 64 * 2 * 4 + 64 * 4);
    assert_int_equal(sl_kv_format_parse("k16v2", &pair), SL_OK); // floats have no scales
    assert_int_equal(sl_page_layout_init(&l, pair, 64, 1, false), SL_OK);
    assert_int_equal(l.bytes, 64 * 64 * 2 + 64 * 64 / 4 + 64 * 4 + 64 * 4);
}

static void test_layout_parts_are_aligned_and_apart(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_KV_N_FORMATS + N_PAIRS; i++) {
        enum sl_kv_format f = i < SL_KV_N_FORMATS ? (enum sl_kv_format)i : pairs[i - SL_KV_N_FORMATS];
        for (int d = 8; d <= 512; d += 8) {
            struct sl_page_layout l;
            enum sl_status status = sl_page_layout_init(&l, f, d, 3, true);
            if (sl_kv_format_is_quantized(f) && d > 64 && d % 32 != 0) {
                assert_int_equal(status, SL_ERR_INVALID);
                continue;
            }
            assert_int_equal(status, SL_OK);
            const uint32_t starts[] = {l.k, l.k_scale, l.v, l.v_scale, l.positions, l.states, l.bytes};
            for (int part = 0; part < 7; part++) {
                assert_int_equal(starts[part] % 64, 0);
                assert_true(part == 0 || starts[part] >= starts[part - 1]);
            }
            uint32_t k_rows = (uint32_t)(64 * d * sl_kv_format_bits(sl_kv_format_keys(f)) / 8);
            uint32_t v_rows = (uint32_t)(64 * d * sl_kv_format_bits(sl_kv_format_values(f)) / 8);
            assert_true(l.k_scale - l.k >= k_rows && l.v_scale - l.v >= v_rows);
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
    assert_int_equal(sl_page_layout_init(&l, (enum sl_kv_format)31, 64, 0, false), SL_ERR_INVALID); // before the pairs
    assert_int_equal(sl_page_layout_init(&l, (enum sl_kv_format) - 1, 64, 0, false), SL_ERR_INVALID);
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
