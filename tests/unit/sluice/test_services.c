// SPDX-License-Identifier: Apache-2.0
// Purpose: the programs that serve, as a script sees them before they do: what they refuse to be started with, and what they can be started without.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct start {
    const char *line; // of the shell, after the folder of the programs
    int code;
    const char *says;
};

static void assert_ends(const struct start *start) {
    char line[4096], text[16384];
    snprintf(line, sizeof line, "timeout 20 %s/%s 2>&1", getenv("SLUICE_BIN"), start->line);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
    int status = pclose(pipe);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != start->code || !strstr(text, start->says)) {
        fail_msg("%s: status %d, said: %s", start->line, status, text);
    }
}

static void test_services_refuse_what_they_cannot_be_started_with(void **state) {
    (void)state;
    static const struct start starts[] = {
        {"sluice-coordinator", 2, "--model DIR is needed"},
        {"sluice-coordinator --model models/demo now", 2, "unexpected argument 'now'"},
        {"sluice-coordinator --model models/demo --log loud", 2, "loud"},
        {"sluice-coordinator --model models/demo --kept-jobs 0", 2, "kept-jobs"},
        {"sluice-coordinator --model /nonexistent --kept-jobs 1", 2, "/nonexistent"},
        {"sluice-coordinator --help", 0, "Usage: sluice-coordinator"},
        {"sluice-prefill", 2, "give --model DIR"},
        {"sluice-prefill --help", 0, "Usage: sluice-prefill"},
        {"sluice-decode --colour", 2, "colour"},
        {"sluice-decode --help", 0, "Usage: sluice-decode"},
        {"sluice-kvstore now", 2, "now"},
        {"sluice-kvstore --coordinator 127.0.0.1:1 --arena 1M --disk /dev/null --disk-bytes 64M", 1, "/dev/null"},
        {"sluice-kvstore --help >/dev/full", 1, ""},
        {"sluice-kvstore --help", 0, "Usage: sluice-kvstore"},
    };
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        assert_ends(&starts[i]);
    }
}

// No library gets the number of a standard stream that a program was started without: the program would wait for it, or write to it.
static void test_programs_start_without_standard_streams(void **state) {
    (void)state;
    static const struct {
        const char *line; // of the shell, which knows the folder of the programs
        int code;
    } starts[] = {
        {"exec timeout 60 $SLUICE_BIN/sluice chat --local -m models/demo <&-", 0},
        {"exec timeout 60 $SLUICE_BIN/sluice recipes 2>&1 >&-", 1},
        {"exec timeout 60 $SLUICE_BIN/sluice recipes >/dev/null 2>&-", 0},
        {"$SLUICE_BIN/sluice-kvstore --listen 127.0.0.1:0 --arena 16M <&- >&- 2>&- & "
         "for i in $(seq 200); do "
         "  opened=$(readlink /proc/$!/fd/0 /proc/$!/fd/1 /proc/$!/fd/2 | tr '\\n' ' '); "
         "  [ \"$opened\" = '/dev/null /dev/null /dev/null ' ] && break; sleep 0.1; "
         "done; "
         "kill $!; [ $i -lt 200 ]",
         0},
    };
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        const int status = system(starts[i].line);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != starts[i].code) {
            fail_msg("%s: status %d", starts[i].line, status);
        }
    }
}

static int need_programs(void **state) {
    (void)state;
    return getenv("SLUICE_BIN") ? 0 : -1; // run by ctest
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_services_refuse_what_they_cannot_be_started_with),
        cmocka_unit_test(test_programs_start_without_standard_streams),
    };
    return cmocka_run_group_tests(tests, need_programs, NULL);
}
