// SPDX-License-Identifier: Apache-2.0
// Purpose: the filter language, and the shape of a line on standard error.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
    uint64_t n_warnings = sl_log_lines(SL_LOG_WARN), n_shown_not = sl_log_lines(SL_LOG_DEBUG);
    capture(write_one, text, sizeof text);
    assert_int_equal(sl_log_lines(SL_LOG_WARN), n_warnings + 1);
    assert_int_equal(sl_log_lines(SL_LOG_DEBUG), n_shown_not);
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

// In UTC, whatever the time zone: without the C library's help, which takes a lock.
static void test_time_is_of_today(void **state) {
    (void)state;
    char before[32], after[32], text[512];
    struct tm tm;
    time_t now = time(NULL);
    strftime(before, sizeof before, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now, &tm));
    sl_log_configure("info", NULL);
    capture(write_one, text, sizeof text);
    now = time(NULL);
    strftime(after, sizeof after, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now, &tm));
    text[strlen(before)] = '\0';
    assert_true(strcmp(before, text) <= 0 && strcmp(text, after) <= 0);
}

// ---- JSON -----------------------------------------------------------------------------------------------------------------

static const char *nasty;

static void write_nasty(void) {
    sl_log_warn("test", "%s", nasty);
}

// The line as JSON, which jansson takes strictly. To be decref'd.
static json_t *json_of(void (*fn)(void)) {
    static char text[40000];
    capture(fn, text, sizeof text);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); // one line
    json_error_t error;
    json_t *line = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!line) {
        print_error("%s: %s\n", text, error.text);
    }
    assert_true(json_is_object(line));
    return line;
}

static void assert_field(const json_t *line, const char *name, const char *wanted) {
    assert_string_equal(json_string_value(json_object_get(line, name)), wanted);
}

static void test_json_has_who_what_and_for_whom(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(sl_log_set_format("xml", &err), SL_ERR_INVALID);
    assert_int_equal(sl_log_set_format("json", &err), SL_OK);
    sl_log_set_process("decode-0");
    nasty = "peer lost";
    json_t *line = json_of(write_nasty);
    assert_field(line, "level", "warn");
    assert_field(line, "process", "decode-0");
    assert_field(line, "component", "test");
    assert_field(line, "message", "peer lost");
    assert_non_null(json_object_get(line, "time"));
    assert_null(json_object_get(line, "job"));
    assert_null(json_object_get(line, "trace"));
    json_decref(line);
    sl_log_set_job("j-1");
    sl_log_set_trace("4bf92f3577b34da6a3ce929d0e0e4736");
    line = json_of(write_nasty);
    assert_field(line, "job", "j-1");
    assert_field(line, "trace", "4bf92f3577b34da6a3ce929d0e0e4736");
    json_decref(line);
    sl_log_set_job("");
    line = json_of(write_nasty);
    assert_null(json_object_get(line, "job"));
    assert_null(json_object_get(line, "trace"));
    json_decref(line);
    sl_log_set_format("text", NULL);
}

static void *say_nothing_of_a_job(void *arg) {
    (void)arg;
    json_t *line = json_of(write_nasty);
    assert_null(json_object_get(line, "job"));
    json_decref(line);
    return NULL;
}

static void test_json_job_is_the_threads_own(void **state) {
    (void)state;
    sl_log_set_format("json", NULL);
    sl_log_set_job("j-2");
    pthread_t thread;
    assert_int_equal(sl_thread_start("other", say_nothing_of_a_job, NULL, &thread, NULL), SL_OK);
    pthread_join(thread, NULL);
    sl_log_set_job(NULL);
    sl_log_set_format("text", NULL);
}

static void test_json_escapes_whatever_comes(void **state) {
    (void)state;
    static const struct {
        const char *said, *read;
    } cases[] = {
        {"a \"b\" \\ c", "a \"b\" \\ c"},
        {"line\nother\ttab\x01\x1b[31m\x7f", "line\nother\ttab\x01\x1b[31m\x7f"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xff\xfe \xc3", "?? ?"},                     // no UTF-8, and the half of a character
        {"\xc0\xaf \xe0\x80\xaf", "?? ???"},           // longer than need be
        {"\xed\xa0\x80 \xf4\x90\x80\x80", "??? ????"}, // a surrogate, and beyond Unicode
        {"", ""},
    };
    sl_log_set_format("json", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nasty = cases[i].said;
        json_t *line = json_of(write_nasty);
        assert_field(line, "message", cases[i].read);
        json_decref(line);
    }
    // Cut wherever it is: in the midst of a character, or of what is escaped.
    static char text[6000];
    static const char *const units[] = {"x", "\x01", "\xe2\x82\xac", "\"", "\xff"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        for (size_t offset = 0; offset < 7; offset++) {
            size_t n = offset;
            memset(text, 'y', offset);
            while (n + strlen(units[u]) < sizeof text) {
                memcpy(text + n, units[u], strlen(units[u]));
                n += strlen(units[u]);
            }
            text[n] = '\0';
            nasty = text;
            json_t *line = json_of(write_nasty);
            const char *message = json_string_value(json_object_get(line, "message"));
            assert_string_equal(message + strlen(message) - 3, "...");
            json_decref(line);
        }
    }
    sl_log_set_format("text", NULL);
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
        cmocka_unit_test(test_time_is_of_today),
        cmocka_unit_test(test_json_has_who_what_and_for_whom),
        cmocka_unit_test(test_json_job_is_the_threads_own),
        cmocka_unit_test(test_json_escapes_whatever_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
