// SPDX-License-Identifier: Apache-2.0
// Purpose: ids of leases do not repeat, differ where they differ, and are not to be had from their names.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/lease_id.h"

static void test_ids_are_long_and_do_not_repeat(void **state) {
    (void)state;
    enum { N = 200 };
    static char ids[N][SL_LEASE_ID_BYTES];
    for (int i = 0; i < N; i++) {
        assert_int_equal(sl_lease_id_draw("annex-", ids[i], NULL), SL_OK);
        assert_int_equal(strlen(ids[i]), strlen("annex-") + 32);
        assert_memory_equal(ids[i], "annex-", strlen("annex-"));
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(ids[i], ids[j]);
        }
    }
    // No half of the bits is one secret of the process.
    assert_memory_not_equal(ids[0] + 6, ids[1] + 6, 16);
    assert_memory_not_equal(ids[0] + 22, ids[1] + 22, 16);
}

static void test_equal_is_all_of_it(void **state) {
    (void)state;
    char id[SL_LEASE_ID_BYTES], other[SL_LEASE_ID_BYTES];
    assert_int_equal(sl_lease_id_draw("", id, NULL), SL_OK);
    assert_true(sl_lease_id_equals(id, id));
    assert_false(sl_lease_id_equals(id, ""));
    assert_false(sl_lease_id_equals("", id));
    assert_false(sl_lease_id_equals("", "")); // never drawn
    for (size_t i = 0; i < strlen(id); i++) {
        memcpy(other, id, sizeof id);
        other[i] ^= 1;
        assert_false(sl_lease_id_equals(id, other));
        other[i] = '\0';
        assert_false(sl_lease_id_equals(id, other));
    }
}

static void test_names_tell_leases_apart_and_nothing_else(void **state) {
    (void)state;
    char id[SL_LEASE_ID_BYTES], other[SL_LEASE_ID_BYTES];
    assert_int_equal(sl_lease_id_draw("pin-", id, NULL), SL_OK);
    assert_int_equal(sl_lease_id_draw("pin-", other, NULL), SL_OK);
    assert_string_equal(sl_lease_name(id).text, sl_lease_name(id).text);
    assert_string_not_equal(sl_lease_name(id).text, sl_lease_name(other).text);
    assert_null(strstr(id, sl_lease_name(id).text + 1));
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_are_long_and_do_not_repeat),
        cmocka_unit_test(test_equal_is_all_of_it),
        cmocka_unit_test(test_names_tell_leases_apart_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
