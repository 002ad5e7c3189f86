// SPDX-License-Identifier: Apache-2.0
// Purpose: real processes: their output line by line, the ready line, their ends, and that none outlives its parent.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/child.h"

static struct sl_child shell(const char *name, const char *script) {
    struct sl_child child;
    struct sl_error err = {0};
    char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
    assert_int_equal(sl_child_start(&child, name, argv, &err), SL_OK);
    return child;
}

// Pump until the child has ended (at most 20 s); what it wrote comes back, to be freed.
static char *pump_to_end(struct sl_child *child) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    for (int64_t until = sl_deadline_in_ms(20000); child->running && sl_deadline_left_ms(until) > 0;) {
        sl_children_pump(child, 1, 20, file);
    }
    fclose(file);
    assert_false(child->running);
    return text;
}

static void test_child_lines_carry_its_name(void **state) {
    (void)state;
    struct sl_child child = shell("decode-0", "echo one; echo two >&2; printf three");
    char *text = pump_to_end(&child);
    assert_non_null(strstr(text, "decode-0     | one\n"));
    assert_non_null(strstr(text, "decode-0     | two\n"));
    assert_non_null(strstr(text, "decode-0     | three\n")); // without a newline, and yet not lost
    free(text);
    sl_child_cleanup(&child);
}

// So that what collects logs can read it; a line of JSON names its process itself.
static void test_child_lines_of_json_stay_as_they_are(void **state) {
    (void)state;
    struct sl_child child = shell("decode-0", "echo '{\"a\":1}' >&2; echo '{no log}'");
    char *text = pump_to_end(&child);
    assert_true(strncmp(text, "{\"a\":1}\n", 8) == 0 || strstr(text, "\n{\"a\":1}\n"));
    assert_non_null(strstr(text, "decode-0     | {no log}\n"));
    free(text);
    sl_child_cleanup(&child);
}

static void test_child_ready_line_is_kept(void **state) {
    (void)state;
    struct sl_child child = shell("x", "echo ready rpc=127.0.0.1:7 fabric=127.0.0.1:8 name=x");
    char *text = pump_to_end(&child);
    assert_string_equal(text, "");
    free(text);
    char value[32];
    assert_true(sl_child_ready_value(&child, "rpc", value, sizeof value));
    assert_string_equal(value, "127.0.0.1:7");
    assert_true(sl_child_ready_value(&child, "name", value, sizeof value));
    assert_string_equal(value, "x");
    assert_false(sl_child_ready_value(&child, "rp", value, sizeof value));
    assert_false(sl_child_ready_value(&child, "fabric", value, 5));
    sl_child_cleanup(&child);
}

// They count as progress, and are kept out of the log; what only looks like one is passed on.
static void test_child_loading_lines_are_taken(void **state) {
    (void)state;
    struct sl_child child =
        shell("x", "sleep 0.1; echo loading done=5 total=10; echo loading done=9 total=0; echo loading x");
    int64_t started_ns = child.moved_ns;
    assert_true(sl_now_ns() - started_ns < 10 * SL_NS_PER_S);
    char *text = pump_to_end(&child);
    assert_null(strstr(text, "done=5"));
    assert_non_null(strstr(text, "x            | loading done=9 total=0\n"));
    assert_non_null(strstr(text, "x            | loading x\n"));
    free(text);
    assert_int_equal(child.done_bytes, 5);
    assert_int_equal(child.total_bytes, 10);
    assert_true(child.moved_ns - started_ns >= 100 * SL_NS_PER_MS);
    sl_child_cleanup(&child);
    child = shell("x", "sleep 0.1; echo loading done=11 total=10 >&2; echo loading done=11 total=10"); // at most all
    text = pump_to_end(&child);
    assert_string_equal(text,
                        "x            | loading done=11 total=10\n"); // standard error has no reports
    free(text);
    assert_int_equal(child.done_bytes, 10);
    sl_child_cleanup(&child);
}

static void test_child_long_output_does_not_block(void **state) {
    (void)state;
    // More than a pipe holds, in one line.
    struct sl_child child = shell("x", "head -c 300000 /dev/zero | tr '\\0' y");
    char *text = pump_to_end(&child);
    size_t n = 0;
    for (const char *c = text; *c; c++) {
        n += *c == 'y';
    }
    assert_int_equal(n, 300000);
    free(text);
    sl_child_cleanup(&child);
}

static void test_child_end_is_described(void **state) {
    (void)state;
    char end[96];
    struct sl_child child = shell("x", "exit 3");
    assert_string_equal(sl_child_describe_end(&child, end, sizeof end), "is running");
    free(pump_to_end(&child));
    assert_string_equal(sl_child_describe_end(&child, end, sizeof end), "exited with code 3");
    sl_child_cleanup(&child);

    child = shell("x", "sleep 60");
    sl_child_signal(&child, SIGKILL);
    free(pump_to_end(&child));
    assert_string_equal(sl_child_describe_end(&child, end, sizeof end), "was killed by signal 9 (Killed)");
    sl_child_signal(&child, SIGKILL); // there is no child
    sl_child_cleanup(&child);
}

static void test_child_hears_signals_that_its_parent_blocks(void **state) {
    (void)state;
    sigset_t set, old;
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, &old);
    struct sl_child child = shell("x", "trap 'echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    sigprocmask(SIG_SETMASK, &old, NULL);
    sl_sleep_ms(300);
    sl_child_signal(&child, SIGTERM);
    char *text = pump_to_end(&child);
    assert_non_null(strstr(text, "stopped"));
    free(text);
    sl_child_cleanup(&child);
}

static void test_child_that_cannot_start_is_an_error(void **state) {
    (void)state;
    struct sl_child child;
    struct sl_error err = {0};
    char *argv[] = {"/nonexistent/sluice-decode", NULL};
    assert_int_equal(sl_child_start(&child, "decode-0", argv, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/sluice-decode"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no zombie is left
}

static void test_child_dies_with_its_parent(void **state) {
    (void)state;
    int pids[2];
    assert_int_equal(pipe(pids), 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct sl_child child = shell("x", "sleep 60");
        ssize_t n = write(pids[1], &child.pid, sizeof child.pid);
        raise(n == (ssize_t)sizeof child.pid ? SIGKILL : SIGTERM); // as abrupt as it gets
    }
    pid_t grandchild;
    assert_int_equal(read(pids[0], &grandchild, sizeof grandchild), sizeof grandchild);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    close(pids[0]);
    close(pids[1]);
    bool gone = false;
    char stat_path[64];
    snprintf(stat_path, sizeof stat_path, "/proc/%d/stat", (int)grandchild);
    for (int64_t until = sl_deadline_in_ms(10000); !gone && sl_deadline_left_ms(until) > 0; sl_sleep_ms(10)) {
        FILE *file = fopen(stat_path, "r"); // gone, or a zombie that was not reaped yet
        char process_state = 'Z';
        if (file && fscanf(file, "%*d (%*[^)]) %c", &process_state) != 1) {
            process_state = 'Z';
        }
        if (file) {
            fclose(file);
        }
        gone = process_state == 'Z' || process_state == 'X';
    }
    assert_true(gone);
}

static void test_child_is_waited_for(void **state) {
    (void)state;
    struct sl_child child = shell("slow", "echo 'ready rpc=a'; exec sleep 60");
    sl_child_wait_end(&child, 100, stdout); // it is killed
    assert_true(WIFSIGNALED(child.wait_status) && WTERMSIG(child.wait_status) == SIGKILL);
    child = shell("gone", "exit 3");
    sl_child_wait_end(&child, 20000, stdout);
    assert_true(WIFEXITED(child.wait_status) && WEXITSTATUS(child.wait_status) == 3);
    child = shell("silent", "exec sleep 60");
    sl_child_signal(&child, SIGTERM);
    sl_child_wait_end(&child, 20000, stdout);
    assert_true(WIFSIGNALED(child.wait_status) && WTERMSIG(child.wait_status) == SIGTERM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child_lines_carry_its_name),
        cmocka_unit_test(test_child_lines_of_json_stay_as_they_are),
        cmocka_unit_test(test_child_ready_line_is_kept),
        cmocka_unit_test(test_child_loading_lines_are_taken),
        cmocka_unit_test(test_child_long_output_does_not_block),
        cmocka_unit_test(test_child_end_is_described),
        cmocka_unit_test(test_child_hears_signals_that_its_parent_blocks),
        cmocka_unit_test(test_child_that_cannot_start_is_an_error),
        cmocka_unit_test(test_child_dies_with_its_parent),
        cmocka_unit_test(test_child_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
