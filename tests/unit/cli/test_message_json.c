// SPDX-License-Identifier: Apache-2.0
// Purpose: messages as JSON: every kind of field, read back by jansson.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/message_json.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "proto/sluice/v1/inference.pb-c.h"

static json_int_t integer(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static const char *string(const json_t *json, const char *key) {
    const char *value = json_string_value(json_object_get(json, key));
    assert_non_null(value);
    return value;
}

static void test_json_event_has_only_the_member_that_is_set(void **state) {
    (void)state;
    Sluice__V1__Alternative one = SLUICE__V1__ALTERNATIVE__INIT, two = SLUICE__V1__ALTERNATIVE__INIT;
    one.id = 5;
    two.id = 6;
    two.logprob = -0.5f;
    Sluice__V1__Alternative *both[] = {&one, &two};
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.id = 42;
    token.text = (char *)"a \"quoted\" \xc3\xa9\n";
    token.n_alternatives = 2;
    token.alternatives = both;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.sequence = 7;
    event.job_id = (char *)"j1";
    event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
    event.token = &token;

    json_t *json = sl_message_json(&event.base);
    assert_non_null(json);
    assert_int_equal(integer(json, "sequence"), 7);
    assert_string_equal(string(json, "job_id"), "j1");
    assert_null(json_object_get(json, "prefill"));
    assert_null(json_object_get(json, "finished"));
    const json_t *inner = json_object_get(json, "token");
    assert_int_equal(integer(inner, "id"), 42);
    assert_string_equal(string(inner, "text"), token.text);
    const json_t *alternatives = json_object_get(inner, "alternatives");
    assert_int_equal(json_array_size(alternatives), 2);
    assert_true(json_real_value(json_object_get(json_array_get(alternatives, 1), "logprob")) == -0.5);
    json_decref(json);
}

static void test_json_enums_are_names(void **state) {
    (void)state;
    Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
    job.state = SLUICE__V1__JOB_STATE__DECODING;
    json_t *json = sl_message_json(&job.base);
    assert_string_equal(string(json, "state"), "DECODING");
    assert_true(json_is_null(json_object_get(json, "statistics")));
    json_decref(json);
    job.state = (Sluice__V1__JobState)99; // from a newer coordinator
    json = sl_message_json(&job.base);
    assert_int_equal(integer(json, "state"), 99);
    json_decref(json);
}

static void test_json_wide_unsigned_numbers_are_strings(void **state) {
    (void)state;
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.model_fingerprint = UINT64_MAX;
    info.arena_bytes = INT64_C(1) << 52;
    json_t *json = sl_message_json(&info.base);
    assert_string_equal(string(json, "model_fingerprint"), "18446744073709551615");
    assert_int_equal(integer(json, "arena_bytes"), INT64_C(1) << 52);
    json_decref(json);
}

static void test_json_survives_bad_text_and_numbers(void **state) {
    (void)state;
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.status_text = (char *)"disk \xff gone";
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.tpot_ms = NAN;
    statistics.transport = NULL;
    finished.statistics = &statistics;
    json_t *json = sl_message_json(&finished.base);
    assert_string_equal(string(json, "status_text"), "disk ? gone");
    const json_t *inner = json_object_get(json, "statistics");
    assert_true(json_is_null(json_object_get(inner, "tpot_ms")));
    assert_string_equal(string(inner, "transport"), "");
    json_decref(json);
}

static void test_json_is_one_line(void **state) {
    (void)state;
    Sluice__V1__StateChange change = SLUICE__V1__STATE_CHANGE__INIT;
    change.state = SLUICE__V1__JOB_STATE__SHIPPING;
    change.detail = (char *)"line\nbreak";
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_true(sl_message_print_json(&change.base, file));
    fclose(file);
    assert_string_equal(text, "{\"state\":\"SHIPPING\",\"detail\":\"line\\nbreak\",\"accepted\":null}\n");
    free(text);
}

static void test_json_reports_a_full_disk(void **state) {
    (void)state;
    FILE *file = fopen("/dev/full", "w");
    assert_non_null(file);
    Sluice__V1__StateChange change = SLUICE__V1__STATE_CHANGE__INIT;
    assert_false(sl_message_print_json(&change.base, file));
    fclose(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_event_has_only_the_member_that_is_set),
        cmocka_unit_test(test_json_enums_are_names),
        cmocka_unit_test(test_json_wide_unsigned_numbers_are_strings),
        cmocka_unit_test(test_json_survives_bad_text_and_numbers),
        cmocka_unit_test(test_json_is_one_line),
        cmocka_unit_test(test_json_reports_a_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
