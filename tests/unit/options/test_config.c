// SPDX-License-Identifier: Apache-2.0
// Purpose: the values that the option table accepts and refuses, and its error messages.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/options/config.h"

struct config {
    const char *name;
    int64_t port, arena_bytes, timeout_ms;
    double ratio;
    bool json, has_port, has_ratio, timed;
    struct sl_option_list words;
};

static const struct sl_option options[] = {
    {"name", 'n', SL_OPTION_STRING, "w-0", "NAME", "name of the worker", SL_FIELD(config, name), 0, 0},
    {"port", 'p', SL_OPTION_INT, "7600", "PORT", "port", SL_FIELD(config, port), 1, 65535, SL_GIVEN(config, has_port)},
    {"arena-size", 0, SL_OPTION_SIZE, "64M", "SIZE", "arena", SL_FIELD(config, arena_bytes), 4096, 1e15},
    {"timeout", 0, SL_OPTION_DURATION, "2s", "TIME", "timeout", SL_FIELD(config, timeout_ms), 0, 0},
    {"ratio", 0, SL_OPTION_FLOAT, NULL, "R", "ratio", SL_FIELD(config, ratio), 0, 1, SL_GIVEN(config, has_ratio)},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "print JSON", SL_FIELD(config, json), 0, 0},
    {"word", 'w', SL_OPTION_LIST, NULL, "TEXT", "a word, several times", SL_FIELD(config, words), 0, 0},
    {"timed", 0, SL_OPTION_FLAG, NULL, NULL, "print times", SL_FIELD(config, timed), 0, 0},
};
static const struct sl_program program = {
    .name = "test", .usage = "[options] FILE", .summary = "A test.", SL_OPTIONS(options)};

static struct config config;
static struct sl_error err;
static int first;

static enum sl_status parse(int argc, char **argv) {
    memset(&config, 0, sizeof config);
    config.ratio = 0.25; // set by the caller, left alone by an option without a default
    memset(&err, 0, sizeof err);
    first = -1;
    return sl_config_parse(&program, argc, argv, &config, &first, &err);
}

#define PARSE(...)                                                                                                     \
    parse((int)(sizeof((char *[]){"test", ##__VA_ARGS__}) / sizeof(char *)), (char *[]){"test", ##__VA_ARGS__, NULL})

static void test_config_defaults(void **state) {
    (void)state;
    assert_int_equal(PARSE(), SL_OK);
    assert_string_equal(config.name, "w-0");
    assert_int_equal(config.port, 7600);
    assert_int_equal(config.arena_bytes, 64 << 20);
    assert_int_equal(config.timeout_ms, 2000);
    assert_true(config.ratio == 0.25);
    assert_false(config.json);
    assert_int_equal(first, 1);
    assert_false(config.has_port || config.has_ratio);
}

// A default value that the user gives counts as given; so does one from the environment.
static void test_config_tells_a_value_from_the_default(void **state) {
    (void)state;
    assert_int_equal(PARSE("--port", "7600"), SL_OK);
    assert_true(config.has_port && !config.has_ratio);
    assert_int_equal(PARSE("--ratio=0"), SL_OK);
    assert_true(config.has_ratio && !config.has_port);
    assert_int_equal(PARSE("--ratio", "2"), SL_ERR_INVALID);
    assert_false(config.has_ratio);
}

static void test_config_command_line(void **state) {
    (void)state;
    char *argv[] = {"test", "-p", "1", "file", "--ratio=0.5", "-j", "--timeout", "3m", "--", "-x", NULL};
    assert_int_equal(parse(10, argv), SL_OK);
    assert_int_equal(config.port, 1);
    assert_true(config.ratio == 0.5);
    assert_true(config.json);
    assert_int_equal(config.timeout_ms, 180000);
    assert_int_equal(first, 8);
    assert_string_equal(argv[8], "file");
    assert_string_equal(argv[9], "-x");
}

static void test_config_lists_keep_every_value_in_order(void **state) {
    (void)state;
    assert_int_equal(PARSE(), SL_OK);
    assert_int_equal(config.words.n, 0);
    assert_int_equal(PARSE("-w", "one", "--word", "two", "-j", "--word=three"), SL_OK);
    assert_int_equal(config.words.n, 3);
    assert_string_equal(config.words.items[0], "one");
    assert_string_equal(config.words.items[1], "two");
    assert_string_equal(config.words.items[2], "three");
    char *argv[2 * SL_MAX_OPTION_LIST + 4] = {"test"};
    for (int i = 0; i <= SL_MAX_OPTION_LIST; i++) {
        argv[1 + 2 * i] = "-w";
        argv[2 + 2 * i] = "x";
    }
    assert_int_equal(parse(1 + 2 * SL_MAX_OPTION_LIST, argv), SL_OK);
    assert_int_equal(parse(3 + 2 * SL_MAX_OPTION_LIST, argv), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "--word: given more than 32 times"));
}

static void test_config_environment_yields_to_the_command_line(void **state) {
    (void)state;
    setenv("SLUICE_PORT", "9", 1);
    setenv("SLUICE_ARENA_SIZE", "2G", 1);
    setenv("SLUICE_JSON", "true", 1);
    setenv("SLUICE_NAME", "", 1);
    assert_int_equal(PARSE(), SL_OK);
    assert_int_equal(config.port, 9);
    assert_int_equal(config.arena_bytes, 2LL << 30);
    assert_true(config.json);
    assert_string_equal(config.name, "w-0"); // an empty variable is not a variable
    assert_int_equal(PARSE("--port", "10"), SL_OK);
    assert_int_equal(config.port, 10);
    setenv("SLUICE_PORT", "many", 1);
    assert_int_equal(PARSE(), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "SLUICE_PORT"));
    assert_non_null(strstr(err.text, "many"));
    unsetenv("SLUICE_PORT");
    unsetenv("SLUICE_ARENA_SIZE");
    unsetenv("SLUICE_JSON");
    unsetenv("SLUICE_NAME");
}

static void assert_refused(enum sl_status status, const char *option, const char *value) {
    assert_int_equal(status, SL_ERR_INVALID);
    assert_non_null(strstr(err.text, option));
    assert_non_null(strstr(err.text, value));
    assert_int_equal(first, -1);
}

static void test_config_refuses_bad_values(void **state) {
    (void)state;
    static char *const bad_ints[] = {"", "x", "12x", " 12", "1.5", "99999999999999999999", "0x10"};
    for (size_t i = 0; i < sizeof bad_ints / sizeof bad_ints[0]; i++) {
        assert_refused(PARSE("--port", bad_ints[i]), "--port", bad_ints[i]);
    }
    static char *const bad_floats[] = {"", "x", "0.5x", "nan", "inf", "0x1p3", "1e400", " 1"};
    for (size_t i = 0; i < sizeof bad_floats / sizeof bad_floats[0]; i++) {
        assert_refused(PARSE("--ratio", bad_floats[i]), "--ratio", bad_floats[i]);
    }
    static char *const bad_sizes[] = {"", "M", "-1M", "1X", "1MM", "64 M", "1e30G"};
    for (size_t i = 0; i < sizeof bad_sizes / sizeof bad_sizes[0]; i++) {
        assert_refused(PARSE("--arena-size", bad_sizes[i]), "--arena-size", bad_sizes[i]);
    }
    assert_refused(PARSE("--timeout", "5d"), "--timeout", "5d");
}

static void test_config_refuses_values_out_of_bounds(void **state) {
    (void)state;
    assert_refused(PARSE("--port", "0"), "--port", "65535");
    assert_refused(PARSE("--port", "65536"), "--port", "65536");
    assert_refused(PARSE("--ratio", "1.01"), "--ratio", "1.01");
    assert_refused(PARSE("--arena-size", "1K"), "--arena-size", "4096");
    assert_int_equal(PARSE("--port", "65535"), SL_OK);
}

static void test_config_refuses_what_it_does_not_know(void **state) {
    (void)state;
    assert_refused(PARSE("--colour"), "unknown option --colour; see", "test --help");
    assert_refused(PARSE("--aren-size=4M"), "unknown option --aren-size=4M", "did you mean --arena-size;");
    assert_refused(PARSE("--wrod", "x"), "unknown option --wrod", "did you mean --word;");
    assert_refused(PARSE("--tim", "2s"), "--tim may be --timeout or --timed; see", "test --help");
    assert_refused(PARSE("--tim=2s"), "--tim=2s may be --timeout or --timed; see", "test --help");
    assert_refused(PARSE("--an-option-longer-than-any-that-there-is"), "--an-option-longer-than-any-that-there-is; see",
                   "");
    assert_refused(PARSE("-jx"), "unknown option", "-x");
    assert_refused(PARSE("--port"), "needs a value", "--port");
    assert_refused(PARSE("-p"), "needs a value", "-p");
    assert_refused(PARSE("--json=1"), "does not take a value", "--json=1");
}

static void test_config_help_and_version_end_the_program(void **state) {
    (void)state;
    assert_int_equal(PARSE("--help"), SL_ERR_CANCELLED);
    assert_int_equal(PARSE("-h"), SL_ERR_CANCELLED);
    assert_int_equal(PARSE("--version"), SL_ERR_CANCELLED);
    setenv("SLUICE_PORT", "nonsense", 1);
    assert_int_equal(PARSE("--help"), SL_ERR_CANCELLED);
    unsetenv("SLUICE_PORT");
}

static void test_parse_size_and_duration_units(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"0", 0}, {"512", 512}, {"1k", 1024}, {"1.5G", 3LL << 29}, {"2T", 2LL << 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t bytes = -1;
        assert_int_equal(sl_parse_size(sizes[i].text, &bytes), SL_OK);
        assert_true(bytes == sizes[i].bytes);
    }
    static const struct {
        const char *text;
        int64_t ms;
    } durations[] = {{"0", 0}, {"250ms", 250}, {"2s", 2000}, {"1.5m", 90000}, {"1h", 3600000}};
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        int64_t ms = -1;
        assert_int_equal(sl_parse_duration(durations[i].text, &ms), SL_OK);
        assert_true(ms == durations[i].ms);
    }
    int64_t untouched = 5;
    assert_int_equal(sl_parse_duration("5", &untouched), SL_ERR_INVALID);
    assert_int_equal(sl_parse_duration("00", &untouched), SL_ERR_INVALID);
    assert_int_not_equal(sl_parse_size("9999999999G", &untouched), SL_OK);
    // 0 means "without end" to some options: a positive value never becomes 0.
    assert_int_equal(sl_parse_duration("0.4ms", &untouched), SL_ERR_RANGE);
    assert_int_equal(sl_parse_size("0.1", &untouched), SL_ERR_RANGE);
    assert_int_equal(untouched, 5);
}

static void test_format_bytes(void **state) {
    (void)state;
    char buf[32];
    assert_string_equal(sl_format_bytes(0, buf, sizeof buf), "0 B");
    assert_string_equal(sl_format_bytes(1023, buf, sizeof buf), "1023 B");
    assert_string_equal(sl_format_bytes(67108864, buf, sizeof buf), "64.0 MiB");
    assert_string_equal(sl_format_bytes(1536, buf, sizeof buf), "1.5 KiB");
    assert_string_equal(sl_format_bytes(1e30, buf, 4), "888"); // cut, never overrun
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_defaults),
        cmocka_unit_test(test_config_tells_a_value_from_the_default),
        cmocka_unit_test(test_config_command_line),
        cmocka_unit_test(test_config_lists_keep_every_value_in_order),
        cmocka_unit_test(test_config_environment_yields_to_the_command_line),
        cmocka_unit_test(test_config_refuses_bad_values),
        cmocka_unit_test(test_config_refuses_values_out_of_bounds),
        cmocka_unit_test(test_config_refuses_what_it_does_not_know),
        cmocka_unit_test(test_config_help_and_version_end_the_program),
        cmocka_unit_test(test_parse_size_and_duration_units),
        cmocka_unit_test(test_format_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
