// SPDX-License-Identifier: Apache-2.0
// Purpose: hashes are stored and sent, so their values may never change.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

static void test_hash_values_are_xxh3(void **state) {
    (void)state;
    // The published value of XXH3_64bits for empty input without a seed.
    assert_true(sl_hash("", 0, 0) == 0x2D06800538D394C2ULL);
    assert_true(sl_hash("sluice", 6, 0) == sl_hash("sluice", 6, 0));
}

static void test_hash_depends_on_seed_and_every_byte(void **state) {
    (void)state;
    unsigned char data[300] = {0};
    uint64_t plain = sl_hash(data, sizeof data, 1);
    assert_true(plain != sl_hash(data, sizeof data, 2));
    assert_true(plain != sl_hash(data, sizeof data - 1, 1));
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = 1;
        assert_true(plain != sl_hash(data, sizeof data, 1));
        data[i] = 0;
    }
}

// A register of which an upper half is in use slows all SSE code of the thread.
static void test_upper_halves_of_registers_are_free(void **state) {
    (void)state;
#ifdef __x86_64__
    unsigned a = 0, b, c, d;
    char data[4096] = {0};
    if (!__get_cpuid_count(13, 1, &a, &b, &c, &d) || !(a & 4)) {
        skip(); // the processor does not tell what is in use
    }
    assert_true(sl_hash(data, sizeof data, 1) != 0);
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
    assert_int_equal(a & 0x44, 0); // of YMM and ZMM
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_values_are_xxh3),
        cmocka_unit_test(test_hash_depends_on_seed_and_every_byte),
        cmocka_unit_test(test_upper_halves_of_registers_are_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
