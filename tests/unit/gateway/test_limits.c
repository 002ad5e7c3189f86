// SPDX-License-Identifier: Apache-2.0
// Purpose: limits a minute, by a clock of the test's own: what is let in, what is told, what is owed, and what is forgotten.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "base/clock.h"
#include "gateway/access/limits.h"

static struct sl_limits *limits;
static int64_t now_ns;
static struct sl_rate_limits told;
static int64_t retry_ms;

static int set_up(void **state) {
    (void)state;
    struct sl_error err;
    now_ns = 1000 * SL_NS_PER_S;
    return sl_limits_create(&limits, &err) == SL_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_limits_destroy(&limits);
    return 0;
}

static struct sl_api_key key_of(uint32_t number, int64_t requests, int64_t tokens) {
    struct sl_api_key key = sl_api_key_anybody;
    memcpy(key.hash, &number, sizeof number);
    key.requests_per_minute = requests;
    key.tokens_per_minute = tokens;
    return key;
}

static enum sl_status take(const struct sl_api_key *who, enum sl_limit what, int64_t n) {
    return sl_limits_take(limits, who, what, n, now_ns, &told, &retry_ms);
}

static void pass_ms(int64_t ms) {
    now_ns += ms * SL_NS_PER_MS;
}

static void test_requests_come_evenly(void **state) {
    (void)state;
    struct sl_api_key key = key_of(1, 60, INT64_MAX), other = key_of(2, 60, INT64_MAX);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
        assert_int_equal(told.requests.remaining, 59 - i);
    }
    assert_int_equal(told.requests.limit, 60);
    assert_int_equal(told.requests.reset_ms, 60000);
    assert_int_equal(told.tokens.limit, 0);
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_ERR_EXHAUSTED);
    assert_int_equal(retry_ms, 1000);
    assert_int_equal(told.requests.remaining, 0);
    assert_int_equal(take(&other, SL_LIMIT_REQUESTS, 1), SL_OK);
    pass_ms(999);
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_ERR_EXHAUSTED);
    assert_int_equal(retry_ms, 1);
    pass_ms(1);
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_ERR_EXHAUSTED);
    assert_int_equal(sl_limits_n_refused(limits, SL_LIMIT_REQUESTS), 3);
    assert_int_equal(sl_limits_n_refused(limits, SL_LIMIT_TOKENS), 0);
    // In an hour no more gathers than in a minute. A clock that stands still or is read late gives nothing.
    pass_ms(3600000);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
    }
    now_ns -= SL_NS_PER_S;
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_ERR_EXHAUSTED);
    now_ns += SL_NS_PER_S;
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_ERR_EXHAUSTED);
    // Give back what was not needed.
    sl_limits_give_back(limits, &key, SL_LIMIT_REQUESTS, 1, now_ns);
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
}

static void test_many_small_steps_are_a_minute(void **state) {
    (void)state;
    struct sl_api_key key = key_of(1, 7, INT64_MAX);
    int n = 0;
    for (int i = 0; i < 10 * 60 * 100; i++) {
        n += take(&key, SL_LIMIT_REQUESTS, 1) == SL_OK;
        pass_ms(10);
    }
    assert_int_equal(n, 7 + 10 * 7 - 1); // what was there, and what ten minutes have brought, but for the last step's
    pass_ms(60000);
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
}

static void test_prompts_owe(void **state) {
    (void)state;
    struct sl_api_key key = key_of(1, INT64_MAX, 6000);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 2500), SL_OK);
    assert_int_equal(told.tokens.remaining, 3500);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 4000), SL_ERR_EXHAUSTED);
    assert_int_equal(retry_ms, 5000);
    // It was guessed at 2500 and has been 500; and once more, the other way round.
    sl_limits_give_back(limits, &key, SL_LIMIT_TOKENS, 2000, now_ns);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 4000), SL_OK);
    sl_limits_give_back(limits, &key, SL_LIMIT_TOKENS, -4000, now_ns);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 1), SL_ERR_EXHAUSTED);
    assert_int_equal(retry_ms, 25010);
    assert_int_equal(told.tokens.remaining, 0);
    assert_int_equal(told.tokens.reset_ms, 85000);
    // One that is longer than a minute's comes when nothing is owed, and then owes two minutes.
    pass_ms(84999);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 18000), SL_ERR_EXHAUSTED);
    pass_ms(1);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 18000), SL_OK);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 6000), SL_ERR_EXHAUSTED);
    assert_int_equal(retry_ms, 180000);
    // No more is given back than there can be.
    sl_limits_give_back(limits, &key, SL_LIMIT_TOKENS, 1000000, now_ns);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 6000), SL_OK);
    assert_int_equal(told.tokens.remaining, 0);
}

static void test_the_file_changes_limits(void **state) {
    (void)state;
    struct sl_api_key key = key_of(1, 10, INT64_MAX);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
    }
    key.requests_per_minute = 1;
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_ERR_EXHAUSTED);
    key.requests_per_minute = INT64_MAX;
    key.tokens_per_minute = 100;
    assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
    assert_int_equal(told.requests.limit, 0);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 100), SL_OK);
    assert_int_equal(take(&key, SL_LIMIT_TOKENS, 1), SL_ERR_EXHAUSTED);
    struct sl_api_key free_key = key_of(2, INT64_MAX, INT64_MAX);
    assert_int_equal(take(&free_key, SL_LIMIT_TOKENS, INT64_MAX), SL_OK);
    sl_limits_give_back(limits, &free_key, SL_LIMIT_TOKENS, -5, now_ns);
    assert_int_equal(sl_limits_n_buckets(limits), 1);
}

static void test_who_is_full_again_is_forgotten(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 200000; i++) { // a minute and more of them at no time
        struct sl_api_key key = key_of(i, 60, 60);
        assert_int_equal(take(&key, SL_LIMIT_REQUESTS, 1), SL_OK);
        pass_ms(1);
        assert_true(sl_limits_n_buckets(limits) < 4096);
    }
    // Those that owe stay, and there are only so many.
    for (uint32_t i = 0; i < SL_MAX_LIMITED; i++) {
        struct sl_api_key key = key_of(1000000 + i, INT64_MAX, 1);
        pass_ms(i == 0 ? 60000 : 0);
        assert_int_equal(take(&key, SL_LIMIT_TOKENS, 1000), SL_OK);
    }
    struct sl_api_key late = key_of(5, 60, 60), there = key_of(1000000, INT64_MAX, 1);
    assert_int_equal(sl_limits_n_buckets(limits), SL_MAX_LIMITED);
    assert_int_equal(take(&late, SL_LIMIT_REQUESTS, 1), SL_ERR_EXHAUSTED);
    assert_int_equal(retry_ms, 1000);
    assert_int_equal(take(&there, SL_LIMIT_TOKENS, 1), SL_ERR_EXHAUSTED);
    pass_ms(1000 * 60000);
    assert_int_equal(take(&late, SL_LIMIT_REQUESTS, 1), SL_OK);
    assert_int_equal(sl_limits_n_buckets(limits), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_requests_come_evenly, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_small_steps_are_a_minute, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prompts_owe, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_file_changes_limits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_is_full_again_is_forgotten, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
