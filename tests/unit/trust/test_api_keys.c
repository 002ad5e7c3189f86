// SPDX-License-Identifier: Apache-2.0
// Purpose: files of API keys: their syntax, the tenants that they identify, and files that change.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/trust/api_keys.h"
#include "tests/replaced_file.h"

// SHA-256 of "one" and of "two" (sha256sum).
#define ONE "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
#define TWO "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"

static char path[64];

static int set_up(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/sluice-test-keys-%d", (int)getpid());
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return unlink(path);
}

static void test_keys_are_found_by_their_hash(void **state) {
    (void)state;
    replace_file(path, "# ours\n" ONE "  acme answers=8 # a comment\r\n\n\t" TWO "\tbeta", 0600);
    struct sl_api_keys *keys;
    struct sl_error err;
    assert_int_equal(sl_api_keys_open(path, &keys, &err), SL_OK);
    struct sl_api_key key;
    assert_int_equal(sl_api_keys_find(keys, "one", &key), SL_OK);
    assert_string_equal(key.tenant, "acme");
    assert_int_equal(key.max_answers, 8);
    assert_int_equal(sl_api_keys_find(keys, "two", &key), SL_OK);
    assert_string_equal(key.tenant, "beta");
    assert_true(key.max_answers == INT64_MAX);
    static const char *const nobodys[] = {"", "o", "one ", "One", ONE};
    for (size_t i = 0; i < sizeof nobodys / sizeof *nobodys; i++) {
        assert_int_equal(sl_api_keys_find(keys, nobodys[i], &key), SL_ERR_DENIED);
    }
    sl_api_keys_close(&keys);
}

// Until the file is looked at again; the last answer.
static enum sl_status find_eventually(struct sl_api_keys *keys, const char *presented, enum sl_status wanted) {
    struct sl_api_key key;
    enum sl_status status = SL_ERR_INTERNAL;
    for (int64_t deadline_ns = sl_deadline_in_ms(20000); status != wanted && sl_deadline_left_ms(deadline_ns) > 0;) {
        status = sl_api_keys_find(keys, presented, &key);
        sl_sleep_ms(10);
    }
    return status;
}

static void test_a_file_that_changes(void **state) {
    (void)state;
    replace_file(path, ONE " acme\n", 0600);
    struct sl_api_keys *keys;
    struct sl_error err;
    assert_int_equal(sl_api_keys_open(path, &keys, &err), SL_OK);
    replace_file(path, TWO " acme\n", 0600);
    assert_int_equal(find_eventually(keys, "one", SL_ERR_DENIED), SL_ERR_DENIED);
    assert_int_equal(find_eventually(keys, "two", SL_OK), SL_OK);
    const uint64_t n_errors = sl_log_lines(SL_LOG_ERROR);
    replace_file(path, "nonsense\n", 0600); // a mistake in the file locks no user out
    for (int i = 0; i < 2; i++) {
        sl_sleep_ms(1200);
        assert_int_equal(find_eventually(keys, "two", SL_OK), SL_OK);
        assert_int_equal(sl_log_lines(SL_LOG_ERROR), n_errors + 1); // the log says it once, not at each look
    }
    static const char *const cut[] = {"", TWO, TWO " ac", TWO " acme"}; // nor does a disk that was full
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        replace_file(path, cut[i], 0600);
        sl_sleep_ms(1200);
        assert_int_equal(find_eventually(keys, "two", SL_OK), SL_OK);
    }
    assert_int_equal(sl_log_lines(SL_LOG_ERROR), n_errors + 4); // each mistake; the last one reads as whole
    replace_file(path, "# none\n", 0600);                       // but by an order
    assert_int_equal(find_eventually(keys, "two", SL_ERR_DENIED), SL_ERR_DENIED);
    sl_api_keys_close(&keys);
}

// An editor may leave no newline at the end: a file without its last line is shorter, and not cut off.
static void test_last_line_is_removed(void **state) {
    (void)state;
    replace_file(path, ONE " acme\n" TWO " beta", 0600);
    struct sl_api_keys *keys;
    struct sl_error err;
    struct sl_api_key key;
    assert_int_equal(sl_api_keys_open(path, &keys, &err), SL_OK);
    assert_int_equal(sl_api_keys_find(keys, "two", &key), SL_OK);
    replace_file(path, ONE " acme", 0600);
    assert_int_equal(find_eventually(keys, "two", SL_ERR_DENIED), SL_ERR_DENIED);
    assert_int_equal(sl_api_keys_find(keys, "one", &key), SL_OK);
    sl_api_keys_close(&keys);
}

static void test_limits_are_a_lines_own(void **state) {
    (void)state;
    replace_file(path,
                 ONE " acme tokens=1000000 answers=8 requests=60\n" TWO " beta\njwt acme requests=5\njwt * answers=1\n",
                 0600);
    struct sl_api_keys *keys;
    struct sl_error err;
    struct sl_api_key key, other;
    assert_int_equal(sl_api_keys_open(path, &keys, &err), SL_OK);
    assert_int_equal(sl_api_keys_find(keys, "one", &key), SL_OK);
    assert_true(key.max_answers == 8 && key.requests_per_minute == 60 && key.tokens_per_minute == 1000000);
    assert_int_equal(sl_api_keys_find(keys, "two", &key), SL_OK);
    assert_true(key.requests_per_minute == INT64_MAX && key.tokens_per_minute == INT64_MAX);
    // Tenants identified by a certificate or a token have a line of their own, or that of all others; each has its own counts.
    assert_int_equal(sl_api_keys_of_tenant(keys, "acme", &key), SL_OK);
    assert_true(key.requests_per_minute == 5 && key.max_answers == INT64_MAX);
    assert_string_equal(key.tenant, "acme");
    assert_int_equal(sl_api_keys_of_tenant(keys, "beta", &key), SL_OK);
    assert_true(key.max_answers == 1 && key.requests_per_minute == INT64_MAX);
    assert_string_equal(key.tenant, "beta");
    assert_int_equal(sl_api_keys_of_tenant(keys, "gamma", &other), SL_OK);
    assert_true(memcmp(key.hash, other.hash, sizeof key.hash) != 0);
    assert_int_equal(sl_api_keys_of_tenant(NULL, "beta", &other), SL_OK);
    assert_true(other.max_answers == INT64_MAX && memcmp(key.hash, other.hash, sizeof key.hash) == 0);
    // No key is a tenant's name.
    static const char *const nobodys[] = {"acme", "*", "jwt", "jwt acme"};
    for (size_t i = 0; i < sizeof nobodys / sizeof *nobodys; i++) {
        assert_int_equal(sl_api_keys_find(keys, nobodys[i], &key), SL_ERR_DENIED);
    }
    sl_api_keys_close(&keys);
}

static void test_what_is_no_file_of_keys(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"one acme\n", "line 1: expected a SHA-256"},
        {"\n" ONE "a acme\n", "line 2: expected a SHA-256"},
        {"7692C3AD3540BB803C020B3AEE66CD8887123234EA0C6E7143C0ADD73FF431ED acme", "small hexadecimal"},
        {ONE, "line 1: expected a tenant"},
        {ONE " ../acme", "line 1: expected a tenant"},
        {ONE " .acme", "line 1: expected a tenant"},
        {ONE " a/b", "line 1: expected a tenant"},
        {ONE " a123456789012345678901234567890123456789012345678901234567890123", "expected a tenant"},
        {ONE " acme answers=0", "answers=0"},
        {ONE " acme answers=", "answers="},
        {ONE " acme answers=-1", "answers=-1"},
        {ONE " acme answers=99999999999999999999", "answers=9"},
        {ONE " acme answers=1x", "answers=1x"},
        {ONE " acme speed=1", "speed=1"},
        {ONE " acme requests=0", "requests=0"},
        {ONE " acme tokens=1000000000001", "tokens=1000000000001"},
        {ONE " acme tokens=12k", "tokens=12k"},
        {ONE " *", "line 1: expected a tenant"},
        {"jwt", "line 1: expected a tenant"},
        {"jwt **", "line 1: expected a tenant"},
        {"JWT acme", "line 1: expected a SHA-256"},
    };
    struct sl_api_keys *keys;
    struct sl_error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        replace_file(path, rows[i].text, 0600);
        assert_int_equal(sl_api_keys_open(path, &keys, &err), SL_ERR_INVALID);
        if (!strstr(err.text, rows[i].says) || !strstr(err.text, path)) {
            fail_msg("%s: %s", rows[i].text, err.text);
        }
    }
    replace_file(path, ONE " acme\n", 0622);
    assert_int_equal(sl_api_keys_open(path, &keys, &err), SL_ERR_PRECONDITION);
    assert_int_equal(sl_api_keys_open("/dev/null/keys", &keys, &err), SL_ERR_IO);
    assert_int_equal(sl_api_keys_open("/tmp", &keys, &err), SL_ERR_INVALID);
    struct sl_api_key *list;
    size_t n;
    assert_int_equal(sl_api_keys_parse("#\0", 2, &list, &n, &err), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keys_are_found_by_their_hash, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_file_that_changes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_last_line_is_removed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_limits_are_a_lines_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_no_file_of_keys, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
