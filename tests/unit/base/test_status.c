// SPDX-License-Identifier: Apache-2.0
// Purpose: statuses have texts, and errors keep the first cause.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/status.h"

static void test_status_texts_are_distinct(void **state) {
    (void)state;
    static const enum sl_status all[] = {
#define X(name, number, text) SL_##name,
        SL_STATUS_MAP(X)
#undef X
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_true(strlen(sl_status_text(all[i])) > 0);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(sl_status_text(all[i]), sl_status_text(all[j]));
        }
    }
    assert_string_equal(sl_status_text((enum sl_status) - 999), "unknown status");
}

static void test_fail_records_status_and_text(void **state) {
    (void)state;
    struct sl_error err = {0};
    assert_int_equal(sl_fail(&err, SL_ERR_RANGE, "%s has %d", "x", 3), SL_ERR_RANGE);
    assert_int_equal(err.status, SL_ERR_RANGE);
    assert_string_equal(err.text, "x has 3");
    assert_int_equal(sl_fail(NULL, SL_ERR_IO, "unheard"), SL_ERR_IO);
}

static void test_fail_may_quote_its_own_text(void **state) {
    (void)state;
    struct sl_error err = {0};
    sl_fail(&err, SL_ERR_IO, "disk full");
    sl_fail(&err, SL_ERR_INTERNAL, "while saving: %s", err.text);
    assert_string_equal(err.text, "while saving: disk full");
}

static void test_fail_cuts_long_texts(void **state) {
    (void)state;
    struct sl_error err = {0};
    char text[1000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sl_fail(&err, SL_ERR_IO, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    sl_error_prefix(&err, "file");
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_memory_equal(err.text, "file: aaa", 9);
    text[900] = '\0';
    sl_error_prefix(&err, text); // a prefix that leaves no room at all
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

static void test_prefix_is_put_in_front(void **state) {
    (void)state;
    struct sl_error err = {0};
    sl_fail(&err, SL_ERR_IO, "disk full");
    sl_error_prefix(&err, "save");
    assert_string_equal(err.text, "save: disk full");
    assert_int_equal(err.status, SL_ERR_IO);
    sl_error_prefix(NULL, "nobody");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_texts_are_distinct),   cmocka_unit_test(test_fail_records_status_and_text),
        cmocka_unit_test(test_fail_may_quote_its_own_text), cmocka_unit_test(test_fail_cuts_long_texts),
        cmocka_unit_test(test_prefix_is_put_in_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
