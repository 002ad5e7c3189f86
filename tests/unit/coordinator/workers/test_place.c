// SPDX-License-Identifier: Apache-2.0
// Purpose: a prompt is read where its answer is expected sooner, and the reason has the numbers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/workers/place.h"

static const struct sl_place_rates rates = {.tokens_per_s = 1000, .bytes_per_s = 1e6};
static char why[SL_PLACE_WHY_BYTES];

static void test_place_is_one_that_is_possible(void **state) {
    (void)state;
    struct sl_place_offer slow = {.possible = true, .line_tokens = 1000000, .other_jobs = 9}, none = {0};
    assert_true(sl_place_is_here(&slow, &none, &rates, why));
    assert_non_null(strstr(why, "no prefill worker"));
    assert_false(sl_place_is_here(&none, &slow, &rates, why));
    assert_non_null(strstr(why, "no aggregated worker"));
}

static void test_place_of_idle_workers_is_here(void **state) {
    (void)state;
    struct sl_place_offer here = {.possible = true, .unread_tokens = 500}, there = here;
    there.ship_bytes = 1;
    assert_true(sl_place_is_here(&here, &there, &rates, why)); // nothing travels
    assert_string_equal(
        why, "0.50 s here (0 tokens in line, 0 other jobs), 0.50 s there (0 tokens in line, 0.00 s to ship)");
    there.ship_bytes = 0;
    assert_true(sl_place_is_here(&here, &there, &rates, why));
}

static void test_place_weighs_answers_lines_and_the_link(void **state) {
    (void)state;
    struct sl_place_offer here = {.possible = true, .unread_tokens = 500, .other_jobs = 1}, there = {0};
    there.possible = true;
    there.unread_tokens = 500;
    there.other_jobs = 3;      // whose prompts are in line; a prefill worker writes nothing
    there.ship_bytes = 400000; // 1 s here, 0.9 s there
    assert_false(sl_place_is_here(&here, &there, &rates, why));
    assert_non_null(strstr(why, "1.00 s here (0 tokens in line, 1 other jobs), 0.90 s there"));
    there.ship_bytes = 600000; // a full cache over a slow link
    assert_true(sl_place_is_here(&here, &there, &rates, why));
    there.ship_bytes = 0;
    there.line_tokens = 600;
    assert_true(sl_place_is_here(&here, &there, &rates, why));
    here.unread_tokens = 0; // a stored prompt costs no reading in either place
    there.unread_tokens = there.line_tokens = 0;
    there.ship_bytes = 1000;
    assert_true(sl_place_is_here(&here, &there, &rates, why));
}

static void test_place_without_rates_compares_tokens(void **state) {
    (void)state;
    const struct sl_place_rates unknown = {0};
    struct sl_place_offer here = {.possible = true, .unread_tokens = 500}, there = here;
    there.ship_bytes = 1000000000;
    assert_true(sl_place_is_here(&here, &there, &unknown, why));
    assert_non_null(strstr(why, "no rate is measured yet"));
    here.other_jobs = 1;
    assert_false(sl_place_is_here(&here, &there, &unknown, why)); // which measures both rates
}

static void test_place_rates_follow_measurements(void **state) {
    (void)state;
    struct sl_place_rates measured = {0};
    sl_place_note(&measured.tokens_per_s, 100, 0.1); // too short for a clock
    sl_place_note(&measured.tokens_per_s, 0, 100);
    sl_place_note(&measured.tokens_per_s, -5, 100);
    sl_place_note(&measured.tokens_per_s, 100, 0.0 / 0.0);
    assert_true(measured.tokens_per_s == 0);
    sl_place_note(&measured.tokens_per_s, 1000, 500);
    assert_true(measured.tokens_per_s == 2000);
    for (int i = 0; i < 40; i++) {
        sl_place_note(&measured.tokens_per_s, 1000, 1000);
    }
    assert_true(measured.tokens_per_s > 999 && measured.tokens_per_s < 1001);
    sl_place_note(&measured.bytes_per_s, 1000000, 100);
    assert_true(measured.bytes_per_s == 1e7);
}

static void test_place_restore_takes_no_longer_than_reading(void **state) {
    (void)state;
    assert_int_equal(sl_place_restore_ms(0, 100000), 0); // not known
    assert_int_equal(sl_place_restore_ms(-1, 100000), 0);
    assert_int_equal(sl_place_restore_ms(1e300, 100000), 0);
    assert_int_equal(sl_place_restore_ms(20000, 0), 0);
    assert_int_equal(sl_place_restore_ms(20000, INT64_MAX), 20000); // no deadline
    assert_int_equal(sl_place_restore_ms(20000, 40000), 20000);
    assert_int_equal(sl_place_restore_ms(20000, 30000), 10000); // then it is read in time
    assert_int_equal(sl_place_restore_ms(20000, 20000), 20000); // only the store can be in time
    assert_int_equal(sl_place_restore_ms(20000, 500), 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place_is_one_that_is_possible),
        cmocka_unit_test(test_place_of_idle_workers_is_here),
        cmocka_unit_test(test_place_weighs_answers_lines_and_the_link),
        cmocka_unit_test(test_place_without_rates_compares_tokens),
        cmocka_unit_test(test_place_rates_follow_measurements),
        cmocka_unit_test(test_place_restore_takes_no_longer_than_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
