// SPDX-License-Identifier: Apache-2.0
// Purpose: the filter language, and the shape of a line on standard error.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

// Redirect standard error to a pipe, call fn, and return what was written.
static void capture(void (*fn)(void), char *text, size_t text_bytes) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    int saved = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    fn();
    dup2(saved, STDERR_FILENO);
    close(saved);
    size_t used = 0;
    ssize_t n;
    while (used < text_bytes - 1 && (n = read(ends[0], text + used, text_bytes - 1 - used)) > 0) {
        used += (size_t)n;
    }
    text[used] = '\0';
    close(ends[0]);
}

static void test_filter_default_is_info(void **state) {
    (void)state;
    assert_true(sl_log_enabled("any", SL_LOG_INFO));
    assert_false(sl_log_enabled("any", SL_LOG_DEBUG));
}

static void test_filter_rules_override_the_level(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(sl_log_configure("warn,fabric=trace,job=error,", &err), SL_OK);
    assert_false(sl_log_enabled("rpc", SL_LOG_INFO));
    assert_true(sl_log_enabled("rpc", SL_LOG_WARN));
    assert_true(sl_log_enabled("fabric", SL_LOG_TRACE));
    assert_false(sl_log_enabled("job", SL_LOG_WARN));
    assert_false(sl_log_enabled("fabric2", SL_LOG_INFO));
}

static void test_filter_last_word_wins(void **state) {
    (void)state;
    assert_int_equal(sl_log_configure("fabric=error,fabric=debug", NULL), SL_OK);
    assert_true(sl_log_enabled("fabric", SL_LOG_DEBUG));
}

static void test_filter_errors_keep_the_old_filter(void **state) {
    (void)state;
    assert_int_equal(sl_log_configure("error", NULL), SL_OK);
    static const char *const bad[] = {"loud", "fabric=loud", "=info", "info,trac", "fabric="};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sl_error err = {0};
        assert_int_equal(sl_log_configure(bad[i], &err), SL_ERR_INVALID);
        assert_true(strlen(err.text) > 0);
        assert_false(sl_log_enabled("any", SL_LOG_WARN));
    }
    struct sl_error err = {0};
    sl_log_configure("info,fabric=loud", &err);
    assert_non_null(strstr(err.text, "loud"));
}

static void write_one(void) {
    errno = EBADF;
    sl_log_warn("fabric", "peer=%s lost\nretry", "d-0");
    assert_int_equal(errno, EBADF);
    sl_log_debug("fabric", "not shown");
}

static void test_line_has_level_process_component_and_text(void **state) {
    (void)state;
    sl_log_configure("info", NULL);
    sl_log_set_process("decode-0");
    char text[512];
    capture(write_one, text, sizeof text);
    assert_non_null(strstr(text, "Z warn  decode-0 fabric: peer=d-0 lost retry\n"));
    assert_null(strstr(text, "not shown"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); // one line
}

static void write_long(void) {
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sl_log_info("job", "%s", text);
}

static void test_line_is_cut_visibly(void **state) {
    (void)state;
    char text[4000];
    capture(write_long, text, sizeof text);
    assert_string_equal(text + strlen(text) - 5, "x...\n");
}

static void *reconfigure(void *arg) {
    (void)arg;
    for (int i = 0; i < 200; i++) {
        sl_log_configure(i % 2 ? "error" : "error,a=warn", NULL);
        sl_log_enabled("a", SL_LOG_WARN);
    }
    return NULL;
}

static void test_filter_may_change_under_readers(void **state) {
    (void)state;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_thread_start("reconfigure", reconfigure, NULL, &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(sl_log_enabled("a", SL_LOG_ERROR));
}

static void say_what_a_terminal_obeys(void) {
    sl_log_warn("test", "name=\x1b[31mred\x1b]0;title\x07 \x08\x7f \xc2\x9b"
                        "31m tab\there caf\xc3\xa9"
                        "!");
}

static void test_terminals_are_told_nothing(void **state) {
    (void)state;
    char text[512];
    capture(say_what_a_terminal_obeys, text, sizeof text);
    assert_non_null(strstr(text, "name=?[31mred?]0;title? ?? ??31m tab here caf\xc3\xa9"
                                 "!\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terminals_are_told_nothing),
        cmocka_unit_test(test_filter_default_is_info),
        cmocka_unit_test(test_filter_rules_override_the_level),
        cmocka_unit_test(test_filter_last_word_wins),
        cmocka_unit_test(test_filter_errors_keep_the_old_filter),
        cmocka_unit_test(test_line_has_level_process_component_and_text),
        cmocka_unit_test(test_line_is_cut_visibly),
        cmocka_unit_test(test_filter_may_change_under_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
