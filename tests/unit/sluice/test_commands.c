// SPDX-License-Identifier: Apache-2.0
// Purpose: the executable as a script sees it: exit codes, and nothing on standard output that is not the answer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct outcome {
    int code;
    char text[16384];
};

// Run a shell command line with $SLUICE as the executable.
static struct outcome run(const char *line) {
    struct outcome outcome = {.code = -1};
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t n = fread(outcome.text, 1, sizeof outcome.text - 1, pipe);
    outcome.text[n] = '\0';
    int status = pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
}

static int set_paths(void **state) {
    (void)state;
    const char *bin = getenv("SLUICE_BIN");
    if (!bin) {
        fprintf(stderr, "SLUICE_BIN is not set: run this test by ctest\n");
        return -1;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/sluice", bin);
    // No coordinator is ever there: port 1 is reserved.
    return setenv("SLUICE", path, 1) || setenv("SLUICE_COORDINATOR", "127.0.0.1:1", 1);
}

static void test_command_usage_errors_exit_with_2(void **state) {
    (void)state;
    static const char *const lines[] = {
        "$SLUICE 2>&1",
        "$SLUICE dance 2>&1",
        "$SLUICE run --colour 2>&1",
        "$SLUICE run 2>&1",
        "$SLUICE run --question hi --max-new 0 2>&1",
        "$SLUICE run --question hi --local 2>&1",
        "$SLUICE run --question hi extra 2>&1",
        "$SLUICE watch 2>&1",
        "$SLUICE up 2>&1",
        "$SLUICE up --model /nonexistent 2>&1",
        "$SLUICE recipes foo 2>&1",
        "$SLUICE jobs --log loud 2>&1",
        "$SLUICE plan 2>&1",
        "$SLUICE plan --cells /nonexistent --rate 0 2>&1",
        "$SLUICE run --question hi --deadline 5 2>&1", // of what?
        "$SLUICE jobs --timeout 2 2>&1",
        "$SLUICE top --interval 2 2>&1",
        "$SLUICE jobs --coordinator here 2>&1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct outcome o = run(lines[i]);
        if (o.code != 2) {
            fail_msg("%s: exit code %d: %s", lines[i], o.code, o.text);
        }
        assert_true(strlen(o.text) > 0); // it said why
    }
}

static void test_command_complaints_go_to_standard_error(void **state) {
    (void)state;
    struct outcome o = run("$SLUICE run --colour 2>/dev/null");
    assert_string_equal(o.text, "");
    o = run("$SLUICE jobs 2>/dev/null");
    assert_string_equal(o.text, "");
}

static void test_command_without_a_cluster_exits_with_3(void **state) {
    (void)state;
    static const char *const lines[] = {
        "$SLUICE run --question hi 2>&1",
        "$SLUICE submit --question hi 2>&1",
        "$SLUICE jobs 2>&1",
        "$SLUICE workers --json 2>&1",
        "$SLUICE top --once 2>&1",
        "$SLUICE drain prefill-0 2>&1",
        "$SLUICE cancel job-1 2>&1",
        "$SLUICE compare job-1 job-2 2>&1",
        "$SLUICE watch job-1 --timeout 300ms 2>&1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct outcome o = run(lines[i]);
        if (o.code != 3) {
            fail_msg("%s: exit code %d: %s", lines[i], o.code, o.text);
        }
        assert_non_null(strstr(o.text, "127.0.0.1:1")); // the coordinator that did not answer
        if (!strstr(lines[i], "watch")) {               // which waits for it to come back
            assert_non_null(strstr(o.text, "no coordinator at "));
            assert_non_null(strstr(o.text, "sluice up --detach --model DIR"));
        }
    }
}

static void test_command_help_describes_every_command(void **state) {
    (void)state;
    struct outcome o = run("$SLUICE --help");
    assert_int_equal(o.code, 0);
    static const char *const names[] = {"run", "chat",    "up",    "submit",  "watch", "cancel",  "jobs",
                                        "top", "workers", "drain", "recipes", "plan",  "simulate"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_non_null(strstr(o.text, names[i]));
        char line[128];
        snprintf(line, sizeof line, "$SLUICE %s --help", names[i]);
        struct outcome help = run(line);
        assert_int_equal(help.code, 0);
        assert_non_null(strstr(help.text, "Usage: sluice "));
        assert_non_null(strstr(help.text, "Exit codes:"));
    }
}

static void test_command_help_names_a_command(void **state) {
    (void)state;
    static const char *const names[] = {"run", "doc add"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "$SLUICE help %s", names[i]);
        struct outcome named = run(line);
        snprintf(line, sizeof line, "$SLUICE %s --help", names[i]);
        struct outcome usual = run(line);
        assert_int_equal(named.code, 0);
        assert_string_equal(named.text, usual.text);
    }
    assert_non_null(strstr(run("$SLUICE help").text, "Commands:"));
    assert_int_equal(run("$SLUICE help dance 2>&1").code, 2);
}

// Sends the signal when it is blocked: before, it would end the process.
static void test_command_run_that_waits_ends_at_a_signal(void **state) {
    (void)state;
    struct outcome o =
        run("$SLUICE run --wait 60s --prompt x 2>&1 & p=$!; "
            "while kill -0 $p && ! grep -q '^SigBlk:.*[4-7c-f]...$' /proc/$p/status; do sleep 0.02; done; "
            "kill $p; wait $p");
    assert_int_equal(o.code, 4);
    assert_non_null(strstr(o.text, "stopped by a signal"));
}

// Times as `sluice bench calibrate` writes them.
#define COSTS                                                                                                          \
    "costs=$(mktemp) && printf '{\"machine\": \"m\", \"rows\": 256, \"prefill\": [[1, 0, 0.1], [512, 0, 50]], "        \
    "\"decode\": {\"full\": [[1, 0, 5]]}, \"ship\": {\"bytes_per_s\": 1e9, \"latency_ms\": 0}, "                       \
    "\"store\": {\"lookup_ms\": 0}, \"call_ms\": 1}' > $costs && $SLUICE plan --costs $costs --rate 9 --count 200 "    \
    "--input 1000 "

static void test_command_plan_counts_workers(void **state) {
    (void)state;
    struct outcome o = run(COSTS "full 2>&1");
    assert_int_equal(o.code, 0);
    assert_non_null(strstr(o.text, "RECIPE"));
    assert_non_null(strstr(o.text, "aggregated"));
    o = run(COSTS "--json full");
    assert_int_equal(o.code, 0);
    assert_non_null(strstr(o.text, "\"decode_workers\":"));
    o = run(COSTS "--slo ttft:1ms full 2>&1"); // a plan that does not exist
    assert_int_equal(o.code, 1);
    assert_non_null(strstr(o.text, "more than 64 of a role"));
    o = run(COSTS "budgt 2>&1");
    assert_int_equal(o.code, 2);
}

static void test_command_recipes_list_and_explain(void **state) {
    (void)state;
    struct outcome o = run("$SLUICE recipes");
    assert_int_equal(o.code, 0);
    assert_non_null(strstr(o.text, "h2o"));
    o = run("$SLUICE recipes --json | head -1");
    assert_non_null(strstr(o.text, "\"name\":\"full\""));
    o = run("$SLUICE recipes --recommended | grep -c %");
    struct outcome as_json = run("$SLUICE recipes --recommended --json | grep -c ships_at_most");
    assert_string_not_equal(o.text, "0\n");
    assert_string_equal(as_json.text, o.text);
    // Two ways to write one recipe have one fingerprint.
    struct outcome a = run("$SLUICE recipes full,format=int4 | cut -d' ' -f1");
    struct outcome b = run("$SLUICE recipes format=int4 | cut -d' ' -f1");
    assert_int_equal(strlen(a.text), 17);
    assert_string_equal(a.text, b.text);
}

// The axes of some presets are a line of their own.
static void test_command_recipes_fit_a_terminal(void **state) {
    (void)state;
    struct outcome o = run("$SLUICE recipes | awk 'length($0) > 120' | wc -l");
    assert_string_equal(o.text, "0\n");
    o = run("$SLUICE recipes --axes | awk 'length($0) > 120' | wc -l");
    assert_string_equal(o.text, "0\n");
    o = run("$SLUICE recipes --axes | grep -c score=aas,scope=recent:0.5,budget=0.2,when=chunk");
    assert_string_equal(o.text, "1\n");
    o = run("$SLUICE recipes h2o");
    assert_non_null(strstr(o.text, "  h2o: score=aas,scope=recent:0.5,budget=0.2,when=chunk\n"));
}

static void test_command_on_a_full_disk_fails(void **state) {
    (void)state;
    static const char *const lines[] = {
        "$SLUICE recipes 2>&1 >/dev/full",
        "$SLUICE recipes --json 2>&1 >/dev/full",
        "$SLUICE --help 2>&1 >/dev/full",
        "$SLUICE bench --help 2>&1 >/dev/full",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct outcome o = run(lines[i]);
        if (o.code != 1 || strstr(o.text, "cannot be written") == NULL) {
            fail_msg("%s: exit code %d: %s", lines[i], o.code, o.text);
        }
    }
}

static void test_command_help_says_what_the_environment_gives(void **state) {
    (void)state;
    struct outcome o = run("$SLUICE run --help | grep -A1 'In the environment: '");
    assert_non_null(strstr(o.text, "SLUICE_MODEL,"));
    assert_null(strstr(o.text, "SLUICE_PROMPT"));
    o = run("$SLUICE recipes --help | grep 'In the environment:'");
    assert_non_null(strstr(o.text, "SLUICE_LOG."));
    o = run("$SLUICE-decode --help | grep 'in the environment'");
    assert_non_null(strstr(o.text, "Every option can be given"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_usage_errors_exit_with_2),
        cmocka_unit_test(test_command_complaints_go_to_standard_error),
        cmocka_unit_test(test_command_without_a_cluster_exits_with_3),
        cmocka_unit_test(test_command_help_describes_every_command),
        cmocka_unit_test(test_command_help_names_a_command),
        cmocka_unit_test(test_command_run_that_waits_ends_at_a_signal),
        cmocka_unit_test(test_command_plan_counts_workers),
        cmocka_unit_test(test_command_recipes_list_and_explain),
        cmocka_unit_test(test_command_recipes_fit_a_terminal),
        cmocka_unit_test(test_command_on_a_full_disk_fails),
        cmocka_unit_test(test_command_help_says_what_the_environment_gives),
    };
    return cmocka_run_group_tests(tests, set_paths, NULL);
}
