// SPDX-License-Identifier: Apache-2.0
// Purpose: the coordinator whose requests a worker accepts, by its term.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "net/node/term_guard.h"

static void test_term_guard_takes_the_highest_term(void **state) {
    (void)state;
    struct sl_term_guard term_guard = {0};
    struct sl_error err = {0};
    assert_int_equal(sl_term_guard_check(&term_guard, 0, &err), SL_OK); // of a coordinator that is alone
    assert_int_equal(sl_term_guard_check(&term_guard, 5, &err), SL_OK);
    assert_int_equal(sl_term_guard_check(&term_guard, 5, &err), SL_OK);
    assert_int_equal(sl_term_guard_check(&term_guard, 4, &err), SL_ERR_PEER_STALE);
    assert_true(sl_term_is_refusal(SL_ERR_PEER_STALE, &err));
    assert_non_null(strstr(err.text, "4"));
    assert_non_null(strstr(err.text, "5"));
    assert_int_equal(sl_term_guard_check(&term_guard, 0, &err), SL_ERR_PEER_STALE); // no term is older than any
    const struct sl_identity worker = {.role = SL_ROLE_WORKER}, coordinator = {.role = SL_ROLE_COORDINATOR};
    assert_int_equal(sl_term_guard_check_if_any(&term_guard, &worker, 0, &err), SL_OK);
    assert_int_equal(sl_term_guard_check_if_any(&term_guard, &coordinator, 4, &err), SL_ERR_PEER_STALE);
    assert_int_equal(sl_term_guard_check_if_any(&term_guard, &worker, (int64_t)1 << 62, &err), SL_OK); // a lie
    assert_int_equal(sl_term_guard_check_if_any(&term_guard, &coordinator, 5, &err), SL_OK);
    sl_term_guard_hear(&term_guard, 9); // from the answer to a beat
    sl_term_guard_hear(&term_guard, 7);
    assert_int_equal(sl_term_guard_check(&term_guard, 8, &err), SL_ERR_PEER_STALE);
    assert_int_equal(sl_term_guard_check(&term_guard, 9, &err), SL_OK);
}

static void test_a_refusal_is_told_from_other_stale_things(void **state) {
    (void)state;
    struct sl_error err = {0};
    sl_term_refuse(1, 2, &err);
    sl_error_prefix(&err, "decode-0"); // as it is passed on
    assert_true(sl_term_is_refusal(SL_ERR_PEER_STALE, &err));
    assert_false(sl_term_is_refusal(SL_ERR_PEER_LOST, &err));
    sl_fail_from(&err, SL_ERR_PEER_STALE, &err, "the call: %s", err.text);
    assert_true(sl_term_is_refusal(SL_ERR_PEER_STALE, &err));
    struct sl_error quoted;
    sl_fail(&quoted, SL_ERR_PEER_STALE, "%s", err.text); // its words alone are none
    assert_false(sl_term_is_refusal(SL_ERR_PEER_STALE, &quoted));
    sl_fail(&err, SL_ERR_PEER_STALE, "the lease has ended");
    assert_false(sl_term_is_refusal(SL_ERR_PEER_STALE, &err));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_term_guard_takes_the_highest_term),
        cmocka_unit_test(test_a_refusal_is_told_from_other_stale_things),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
