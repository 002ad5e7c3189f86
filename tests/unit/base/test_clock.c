// SPDX-License-Identifier: Apache-2.0
// Purpose: deadlines saturate and round in the direction that does not spin.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"

static void test_deadline_negative_and_huge_mean_none(void **state) {
    (void)state;
    assert_true(sl_deadline_in_ms(-1) == SL_NO_DEADLINE);
    assert_true(sl_deadline_in_ms(INT64_MAX) == SL_NO_DEADLINE);
    assert_true(sl_deadline_left_ms(SL_NO_DEADLINE) == INT64_MAX);
}

static void test_deadline_left_is_never_negative(void **state) {
    (void)state;
    assert_int_equal(sl_deadline_left_ms(sl_now_ns() - SL_NS_PER_S), 0);
    assert_int_equal(sl_deadline_left_ms(0), 0);
}

static void test_deadline_left_rounds_up(void **state) {
    (void)state;
    int64_t left = sl_deadline_left_ms(sl_deadline_in_ms(60000));
    assert_in_range(left, 59000, 60000);
    // A tenth of a second in nanoseconds is still "1 ms" to a poll() and not a busy loop of zeros.
    assert_in_range(sl_deadline_left_ms(sl_now_ns() + 90 * SL_NS_PER_MS + 1), 1, 91);
}

static void test_deadline_timespec_splits_seconds(void **state) {
    (void)state;
    struct timespec t = sl_deadline_timespec(3 * SL_NS_PER_S + 7);
    assert_int_equal(t.tv_sec, 3);
    assert_int_equal(t.tv_nsec, 7);
    t = sl_deadline_timespec(-5);
    assert_int_equal(t.tv_sec, 0);
    assert_int_equal(t.tv_nsec, 0);
}

static void test_sleep_sleeps_at_least_that_long(void **state) {
    (void)state;
    int64_t begin = sl_now_ns();
    sl_sleep_ms(15);
    assert_true(sl_now_ns() - begin >= 15 * SL_NS_PER_MS);
    sl_sleep_ms(-1);
}

static void test_wall_clock_is_in_this_century(void **state) {
    (void)state;
    assert_true(sl_wall_ms() > 1600000000000LL);
}

// As the C library has it: the ends of months, leap years and centuries, and days in between.
static void test_utc_text_is_the_calendars(void **state) {
    (void)state;
    const int64_t day = 86400;
    for (int64_t seconds = 0; seconds < 200 * 366 * day; seconds += day / 2 - 1) {
        char wanted[64], found[SL_UTC_BYTES];
        struct tm tm;
        time_t when = (time_t)seconds;
        strftime(wanted, sizeof wanted, "%Y-%m-%dT%H:%M:%S.007Z", gmtime_r(&when, &tm));
        sl_utc_text(seconds * 1000 + 7, found);
        assert_string_equal(found, wanted);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadline_negative_and_huge_mean_none),
        cmocka_unit_test(test_deadline_left_is_never_negative),
        cmocka_unit_test(test_deadline_left_rounds_up),
        cmocka_unit_test(test_deadline_timespec_splits_seconds),
        cmocka_unit_test(test_sleep_sleeps_at_least_that_long),
        cmocka_unit_test(test_wall_clock_is_in_this_century),
        cmocka_unit_test(test_utc_text_is_the_calendars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
