// SPDX-License-Identifier: Apache-2.0
// Purpose: the values of SipHash-2-4-128 are those of its paper's vectors and of another implementation.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "base/salted_hash.h"

// Salt 00 01 02 ..., data 00 01 02 ...: the first rows are in the paper's reference vectors; all by `openssl mac SIPHASH`.
static void test_salted_hash_is_siphash(void **state) {
    (void)state;
    static const struct {
        size_t bytes;
        struct sl_hash128 hash;
    } rows[] = {
        {0, {{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93}}},
        {1, {{0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45}}},
        {7, {{0xa1, 0xf1, 0xeb, 0xbe, 0xd8, 0xdb, 0xc1, 0x53, 0xc0, 0xb8, 0x4a, 0xa6, 0x1f, 0xf0, 0x82, 0x39}}},
        {8, {{0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97, 0xb4}}},
        {15, {{0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf, 0xc3, 0xd9}}},
        {63, {{0x51, 0x50, 0xd1, 0x77, 0x2f, 0x50, 0x83, 0x4a, 0x50, 0x3e, 0x06, 0x9a, 0x97, 0x3f, 0xbd, 0x7c}}},
        {272, {{0xec, 0x83, 0x31, 0xf9, 0xa6, 0x8a, 0x08, 0xea, 0x1e, 0xb4, 0x51, 0x44, 0x51, 0x6e, 0xe8, 0x96}}},
    };
    struct sl_hash128 salt;
    uint8_t data[272];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)i;
    }
    memcpy(&salt, data, sizeof salt);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_hash128 hash = sl_salted_hash(&salt, data, rows[i].bytes);
        assert_memory_equal(&hash, &rows[i].hash, sizeof hash);
    }
}

static void test_hash128_of_another_length_is_not_read(void **state) {
    (void)state;
    static const uint8_t data[17] = {1, 2, 3};
    struct sl_hash128 hash = {{9}};
    assert_false(sl_hash128_read(data, 15, &hash));
    assert_false(sl_hash128_read(data, 17, &hash));
    assert_false(sl_hash128_read(NULL, 0, &hash));
    assert_int_equal(hash.bytes[0], 9);
    assert_true(sl_hash128_read(data, 16, &hash));
    assert_memory_equal(&hash, data, sizeof hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_salted_hash_is_siphash),
        cmocka_unit_test(test_hash128_of_another_length_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
