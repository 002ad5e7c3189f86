// SPDX-License-Identifier: Apache-2.0
// Purpose: rows of training files, and errors that name their line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/tasks/rows.h"
#include "tests/unit/temp_folder.h"

static struct temp_folder folder;
static char path[384];

static int setup(void **state) {
    (void)state;
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/data.jsonl", folder.path);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    temp_folder_destroy(&folder);
    return 0;
}

static struct sl_training_rows open_text(const char *text) {
    struct sl_training_rows rows;
    struct sl_error err = {0};
    temp_folder_write_text(&folder, "data.jsonl", text);
    if (sl_training_rows_open(path, &rows, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return rows;
}

static void assert_refused_bytes(const char *bytes, size_t n_bytes, const char *reason) {
    struct sl_training_rows rows = {.n = 77};
    struct sl_error err = {0};
    temp_folder_write(&folder, "data.jsonl", bytes, n_bytes);
    assert_int_equal(sl_training_rows_open(path, &rows, &err), SL_ERR_INVALID);
    if (!strstr(err.text, reason)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, reason);
    }
    assert_int_equal(rows.n, 77);
}

static void assert_refused(const char *text, const char *reason) {
    assert_refused_bytes(text, strlen(text), reason);
}

static void test_rows_have_a_prompt_and_answers(void **state) {
    (void)state;
    struct sl_training_rows rows =
        open_text("\xEF\xBB\xBF{\"prompt\": \"p\", \"answer\": \"x\", \"more\": [1]}\r\n \t\n"
                  "{\"prompt\": \"q\", \"answers\": [\"a\", 7, 0.5], \"answer\": \"no\"}");
    assert_int_equal(rows.n, 2);
    assert_string_equal(rows.samples[0].prompt, "p");
    assert_int_equal(rows.samples[0].n_answers, 1);
    assert_string_equal(rows.samples[0].answers[0], "x");
    assert_int_equal(rows.samples[1].n_answers, 3);
    assert_string_equal(rows.samples[1].answers[0], "a");
    assert_string_equal(rows.samples[1].answers[1], "7");
    assert_string_equal(rows.samples[1].answers[2], "0.5");
    sl_training_rows_cleanup(&rows);
    assert_null(rows.samples);
}

static void test_rows_name_the_line(void **state) {
    (void)state;
    const char *good = "{\"prompt\": \"p\", \"answers\": [\"x\"]}\n";
    const struct {
        const char *line, *reason;
    } cases[] = {
        {"{", "data.jsonl:2: byte "},
        {"[1]", "data.jsonl:2: a line must be a JSON object"},
        {"{\"prompt\": \"i\", \"prompt\": \"j\"}", "duplicate"},
        {"{\"answers\": [\"x\"]}", "no \"prompt\""},
        {"{\"prompt\": \"i\"}", "no \"answers\""},
        {"{\"prompt\": \"i\", \"answers\": null}", "no \"answers\""},
        {"{\"prompt\": \"i\", \"answers\": []}", "\"answers\" is empty"},
        {"{\"prompt\": \"i\", \"answers\": [[\"x\"]]}", "\"answers\" must be"},
        {"{\"prompt\": \"i\", \"answers\": {}}", "\"answers\" must be"},
        {"{\"prompt\": \"i\", \"answer\": true}", "\"answer\" must be"},
        {"{\"prompt\": 1, \"answers\": [\"x\"]}", "\"prompt\" must be a text"},
        {"{\"prompt\": \"\", \"answers\": [\"x\"]}", "\"prompt\" must be a text"},
        {"{\"prompt\": \"a\\u0000b\", \"answers\": [\"x\"]}", "\\u0000"},
        {"{\"prompt\": \"\\ud800\", \"answers\": [\"x\"]}", "Unicode"},
        {"{\"prompt\": \"\xC3(\", \"answers\": [\"x\"]}", "UTF-8"},
        {"{\"prompt\": \"i\", \"answers\": [\"x\"]} {}", "data.jsonl:2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s\n%s", good, cases[i].line, good);
        assert_refused(text, cases[i].reason);
    }
    assert_refused_bytes("{}\0{}", 5, "data.jsonl:1");
    assert_refused_bytes("\0", 1, "data.jsonl:1");
}

static void test_rows_need_a_file_with_rows(void **state) {
    (void)state;
    assert_refused("", "no question in it");
    assert_refused("\n \t\r\n", "no question in it");
    struct sl_training_rows rows;
    struct sl_error err = {0};
    assert_int_equal(sl_training_rows_open("/nonexistent/rows.jsonl", &rows, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/rows.jsonl"));
    assert_int_equal(sl_training_rows_open(folder.path, &rows, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "is not a file"));
}

static void test_rows_refuse_a_line_without_end(void **state) {
    (void)state;
    struct sl_training_rows rows;
    struct sl_error err = {0};
    temp_folder_write_text(&folder, "data.jsonl", "");
    assert_int_equal(truncate(path, (64 << 20) + 1), 0); // zeros, which take no room
    assert_int_equal(sl_training_rows_open(path, &rows, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "data.jsonl:1: longer than 64 MiB"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_have_a_prompt_and_answers),
        cmocka_unit_test(test_rows_name_the_line),
        cmocka_unit_test(test_rows_need_a_file_with_rows),
        cmocka_unit_test(test_rows_refuse_a_line_without_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
