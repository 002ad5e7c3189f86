// SPDX-License-Identifier: Apache-2.0
// Purpose: layouts of key indexes: sizes by hand, alignment, and what is refused.
#include "engine/kvcache/key_index.h"
#include "tests/unit/kvcache/fixture.h"

static void test_key_index_layout_has_the_sizes_of_the_drawing(void **state) {
    (void)state;
    struct sl_key_index_layout l;
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_F16, 128, 2048), SL_OK);
    assert_int_equal(l.capacity, 2048);
    assert_int_equal(l.absmax, 0);
    assert_int_equal(l.codes, 128 * 4); // no scales
    assert_int_equal(l.channel_bytes, 2048 * 2);
    assert_int_equal(l.bytes, 128 * 4 + 128 * 2048 * 2);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_INT8, 64, 65), SL_OK); // a slot of a second page
    assert_int_equal(l.capacity, 128);
    assert_int_equal(l.scale, 64 * 4);
    assert_int_equal(l.codes, 2 * 64 * 4);
    assert_int_equal(l.channel_bytes, 128);
    assert_int_equal(l.bytes, 2 * 64 * 4 + 64 * 128);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_INT1, 8, 600), SL_OK); // 32 bytes of floats, 80 bytes of bits
    assert_int_equal(l.capacity, 640);
    assert_int_equal(l.scale, 64);
    assert_int_equal(l.codes, 128);
    assert_int_equal(l.channel_bytes, 128);
    assert_int_equal(l.bytes, 128 + 8 * 128);
}

static void test_key_index_layout_parts_are_aligned_and_hold_every_slot(void **state) {
    (void)state;
    static const enum sl_kv_format formats[] = {SL_KV_F32, SL_KV_F16, SL_KV_BF16, SL_KV_INT8, SL_KV_INT1};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        for (int d = 8; d <= 512; d += 8) {
            for (uint32_t n = 1; n < 1500; n += 61) {
                struct sl_key_index_layout l;
                assert_int_equal(sl_key_index_layout_init(&l, formats[f], d, n), SL_OK);
                assert_true(l.capacity >= n && l.capacity < n + SL_PAGE_SLOTS && l.capacity % SL_PAGE_SLOTS == 0);
                assert_true(l.absmax % 64 == 0 && l.scale % 64 == 0 && l.codes % 64 == 0 && l.bytes % 64 == 0);
                assert_true(l.scale >= l.absmax + 4 * (uint32_t)d);
                assert_true(l.codes >= l.scale + (sl_kv_format_is_quantized(formats[f]) ? 4 * (uint32_t)d : 0));
                assert_true(l.channel_bytes % 64 == 0);
                assert_true(l.channel_bytes * 8 >= (size_t)l.capacity * (size_t)sl_kv_format_bits(formats[f]));
                assert_int_equal(l.bytes, l.codes + (size_t)d * l.channel_bytes);
            }
        }
    }
    struct sl_key_index_layout large; // sizes beyond 32 bits
    assert_int_equal(sl_key_index_layout_init(&large, SL_KV_F32, 512, 1u << 30), SL_OK);
    assert_true(large.bytes == 512 * 4 + ((size_t)512 << 32));
}

static void test_key_index_layout_refuses_what_it_cannot_hold(void **state) {
    (void)state;
    struct sl_key_index_layout l;
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_INT4, 64, 64), SL_ERR_INVALID);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_INT2, 64, 64), SL_ERR_INVALID);
    assert_int_equal(sl_key_index_layout_init(&l, (enum sl_kv_format)SL_KV_N_FORMATS, 64, 64), SL_ERR_INVALID);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_F16, 0, 64), SL_ERR_INVALID);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_F16, 12, 64), SL_ERR_INVALID);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_F16, 520, 64), SL_ERR_INVALID);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_F16, 64, 0), SL_ERR_INVALID);
    assert_int_equal(sl_key_index_layout_init(&l, SL_KV_F16, 64, UINT32_MAX), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_index_layout_has_the_sizes_of_the_drawing),
        cmocka_unit_test(test_key_index_layout_parts_are_aligned_and_hold_every_slot),
        cmocka_unit_test(test_key_index_layout_refuses_what_it_cannot_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
