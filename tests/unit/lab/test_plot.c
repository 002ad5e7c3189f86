// SPDX-License-Identifier: Apache-2.0
// Purpose: lab/plot.h: a picture appears whole or not at all, and what is missing is said.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/plot.h"

static char dir[] = "/tmp/sluice-plot-test-XXXXXX";
static char path[64];

static int make_dir(void **state) {
    (void)state;
    if (!mkdtemp(dir) || setenv("TMPDIR", dir, 1) != 0) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/it's.png", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    return rmdir(dir); // fails when a temporary file was left
}

static int n_files(void) {
    DIR *stream = opendir(dir);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(stream));) {
        n += entry->d_name[0] != '.';
    }
    closedir(stream);
    return n;
}

static bool has_gnuplot(void) {
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

static void test_plot_quotes_so_that_nothing_is_a_command(void **state) {
    (void)state;
    char buf[64];
    assert_string_equal(sl_plot_quote("a'b\n`id`", buf, sizeof buf), "'a''b?`id`'");
    assert_string_equal(sl_plot_quote("", buf, sizeof buf), "''");
    char small[8];
    assert_string_equal(sl_plot_quote("''''''''", small, sizeof small), "''''''");
}

static void test_plot_draws_a_png(void **state) {
    (void)state;
    if (!has_gnuplot()) {
        skip();
    }
    struct sl_plot plot;
    struct sl_error err = {0};
    assert_int_equal(sl_plot_open(&plot, path, 300, 200, &err), SL_OK);
    fputs("plot '-' with lines\n0 1\n1 2\ne\n", plot.script);
    if (sl_plot_finish(&plot, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    FILE *file = fopen(path, "rb");
    char magic[8];
    assert_non_null(file);
    assert_int_equal(fread(magic, 1, 8, file), 8);
    assert_memory_equal(magic, "\x89PNG\r\n\x1a\n", 8);
    fclose(file);
    assert_int_equal(n_files(), 1);
    unlink(path);
}

static void test_plot_that_fails_leaves_nothing(void **state) {
    (void)state;
    if (!has_gnuplot()) {
        skip();
    }
    struct sl_plot plot;
    struct sl_error err = {0};
    assert_int_equal(sl_plot_open(&plot, path, 300, 200, &err), SL_OK);
    fputs("exit status 3\n", plot.script);
    assert_int_equal(sl_plot_finish(&plot, &err), SL_ERR_IO);
    assert_int_equal(n_files(), 0);
}

// gnuplot says nothing of a disk that is full.
static void test_plot_that_is_not_whole_is_no_picture(void **state) {
    (void)state;
    if (!has_gnuplot()) {
        skip();
    }
    struct sl_plot plot;
    struct sl_error err = {0};
    assert_int_equal(sl_plot_open(&plot, path, 300, 200, &err), SL_OK);
    fputs("exit\n", plot.script);
    assert_int_equal(sl_plot_finish(&plot, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(n_files(), 0);
}

static void test_plot_without_gnuplot_names_the_package(void **state) {
    (void)state;
    struct sl_plot plot;
    struct sl_error err = {0};
    char *before = strdup(getenv("PATH"));
    assert_int_equal(sl_plot_open(&plot, path, 300, 200, &err), SL_OK);
    setenv("PATH", "/nonexistent", 1);
    enum sl_status check = sl_plot_check(path, NULL), status = sl_plot_finish(&plot, &err);
    setenv("PATH", before, 1);
    free(before);
    assert_int_equal(check, SL_ERR_UNSUPPORTED);
    assert_int_equal(status, SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "gnuplot-nox"));
    assert_int_equal(n_files(), 0);
}

static void test_plot_into_a_folder_that_is_not_there_says_so(void **state) {
    (void)state;
    struct sl_plot plot;
    struct sl_error err = {0};
    assert_int_equal(sl_plot_open(&plot, "/nonexistent/x.png", 300, 200, &err), SL_ERR_IO);
    assert_int_equal(sl_plot_check("/nonexistent/x.png", &err), SL_ERR_IO);
    assert_int_equal(sl_plot_check(NULL, &err), SL_OK);
    assert_non_null(strstr(err.text, "/nonexistent/x.png"));
    sl_plot_finish(&plot, NULL);
    assert_int_equal(n_files(), 0);
}

static void test_plot_ticks_are_cut_and_quoted(void **state) {
    (void)state;
    char *text, name[80];
    size_t n;
    FILE *script = open_memstream(&text, &n);
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    sl_plot_tick(script, 0, "h2o,budget=20%");
    sl_plot_tick(script, 1, name);
    sl_plot_ticks_end(script);
    fclose(script);
    assert_ptr_equal(strstr(text, "set ytics ('h2o,budget=20%%' 0, 'xxxx"), text);
    assert_non_null(strstr(text, "x...' 1) nomirror\n"));
    assert_int_equal(strlen(text), strlen("set ytics ('h2o,budget=20%%' 0, '' 1) nomirror\n") + 44);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plot_ticks_are_cut_and_quoted),
        cmocka_unit_test(test_plot_quotes_so_that_nothing_is_a_command),
        cmocka_unit_test(test_plot_draws_a_png),
        cmocka_unit_test(test_plot_that_fails_leaves_nothing),
        cmocka_unit_test(test_plot_that_is_not_whole_is_no_picture),
        cmocka_unit_test(test_plot_without_gnuplot_names_the_package),
        cmocka_unit_test(test_plot_into_a_folder_that_is_not_there_says_so),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
