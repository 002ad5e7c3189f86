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

static void test_reason_and_culprit_stay_until_the_next_cause(void **state) {
    (void)state;
    struct sl_error err, outer;
    sl_fail(&err, SL_ERR_EXHAUSTED, "no room");
    assert_int_equal(err.reason, SL_REASON_NONE);
    assert_string_equal(err.culprit, "");
    sl_error_blame(&err, SL_REASON_STORE, "10.0.0.1:7010");
    sl_error_prefix(&err, "prefill-0");
    sl_fail_from(&outer, SL_ERR_PEER_LOST, &err, "job 1: %s", err.text);
    assert_int_equal(outer.status, SL_ERR_PEER_LOST);
    assert_string_equal(outer.text, "job 1: prefill-0: no room");
    sl_fail_from(&outer, SL_ERR_PEER_LOST, &outer, "again: %s", outer.text); // from itself
    assert_int_equal(outer.reason, SL_REASON_STORE);
    assert_string_equal(outer.culprit, "10.0.0.1:7010");
    assert_int_equal(sl_fail_from(NULL, SL_ERR_IO, &err, "unheard"), SL_ERR_IO);
    sl_error_blame(NULL, SL_REASON_STORE, "10.0.0.1:7010");
    sl_fail(&outer, SL_ERR_IO, "disk full");
    assert_int_equal(outer.reason, SL_REASON_NONE);
    assert_string_equal(outer.culprit, "");
}

static void test_culprits_are_whole_addresses(void **state) {
    (void)state;
    struct sl_error err;
    char text[SL_CULPRIT_BYTES];
    sl_fail(&err, SL_ERR_EXHAUSTED, "no room");
    sl_error_blame(&err, SL_REASON_STORE, "10.0.0.1:7010");
    sl_error_blame(&err, SL_REASON_STORE, "[::1]:7011");
    sl_error_blame(&err, SL_REASON_STORE, "10.0.0.1:7010"); // once
    assert_string_equal(err.culprit, "10.0.0.1:7010,[::1]:7011");
    assert_true(sl_error_blames(&err, "10.0.0.1:7010"));
    assert_true(sl_error_blames(&err, "[::1]:7011"));
    static const char *const others[] = {"10.0.0.1:701", "0.0.0.1:7010", "10.0.0.1:7010,[::1]:7011", "", ","};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_false(sl_error_blames(&err, others[i]));
    }
    static const char *const none[] = {"", "a b:1", "a:1,b:1", "a:1\n", "\xc3\xa4:1"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        sl_error_blame(&err, SL_REASON_STORE, none[i]);
    }
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sl_error_blame(&err, SL_REASON_STORE, text); // there is no room beside the others
    assert_string_equal(err.culprit, "10.0.0.1:7010,[::1]:7011");
    sl_fail(&err, SL_ERR_EXHAUSTED, "no room");
    sl_error_blame(&err, SL_REASON_STORE, text);
    assert_string_equal(err.culprit, text);
}

static void test_reasons_have_names(void **state) {
    (void)state;
    static const enum sl_reason all[] = {
#define X(name, text, scope) SL_REASON_##name,
        SL_REASON_MAP(X)
#undef X
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *name = sl_reason_name(all[i]);
        assert_int_equal(sl_reason_of_name(name, strlen(name)), all[i]);
    }
    assert_int_equal(sl_reason_of_name("store2", 5), SL_REASON_STORE);
    assert_int_equal(sl_reason_of_name("stor", 4), SL_REASON_NONE);
    assert_int_equal(sl_reason_of_name("of-tomorrow", 11), SL_REASON_NONE);
    assert_string_equal(sl_reason_name((enum sl_reason)99), "");
    assert_false(sl_reason_is_sent((enum sl_reason)99));
    assert_false(sl_reason_is_sent(SL_REASON_UNCONNECTED));
    assert_true(sl_reason_is_sent(SL_REASON_OLD_TERM));
}

static enum sl_status count_calls(int *n_inout, enum sl_status status) {
    ++*n_inout;
    return status;
}

static void test_then_goes_on_after_success_alone(void **state) {
    (void)state;
    int n = 0;
    enum sl_status status = SL_OK;
    SL_THEN(status, count_calls(&n, SL_OK));
    SL_THEN_IF(status, n == 2, count_calls(&n, SL_ERR_IO));
    assert_int_equal(n, 1);
    SL_THEN_IF(status, n == 1, count_calls(&n, SL_ERR_IO));
    assert_int_equal(status, SL_ERR_IO);
    SL_THEN(status, count_calls(&n, SL_OK));
    SL_THEN_IF(status, true, count_calls(&n, SL_OK));
    assert_int_equal(n, 2);
    assert_int_equal(status, SL_ERR_IO);
}

static void destroy(int **n_inout) {
    SL_TAKE_OR_RETURN(n, n_inout);
    ++*n;
}

static void test_what_is_destroyed_is_taken_once(void **state) {
    (void)state;
    int n = 0, *at = &n;
    destroy(&at);
    assert_null(at);
    destroy(&at);
    assert_int_equal(n, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_texts_are_distinct),
        cmocka_unit_test(test_fail_records_status_and_text),
        cmocka_unit_test(test_fail_may_quote_its_own_text),
        cmocka_unit_test(test_fail_cuts_long_texts),
        cmocka_unit_test(test_prefix_is_put_in_front),
        cmocka_unit_test(test_reason_and_culprit_stay_until_the_next_cause),
        cmocka_unit_test(test_culprits_are_whole_addresses),
        cmocka_unit_test(test_reasons_have_names),
        cmocka_unit_test(test_then_goes_on_after_success_alone),
        cmocka_unit_test(test_what_is_destroyed_is_taken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
