// SPDX-License-Identifier: Apache-2.0
// Purpose: the body of a request on its way to the coordinator: it waits for its turn to be parsed, is charged, and its memory is freed.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "base/clock.h"
#include "base/thread.h"
#include "gateway/intake.h"

static struct sl_intake_turn turn;
static struct sl_limits *limits;
static atomic_llong held_bytes;
static struct sl_refusal refusal;
static struct sl_openai_request *request;

static int set_up(void **state) {
    (void)state;
    struct sl_error err;
    sl_intake_turn_init(&turn);
    atomic_store(&held_bytes, 7); // of others
    return sl_limits_create(&limits, &err) == SL_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_openai_request_destroy(&request);
    sl_limits_destroy(&limits);
    sl_intake_turn_cleanup(&turn);
    return 0;
}

// Returns an intake whose body has more room than bytes, like a body that came in pieces.
static struct sl_intake intake_of(const char *body, bool is_chat) {
    struct sl_intake intake = {.is_chat = is_chat,
                               .n_body = strlen(body),
                               .body_bytes = 2 * strlen(body) + 1,
                               .held_bytes = &held_bytes,
                               .json = {.held = &held_bytes, .most_held = INT64_C(1) << 30},
                               .turn = &turn,
                               .limits = limits,
                               .who = sl_api_key_anybody};
    intake.model = (struct sl_served_model){.known = true, .name = "m"};
    intake.body = calloc(1, intake.body_bytes);
    assert_non_null(intake.body);
    memcpy(intake.body, body, intake.n_body);
    atomic_fetch_add(&held_bytes, (long long)intake.body_bytes);
    return intake;
}

static bool goes_on(void *arg) {
    (void)arg;
    return false;
}

static bool has_stopped(void *arg) {
    (void)arg;
    return true;
}

// Its memory has come back, whatever came of it.
static enum sl_status read_as(struct sl_intake *intake, bool (*stopped)(void *arg)) {
    sl_openai_request_destroy(&request);
    enum sl_status status = sl_intake_read(intake, stopped, NULL, &request, &refusal);
    sl_json_memory_give_back(&intake->json);
    assert_true(intake->body == NULL && atomic_load(&held_bytes) == 7);
    assert_true((status == SL_OK) == (request != NULL));
    sl_intake_drop(intake); // which is done already
    assert_true(atomic_load(&held_bytes) == 7);
    return status;
}

static void test_what_is_asked_of_whom(void **state) {
    (void)state;
    struct sl_intake intake = intake_of("{\"prompt\": \"x\", \"model\": \"m\"}", false);
    assert_int_equal(read_as(&intake, has_stopped), SL_OK); // short: it does not wait for its turn
    assert_string_equal(request->message.text, "x");
    intake = intake_of("{\"prompt\": 1}", false);
    assert_int_equal(read_as(&intake, goes_on), SL_ERR_INVALID);
    assert_int_equal(refusal.http_status, 400);
    intake = intake_of("{\"prompt\": \"x\", \"model\": \"other\"}", false);
    assert_int_equal(read_as(&intake, goes_on), SL_ERR_NOT_FOUND);
    assert_int_equal(refusal.http_status, 404);
    intake = intake_of("{\"prompt\": \"x\"}", false);
    intake.model.known = false;
    assert_int_equal(read_as(&intake, goes_on), SL_ERR_PEER_LOST);
    assert_int_equal(refusal.http_status, 503);
    intake = intake_of("", false);
    free(intake.body); // of a request without one
    intake.body = NULL;
    intake.n_body = intake.body_bytes = 0;
    atomic_store(&held_bytes, 7);
    assert_int_equal(read_as(&intake, goes_on), SL_ERR_INVALID);
}

// Asserts what is left of 1000 tokens a minute after a request: 1000 - tokens, and a little that time has brought.
static void assert_charged(const char *body, bool is_chat, int64_t n_tokens) {
    struct sl_intake intake = intake_of(body, is_chat);
    static uint8_t number;
    intake.who.hash[1] = ++number; // a new one each time
    intake.who.tokens_per_minute = 1000;
    assert_int_equal(read_as(&intake, goes_on), SL_OK);
    assert_int_equal(intake.n_charged_tokens, n_tokens);
    assert_in_range(intake.rate_limits.tokens.remaining, 1000 - n_tokens, 1000);
    assert_int_equal(intake.rate_limits.requests.limit, 0);
}

static void test_what_it_costs(void **state) {
    (void)state;
    assert_charged("{\"prompt\": \"\"}", false, 0);
    assert_charged("{\"prompt\": \"12345\"}", false, 2);
    assert_charged("{\"prompt\": [5, 6, 7]}", false, 3);
    assert_charged(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"1234\"}, {\"role\": \"user\", \"content\": \"56789\"}]}",
        true, 3);

    // Used up: the request's own place is given back with it. What never was a job costs nothing; what was, what it had.
    struct sl_rate_limits rate_limits;
    int64_t retry_ms;
    struct sl_intake intake = intake_of("{\"prompt\": [1, 2, 3, 4]}", false);
    intake.who.tokens_per_minute = 4;
    intake.who.requests_per_minute = 2;
    const struct sl_api_key who = intake.who;
    assert_int_equal(read_as(&intake, goes_on), SL_OK);
    struct sl_intake next = intake_of("{\"prompt\": [1, 2]}", false);
    next.who = who;
    assert_int_equal(sl_limits_take(limits, &who, SL_LIMIT_REQUESTS, 1, sl_now_ns(), &rate_limits, &retry_ms), SL_OK);
    assert_int_equal(rate_limits.requests.remaining, 1);
    assert_int_equal(read_as(&next, goes_on), SL_ERR_EXHAUSTED);
    assert_int_equal(refusal.http_status, 429);
    assert_in_range(refusal.retry_after_s, 1, 30);
    assert_non_null(strstr(refusal.text, "4 tokens of prompts"));
    assert_int_equal(sl_limits_take(limits, &who, SL_LIMIT_REQUESTS, 1, sl_now_ns(), &rate_limits, &retry_ms), SL_OK);
    assert_int_equal(rate_limits.requests.remaining, 1);
    sl_intake_reconcile(&intake, 0);
    next = intake_of("{\"prompt\": [1, 2, 3, 4]}", false);
    next.who = who;
    assert_int_equal(read_as(&next, goes_on), SL_OK);
    sl_intake_reconcile(&next, 64);
    assert_int_equal(sl_limits_take(limits, &who, SL_LIMIT_TOKENS, 4, sl_now_ns(), &rate_limits, &retry_ms),
                     SL_ERR_EXHAUSTED);
    assert_in_range(retry_ms, 14 * 60000, 16 * 60000);
}

// ---- turns --------------------------------------------------------------------------------------------------------------

static char *long_body(void) {
    const size_t n = 2 << 20;
    char *body = malloc(n + 1);
    assert_non_null(body);
    memset(body, 'x', n);
    body[n] = '\0';
    memcpy(body, "{\"prompt\": \"", 12);
    memcpy(body + n - 2, "\"}", 2);
    return body;
}

static void *end_the_turn(void *arg) {
    sl_sleep_ms(50);
    pthread_mutex_lock(&turn.mutex);
    turn.taken = false;
    atomic_store((atomic_bool *)arg, true);
    pthread_cond_signal(&turn.over);
    pthread_mutex_unlock(&turn.mutex);
    return NULL;
}

static void test_long_ones_take_turns(void **state) {
    (void)state;
    char *body = long_body();
    struct sl_intake intake = intake_of(body, false);
    assert_int_equal(read_as(&intake, goes_on), SL_OK);
    assert_false(turn.taken);
    // Another request has the turn, and no client waits for this answer any more.
    turn.taken = true;
    intake = intake_of(body, false);
    assert_int_equal(read_as(&intake, has_stopped), SL_ERR_CANCELLED);
    assert_int_equal(refusal.http_status, 503);
    assert_true(turn.taken); // it is still the other's
    // Short ones do not wait.
    intake = intake_of("{\"prompt\": \"x\"}", false);
    assert_int_equal(read_as(&intake, goes_on), SL_OK);
    // The other's ends.
    atomic_bool ended = false;
    pthread_t thread;
    struct sl_error err;
    assert_int_equal(sl_thread_start("other", end_the_turn, &ended, &thread, &err), SL_OK);
    intake = intake_of(body, false);
    assert_int_equal(read_as(&intake, goes_on), SL_OK);
    assert_true(atomic_load(&ended));
    assert_false(turn.taken);
    pthread_join(thread, NULL);
    free(body);
}

// Repeats a unit to a body of about n bytes: {"FIELD":[UNIT,UNIT,...]TAIL
static char *body_of(const char *field, const char *unit, size_t n, const char *tail) {
    const size_t n_unit = strlen(unit);
    char *body = malloc(n + 256), *at = body;
    assert_non_null(body);
    at += sprintf(at, "{\"%s\":[%s", field, unit);
    while ((size_t)(at - body) < n) {
        *at++ = ',';
        memcpy(at, unit, n_unit);
        at += n_unit;
    }
    strcpy(at, tail);
    return body;
}

// Parses a body with so much memory for all. *most_out: the most that was held at once, as far as the answer shows.
static enum sl_status parse_within(const char *body, bool is_chat, int64_t most_held, int64_t *held_out) {
    struct sl_intake intake = intake_of(body, is_chat);
    intake.json.most_held = most_held;
    enum sl_status status = sl_intake_read(&intake, goes_on, NULL, &request, &refusal);
    *held_out = atomic_load(&held_bytes) - 7;
    assert_true((size_t)*held_out <= 4 * strlen(body) + (64 << 10) || *held_out <= (8 << 20) + (64 << 10));
    if (request) {
        assert_int_equal(request->message.prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS, !is_chat);
    }
    sl_openai_request_destroy(&request);
    sl_intake_cleanup(&intake);
    assert_int_equal(atomic_load(&held_bytes), 7);
    return status;
}

// jansson takes 250 bytes for an empty object of three: at most four times the body, or 8 MiB, and all is given back.
static void test_json_has_bounded_memory(void **state) {
    (void)state;
    static const char *const units[] = {"{}", "[]", "{\"a\":1}", "1", "\"\"", "0.5", "[[[[[]]]]]", "\"\\u00e9\""};
    const int64_t much = INT64_C(1) << 30;
    int64_t held;
    sl_json_memory_install();
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        static const char *const tails[] = {"]}", "],\"x\":\"\\u0000\"}"}; // the second one is parsed again
        for (int tail = 0; tail < 2; tail++) {
            char *body = body_of("metadata", units[i], 4 << 20, tails[tail]);
            assert_int_not_equal(parse_within(body, true, much, &held), SL_OK);
            assert_int_equal(refusal.http_status, 413);
            assert_non_null(strstr(refusal.text, "16777"));
            free(body);
        }
    }
    // Little ones, and lists of ids, which are not left to jansson
    char *chat = body_of("messages", "{\"role\":\"user\",\"content\":\"hi\"}", 125000, "]}");
    assert_int_equal(parse_within(chat, true, much, &held), SL_OK);
    assert_true(held > 1 << 20);
    assert_int_equal(parse_within(chat, true, 1 << 20, &held), SL_ERR_EXHAUSTED);
    assert_int_equal(refusal.http_status, 429);
    free(chat);
    char *ids = body_of("prompt", "7", 8 << 20, " ]}");
    assert_int_equal(parse_within(ids, false, much, &held), SL_OK);
    free(ids);
    json_set_alloc_funcs(malloc, free);
}

// The parser reads a string into a buffer that doubles: it is not counted while the request is answered.
static void test_json_counts_what_it_keeps(void **state) {
    (void)state;
    static const char head[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"", tail[] = "\"}]}";
    const size_t n = (4 << 20) + 1000;
    char *body = malloc(n + sizeof head + sizeof tail);
    assert_non_null(body);
    memcpy(body, head, sizeof head - 1);
    memset(body + sizeof head - 1, 'a', n);
    memcpy(body + sizeof head - 1 + n, tail, sizeof tail);
    int64_t held;
    sl_json_memory_install();
    assert_int_equal(parse_within(body, true, INT64_C(1) << 30, &held), SL_OK);
    assert_in_range(held, n, n + (128 << 10));
    free(body);
    json_set_alloc_funcs(malloc, free);
}

static void assert_ids(const char *body, size_t n, int32_t last) {
    struct sl_intake intake = intake_of(body, false);
    assert_int_equal(sl_intake_read(&intake, goes_on, NULL, &request, &refusal), SL_OK);
    assert_int_equal(request->message.prompt_case, SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS);
    assert_int_equal(request->one.tokens.n_ids, n);
    assert_true(n == 0 || request->one.tokens.ids[n - 1] == last);
    sl_openai_request_destroy(&request);
    sl_intake_cleanup(&intake);
}

static void test_ids_are_read_from_the_text(void **state) {
    (void)state;
    assert_ids("{\"prompt\":[1,2,3]}", 3, 3);
    assert_ids(" { \"user\" : \"\\\"prompt\\\":[5]\", \"prompt\" : [ 1 , 2147483647 ] , \"max_tokens\": 3 } ", 2,
               2147483647);
    assert_ids("{\"prompt\":[[0, 4\n]]}", 2, 4);
    static const char inner[] = "{\"a\":{\"prompt\":[9]},\"b\":[\"prompt\"],\"prompt\":[8]}";
    struct sl_json_ids ids = {0};
    json_error_t error;
    json_t *json = sl_json_parse(inner, sizeof inner - 1, 0, NULL, &ids, &error, &refusal);
    assert_true(json && ids.n == 1 && ids.ids[0] == 8);
    assert_int_equal(json_array_size(json_object_get(json, "prompt")), 0);
    json_decref(json);
    free(ids.ids);
    assert_ids("{\"\\u0070rompt\":[6, 7]}", 2, 7); // jansson reads it
    static const char *const wrong[] = {"{\"prompt\":[1,]}",
                                        "{\"prompt\":[01]}",
                                        "{\"prompt\":[1 2]}",
                                        "{\"prompt\":[2147483648]}",
                                        "{\"prompt\":[-1]}",
                                        "{\"prompt\":[1,2.5]}",
                                        "{\"prompt\":[1],\"prompt\":[2]}",
                                        "{\"prompt\":[[1],[\"2\"]]}",
                                        "{\"prompt\":[[1],2]}",
                                        "{\"prompt\":[1",
                                        "{\"prompt\":[1]",
                                        "{\"prompt\":[1]]}",
                                        "{\"prompt\":[1]}}",
                                        "{\"prompt\":{\"a\":[1]}}",
                                        "{\"prompt\":[[1]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sl_intake intake = intake_of(wrong[i], false);
        assert_int_equal(sl_intake_read(&intake, goes_on, NULL, &request, &refusal), SL_ERR_INVALID);
        assert_int_equal(refusal.http_status, 400);
        sl_intake_cleanup(&intake);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_asked_of_whom, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_it_costs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_ones_take_turns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ids_are_read_from_the_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_json_counts_what_it_keeps, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_json_has_bounded_memory, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
