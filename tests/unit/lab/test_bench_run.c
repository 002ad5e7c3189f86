// SPDX-License-Identifier: Apache-2.0
// Purpose: the last line of a bench says the CPU steal, and that of a bench that is a part of another one does not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/result.h"

struct bench {
    bool json;
    struct sl_signals signals;
};

static const struct sl_option option_table[] = {
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line", SL_FIELD(bench, json)},
};

static enum sl_status print_a_row(void *bench, struct sl_error *err) {
    (void)err;
    sl_bench_print(&(struct sl_bench_result){.bench = "pretended", .test = "a row", .value = 1.0, .unit = "ms"},
                   ((struct bench *)bench)->json);
    return SL_OK;
}

static const struct sl_bench pretended = {
    .name = "sluice bench pretended",
    .usage = "[options]",
    .summary = "Print a row.",
    SL_OPTIONS(option_table),
    .bytes = sizeof(struct bench),
    .signals = offsetof(struct bench, signals),
    .run = print_a_row,
};

// Runs the bench with its standard output in a file. Writes what it printed.
static void run(char *text_out, size_t text_bytes) {
    char *argv[] = {"pretended", "--json", NULL};
    FILE *file = tmpfile();
    int before = dup(STDOUT_FILENO);
    assert_true(file != NULL && before >= 0);
    fflush(stdout);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    int code = sl_bench_run(&pretended, 2, argv);
    fflush(stdout);
    assert_true(dup2(before, STDOUT_FILENO) >= 0);
    close(before);
    rewind(file);
    text_out[fread(text_out, 1, text_bytes - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(code, 0);
}

static void test_bench_run_says_the_steal_of_a_whole_bench(void **state) {
    (void)state;
    char whole[1024];
    run(whole, sizeof whole);
    assert_non_null(strstr(whole, "\"a row\""));
    assert_non_null(strstr(strstr(whole, "\"a row\""), "\"CPU steal\""));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bench_run_says_the_steal_of_a_whole_bench)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
