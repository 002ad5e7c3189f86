// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice up` with the real executables: all come up, all exit, and a process that dies or hangs is handled.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define MAX_PROCESSES 8
#define MAX_WORDS     32

struct up {
    pid_t pid;
    char state_path[64], log_path[64];
    size_t n_processes, n_ready;
    pid_t processes[MAX_PROCESSES]; // [0] is the coordinator
};

static const char *bin(void) {
    const char *path = getenv("SLUICE_BIN");
    if (!path) {
        fail_msg("SLUICE_BIN is not set: run this test by ctest");
    }
    return path;
}

// more: further options, ended by NULL; or NULL.
static void start_with(struct up *up, const char *grace, const char *const *more) {
    char path[4096];
    snprintf(path, sizeof path, "%s/sluice", bin());
    snprintf(up->state_path, sizeof up->state_path, "/tmp/sluice-test-up-%d.json", (int)getpid());
    snprintf(up->log_path, sizeof up->log_path, "/tmp/sluice-test-up-%d.log", (int)getpid());
    unlink(up->state_path);
    up->pid = fork();
    if (up->pid == 0) {
        int log = open(up->log_path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        const char *words[MAX_WORDS] = {"sluice",      "up",  "--model",      "models/demo",  "--port",  "0",
                                        "--arena",     "32M", "--state-file", up->state_path, "--grace", grace,
                                        "--http-port", "0"};
        for (size_t n = 14; more && *more && n + 1 < MAX_WORDS;) {
            words[n++] = *more++;
        }
        execv(path, (char *const *)words);
        _exit(127);
    }
}

static void start(struct up *up, const char *grace, bool keep_going) {
    static const char *const options[] = {"--keep-going", NULL};
    start_with(up, grace, keep_going ? options : NULL);
}

static void print_log(const struct up *up) {
    char line[512];
    FILE *file = fopen(up->log_path, "r");
    while (file && fgets(line, sizeof line, file)) {
        fputs(line, stderr);
    }
    if (file) {
        fclose(file);
    }
}

// Reads the state file; false: it is not there.
static bool read_processes(struct up *up) {
    json_t *state = json_load_file(up->state_path, 0, NULL); // appears whole
    if (!state) {
        return false;
    }
    const json_t *processes = json_object_get(state, "processes");
    up->n_processes = json_array_size(processes);
    up->n_ready = 0;
    assert_true(up->n_processes >= 4 && up->n_processes <= MAX_PROCESSES);
    for (size_t i = 0; i < up->n_processes; i++) {
        const char *admin = json_string_value(json_object_get(json_array_get(processes, i), "admin"));
        assert_true(admin && (!admin[0] || strncmp(admin, "127.0.0.1:", 10) == 0));
        up->n_ready += admin[0] != '\0';
        up->processes[i] = (pid_t)json_integer_value(json_object_get(json_array_get(processes, i), "pid"));
    }
    json_decref(state);
    return true;
}

static void wait_until_ready(struct up *up) {
    int64_t until = sl_deadline_in_ms(60000);
    while (!read_processes(up)) {
        if (sl_deadline_left_ms(until) == 0) {
            print_log(up);
            kill(up->pid, SIGKILL);
            fail_msg("the cluster did not come up");
        }
        sl_sleep_ms(20);
    }
    assert_int_equal(up->n_ready, up->n_processes);
    for (size_t i = 0; i < up->n_processes; i++) {
        assert_int_equal(kill(up->processes[i], 0), 0);
    }
}

// Exit code within the deadline; and then nothing is left: no process, no state file.
static int wait_for_end(struct up *up, int64_t ms) {
    int status = 0;
    pid_t ended = 0;
    for (int64_t until = sl_deadline_in_ms(ms); ended == 0 && sl_deadline_left_ms(until) > 0; sl_sleep_ms(10)) {
        ended = waitpid(up->pid, &status, WNOHANG);
    }
    if (ended != up->pid) {
        print_log(up);
        kill(up->pid, SIGKILL);
        waitpid(up->pid, &status, 0);
        fail_msg("sluice up did not end within %lld ms", (long long)ms);
    }
    for (size_t i = 0; i < up->n_processes; i++) {
        assert_int_equal(kill(up->processes[i], 0), -1);
        assert_int_equal(errno, ESRCH);
    }
    assert_int_not_equal(access(up->state_path, F_OK), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool log_contains(const struct up *up, const char *text) {
    char line[4096];
    bool found = false;
    FILE *file = fopen(up->log_path, "r");
    while (file && fgets(line, sizeof line, file)) {
        found = found || strstr(line, text);
    }
    if (file) {
        fclose(file);
    }
    return found;
}

static void test_up_stops_everything_on_a_signal(void **state) {
    (void)state;
    struct up up = {0};
    start(&up, "20s", false);
    wait_until_ready(&up);
    kill(up.pid, SIGTERM);
    assert_int_equal(wait_for_end(&up, 60000), 0);
    assert_true(log_contains(&up, "ready rpc="));
    assert_true(log_contains(&up, "decode-0      http://127.0.0.1:") && log_contains(&up, "/metrics"));
    assert_true(log_contains(&up, "/status\n"));
    assert_false(log_contains(&up, "killing it")); // no process was killed by force
    unlink(up.log_path);
}

static void test_up_ends_when_a_coordinator_dies(void **state) {
    (void)state;
    struct up up = {0};
    start(&up, "20s", false);
    wait_until_ready(&up);
    kill(up.processes[0], SIGKILL);
    assert_int_equal(wait_for_end(&up, 60000), 1);
    assert_true(log_contains(&up, "was killed by signal 9"));
    unlink(up.log_path);
}

// A worker that dies is started again, in its place, and the state file has the new one.
static void test_up_starts_a_worker_again(void **state) {
    (void)state;
    struct up up = {0};
    start(&up, "20s", false);
    wait_until_ready(&up);
    pid_t was = up.processes[2];
    kill(was, SIGKILL);
    int64_t until = sl_deadline_in_ms(30000);
    while (up.processes[2] == was || up.n_ready < up.n_processes) {
        assert_true(sl_deadline_left_ms(until) > 0);
        sl_sleep_ms(50);
        assert_true(read_processes(&up));
    }
    assert_true(log_contains(&up, "was killed by signal 9 (Killed): started again in 0.2 s"));
    kill(up.pid, SIGTERM);
    assert_int_equal(wait_for_end(&up, 60000), 0);
    unlink(up.log_path);
}

static void test_up_refuses_what_its_processes_would_refuse(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"-a", "12", "--arena: '12' is neither auto nor a size"},
        {"-a", "lots", "--arena: 'lots' is neither"},
        {"-t", "foo", "--transport foo: expected auto, shm"},
        {"--workers-log", "loud", "'loud' is not a level"},
        {"--", "--nope", "unknown option --nope"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct up up = {0};
        start_with(&up, "20s", (const char *const[]){cases[i][0], cases[i][1], NULL});
        assert_int_equal(wait_for_end(&up, 60000), 2);
        assert_true(log_contains(&up, cases[i][2]));
        assert_false(log_contains(&up, "stopping")); // nothing had been started
        unlink(up.log_path);
    }
}

static void test_up_keeps_going_if_told_to(void **state) {
    (void)state;
    struct up up = {0};
    start(&up, "20s", true);
    wait_until_ready(&up);
    kill(up.processes[3], SIGKILL);
    for (int64_t until = sl_deadline_in_ms(20000); !log_contains(&up, "was killed by signal 9");) {
        assert_true(sl_deadline_left_ms(until) > 0);
        sl_sleep_ms(20);
    }
    assert_int_equal(kill(up.processes[0], 0), 0);
    kill(up.pid, SIGINT);
    assert_int_equal(wait_for_end(&up, 60000), 0);
    unlink(up.log_path);
}

static void test_up_kills_what_does_not_stop(void **state) {
    (void)state;
    struct up up = {0};
    start(&up, "300ms", false);
    wait_until_ready(&up);
    kill(up.processes[1], SIGSTOP);
    kill(up.pid, SIGTERM);
    assert_int_equal(wait_for_end(&up, 60000), 0);
    assert_true(log_contains(&up, "did not stop, killing it"));
    unlink(up.log_path);
}

static void test_up_that_is_killed_takes_its_processes_along(void **state) {
    (void)state;
    struct up up = {0};
    start(&up, "20s", false);
    wait_until_ready(&up);
    kill(up.pid, SIGKILL);
    assert_int_equal(waitpid(up.pid, NULL, 0), up.pid);
    for (size_t i = 0; i < up.n_processes; i++) {
        // Orphans are collected by init, where there is one; a zombie is as dead.
        char path[64], what = 'R';
        snprintf(path, sizeof path, "/proc/%d/stat", (int)up.processes[i]);
        for (int64_t until = sl_deadline_in_ms(20000); what != 'Z' && what != 'X'; sl_sleep_ms(10)) {
            FILE *file = fopen(path, "r");
            what = 'X';
            if (file && fscanf(file, "%*d (%*[^)]) %c", &what) != 1) {
                what = 'X';
            }
            if (file) {
                fclose(file);
            }
            assert_true(sl_deadline_left_ms(until) > 0);
        }
    }
    unlink(up.state_path);
    unlink(up.log_path);
}

// A store that has opened its folder holds a lock in it.
static bool is_used(const char *disk, int store) {
    char path[128];
    snprintf(path, sizeof path, "%s/kvstore-%d/owner", disk, store);
    return access(path, F_OK) == 0;
}

static void test_up_gives_every_store_a_folder_of_its_own(void **state) {
    (void)state;
    char disk[64], command[80];
    snprintf(disk, sizeof disk, "/tmp/sluice-test-up-%d.disk", (int)getpid());
    const char *const options[] = {"--kvstore", "2",     "--disk", disk, "--disk-bytes", "16M", "--evict",
                                   "ttl",       "--ttl", "2h",     NULL};
    for (int again = 0; again < 2; again++) { // a folder that is there is used
        struct up up = {0};
        start_with(&up, "20s", options);
        wait_until_ready(&up);
        assert_int_equal(up.n_processes, 6); // the gateway too
        assert_true(is_used(disk, 0) && is_used(disk, 1));
        assert_false(is_used(disk, 2));
        kill(up.pid, SIGTERM);
        assert_int_equal(wait_for_end(&up, 60000), 0);
        unlink(up.log_path);
    }
    snprintf(command, sizeof command, "rm -r %s", disk);
    assert_int_equal(system(command), 0);
}

static void test_up_refuses_half_a_disk(void **state) {
    (void)state;
    static const struct {
        const char *options[7], *says;
        int code;
    } cases[] = {
        {{"--disk-bytes", "16M", NULL}, "--disk-bytes is for --disk DIR or --state DIR", 2},
        {{"--state", "/tmp/sluice-test-never", "--disk", "/tmp/sluice-test-never", NULL}, "give it or them", 2},
        {{"--state", "/dev/null/folder", NULL}, "/dev/null: is not a folder", 1},
        {{"--disk", "/tmp/sluice-test-never", "--disk-bytes", "16M", "--kvstore", "0", NULL}, "--kvstore 0", 2},
        {{"--disk", "/nonexistent/disk", "--disk-bytes", "16M", NULL}, "/nonexistent/disk: cannot be made", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct up up = {0};
        start_with(&up, "20s", cases[i].options);
        assert_int_equal(wait_for_end(&up, 60000), cases[i].code);
        assert_true(log_contains(&up, cases[i].says));
        assert_int_not_equal(access("/tmp/sluice-test-never", F_OK), 0);
        unlink(up.log_path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_up_stops_everything_on_a_signal),
        cmocka_unit_test(test_up_ends_when_a_coordinator_dies),
        cmocka_unit_test(test_up_starts_a_worker_again),
        cmocka_unit_test(test_up_refuses_what_its_processes_would_refuse),
        cmocka_unit_test(test_up_keeps_going_if_told_to),
        cmocka_unit_test(test_up_kills_what_does_not_stop),
        cmocka_unit_test(test_up_that_is_killed_takes_its_processes_along),
        cmocka_unit_test(test_up_gives_every_store_a_folder_of_its_own),
        cmocka_unit_test(test_up_refuses_half_a_disk),
    };
    char here[] = "/tmp/sluice-test-here-XXXXXX", command[80]; // where `sluice up` keeps what it says
    if (!mkdtemp(here) || setenv("XDG_RUNTIME_DIR", here, 1) != 0) {
        return 1;
    }
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", here);
    return system(command) == 0 ? n_failed : 1;
}
