// SPDX-License-Identifier: Apache-2.0
// Purpose: silence is counted while a process listens, and not while the listener stands still.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/liveness_timer.h"

static void test_silence_grows_until_it_ends(void **state) {
    (void)state;
    struct sl_liveness_timer liveness;
    sl_liveness_timer_reset(&liveness, 1000);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1000, 50), 0);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1050, 50), 50);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1090, 50), 90);
    sl_liveness_timer_reset(&liveness, 1100);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1130, 50), 30);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1120, 50), 20); // clocks of two threads
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1180, 50), 80);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1090, 50), 0);
}

static void test_silence_is_not_what_nobody_listened(void **state) {
    (void)state;
    struct sl_liveness_timer liveness;
    sl_liveness_timer_reset(&liveness, 1000);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 1040, 50), 40);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 9040, 50), 90); // a look counts 50, however late it comes
    assert_int_equal(sl_liveness_timer_poll(&liveness, 9080, 50), 130);
    sl_liveness_timer_reset(&liveness, 9100);
    assert_int_equal(sl_liveness_timer_poll(&liveness, 19100, 50), 50); // late after a message as well
    for (int i = 1; i <= 10; i++) { // a caller that is always late finds out all the same
        assert_int_equal(sl_liveness_timer_poll(&liveness, 19100 + 200 * i, 50), 50 + 50 * i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silence_grows_until_it_ends),
        cmocka_unit_test(test_silence_is_not_what_nobody_listened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
