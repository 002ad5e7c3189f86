// SPDX-License-Identifier: Apache-2.0
// Bodies of POST /v1/documents: what is refused before it is parsed, and before the coordinator is called.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "base/clock.h"
#include "gateway/documents.h"

static struct sl_intake_turn turn;
static struct sl_limits *limits;
static atomic_llong held_bytes;
static struct sl_refusal refusal;

static int set_up(void **state) {
    (void)state;
    struct sl_error err;
    sl_intake_turn_init(&turn);
    atomic_store(&held_bytes, 0);
    return sl_limits_create(&limits, &err) == SL_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_limits_destroy(&limits);
    sl_intake_turn_cleanup(&turn);
    return 0;
}

static bool goes_on(void *arg) {
    (void)arg;
    return false;
}

static bool has_stopped(void *arg) {
    (void)arg;
    return true;
}

// Posts a body of n bytes, of which `begin` are the first, and x the rest.
static enum sl_status post(const char *begin, size_t n, bool (*stopped)(void *arg)) {
    struct sl_intake intake = {.n_body = n,
                               .body_bytes = n + 1,
                               .held_bytes = &held_bytes,
                               .json = {.held = &held_bytes, .most_held = INT64_MAX},
                               .turn = &turn,
                               .limits = limits,
                               .who = sl_api_key_anybody};
    intake.body = malloc(n + 1);
    assert_non_null(intake.body);
    memset(intake.body, 'x', n);
    memcpy(intake.body, begin, strlen(begin));
    atomic_fetch_add(&held_bytes, (long long)intake.body_bytes);
    const struct sl_document_call call = {.verb = SL_DOCUMENT_ADD, .name = "", .deadline_ms = 1000, .stopped = stopped};
    char *json = NULL;
    enum sl_status status = sl_document_call_run(&call, &intake, &json, &refusal);
    assert_null(json);
    assert_true(intake.body == NULL && atomic_load(&held_bytes) == 0);
    return status;
}

static void test_long_bodies_take_turns_or_are_refused_unparsed(void **state) {
    (void)state;
    assert_int_equal(post("{", 2 << 20, has_stopped), SL_ERR_INVALID); // parsed, in its turn, which is free again
    assert_int_equal(refusal.http_status, 400);
    assert_false(turn.taken);
    turn.taken = true;
    assert_int_equal(post("{", 2 << 20, has_stopped), SL_ERR_CANCELLED); // another body is being parsed
    assert_int_equal(refusal.http_status, 503);
    assert_true(turn.taken);
    assert_int_equal(post("{", 13 << 20, goes_on), SL_ERR_RANGE); // without a turn
    assert_int_equal(refusal.http_status, 413);
    assert_int_equal(post("{", 100, goes_on), SL_ERR_INVALID); // short: without a turn, too
}

static void test_times_are_in_range(void **state) {
    (void)state;
    static const char *const bodies[] = {"{\"deadline_ms\": 9223372036854775807}", "{\"deadline_ms\": 2147483648}",
                                         "{\"deadline_ms\": 0}", "{\"deadline_ms\": 1.5}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        assert_int_equal(post(bodies[i], strlen(bodies[i]), goes_on), SL_ERR_INVALID);
        assert_string_equal(refusal.param, "deadline_ms");
        assert_non_null(strstr(refusal.text, "1 to 2147483647"));
    }
    const char *negative = "{\"keep_ms\": -1}";
    assert_int_equal(post(negative, strlen(negative), goes_on), SL_ERR_INVALID);
    assert_string_equal(refusal.param, "keep_ms");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_long_bodies_take_turns_or_are_refused_unparsed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_times_are_in_range, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
