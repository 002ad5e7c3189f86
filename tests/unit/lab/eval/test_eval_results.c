// SPDX-License-Identifier: Apache-2.0
// Purpose: answers survive on disk: a file is gone on with, a cut line is dropped, and what is of another run is not
// mixed in.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/eval/run/eval_results.h"

static const struct sl_eval_run run = {.model = 0xabc, .weights = "stored", .tokenizer = 0xdef, .seed = 7};

struct fixture {
    char folder[32], path[64];
};

static int set_up(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    strcpy(f->folder, "/tmp/sluice-test-XXXXXX");
    if (!mkdtemp(f->folder)) {
        return -1;
    }
    snprintf(f->path, sizeof f->path, "%s/r.jsonl", f->folder);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    unlink(f->path);
    int code = rmdir(f->folder);
    free(f);
    return code;
}

static struct sl_eval_key key_of(int64_t index) {
    return (struct sl_eval_key){
        .recipe = "h2o,budget=0.2", .cell = "niah-essay", .n_tokens = 4096, .depth = -1, .index = index};
}

static struct sl_eval_answer answer_of(double score, const char *text) {
    return (struct sl_eval_answer){.name = "h2o",
                                   .budget = "20%",
                                   .text = text,
                                   .score = score,
                                   .prompt = 0xfedcba9876543210,
                                   .n_prompt = 4093,
                                   .shipped_bytes = 100,
                                   .offloaded_bytes = 300,
                                   .full_bytes = 500,
                                   .resident_bytes = 120,
                                   .slots_per_head = 818.5,
                                   .ttft_ms = 12.25,
                                   .tpot_ms = 1.5};
}

static struct sl_eval_results *open_results(const char *path) {
    struct sl_eval_results *results;
    struct sl_error err = {0};
    if (sl_eval_results_open(path, &run, &results, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return results;
}

static void add(struct sl_eval_results *results, int64_t index, double score, const char *text) {
    struct sl_eval_key key = key_of(index);
    struct sl_eval_answer answer = answer_of(score, text);
    assert_int_equal(sl_eval_results_add(results, &key, &answer, NULL), SL_OK);
}

static bool has(const struct sl_eval_results *results, int64_t index, struct sl_eval_answer *answer) {
    struct sl_eval_key key = key_of(index);
    return sl_eval_results_find(results, &key, answer);
}

// A file of two answers.
static void write_two(const char *path) {
    struct sl_eval_results *results = open_results(path);
    add(results, 0, 1, " 4817263.");
    add(results, 1, 0.25, "no \"idea\"\n\xff");
    sl_eval_results_close(&results);
}

static void append(const char *path, const char *text) {
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static char *read_all(const char *path, size_t *n) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 65536);
    assert_non_null(file);
    *n = fread(text, 1, 65535, file);
    fclose(file);
    return text;
}

// Expects that opening fails with `status` and words of the text, and leaves the file unchanged.
static void assert_refused(const char *path, const struct sl_eval_run *other, enum sl_status status,
                           const char *words) {
    struct sl_eval_results *results;
    struct sl_error err = {0};
    size_t n_before, n_after;
    char *before = read_all(path, &n_before);
    assert_int_equal(sl_eval_results_open(path, other, &results, &err), status);
    assert_non_null(strstr(err.text, words));
    assert_non_null(strstr(err.text, path));
    char *after = read_all(path, &n_after);
    assert_int_equal(n_before, n_after);
    assert_memory_equal(before, after, n_before);
    free(before);
    free(after);
}

static void test_results_are_there_again(void **state) {
    struct fixture *f = *state;
    struct sl_eval_answer a;
    write_two(f->path);
    struct sl_eval_results *results = open_results(f->path);
    assert_true(has(results, 0, &a));
    assert_true(a.score == 1 && a.prompt == 0xfedcba9876543210 && a.n_prompt == 4093);
    assert_true(a.shipped_bytes == 100 && a.offloaded_bytes == 300 && a.full_bytes == 500 && a.resident_bytes == 120);
    assert_true(a.slots_per_head == 818.5 && a.ttft_ms == 12.25 && a.tpot_ms == 1.5);
    assert_string_equal(a.name, "h2o");
    assert_string_equal(a.budget, "20%");
    assert_string_equal(a.text, " 4817263.");
    assert_null(a.refused);
    assert_true(has(results, 1, &a));
    assert_string_equal(a.text, "no \"idea\"\n?"); // JSON is UTF-8
    assert_false(has(results, 2, &a));
    struct sl_eval_key other = key_of(0);
    other.n_tokens = 8192;
    assert_false(sl_eval_results_find(results, &other, &a));
    other = key_of(0);
    other.depth = 0.5;
    assert_false(sl_eval_results_find(results, &other, &a));
    sl_eval_results_close(&results);
}

// Files from before there were bytes in stores can be continued.
static void test_results_of_older_versions_are_read(void **state) {
    struct fixture *f = *state;
    struct sl_eval_answer a;
    size_t n;
    write_two(f->path);
    char *text = read_all(f->path, &n), *field = strstr(text, "\"offloaded_bytes\":300,");
    assert_non_null(field);
    memmove(field, strchr(field, ',') + 1, strlen(strchr(field, ',')));
    unlink(f->path);
    append(f->path, text);
    free(text);
    struct sl_eval_results *results = open_results(f->path);
    assert_true(has(results, 0, &a) && a.offloaded_bytes == 0 && a.shipped_bytes == 100 && a.full_bytes == 500);
    assert_true(has(results, 1, &a) && a.offloaded_bytes == 300);
    sl_eval_results_close(&results);
}

static void test_results_refusals_are_kept_and_give_way(void **state) {
    struct fixture *f = *state;
    struct sl_eval_key key = key_of(0);
    struct sl_eval_answer a = {.name = "h2o", .budget = "", .refused = "no retaining heads"};
    struct sl_eval_results *results = open_results(f->path);
    assert_int_equal(sl_eval_results_add(results, &key, &a, NULL), SL_OK);
    sl_eval_results_close(&results);
    results = open_results(f->path);
    assert_true(has(results, 0, &a));
    assert_string_equal(a.refused, "no retaining heads");
    add(results, 0, 0.5, "now");
    sl_eval_results_close(&results);
    results = open_results(f->path); // of several the last one counts
    assert_true(has(results, 0, &a));
    assert_null(a.refused);
    assert_true(a.score == 0.5);
    sl_eval_results_close(&results);
}

static void test_results_drop_a_line_that_was_cut_off(void **state) {
    struct fixture *f = *state;
    struct sl_eval_answer a;
    size_t n_whole, n;
    write_two(f->path);
    char *whole = read_all(f->path, &n_whole);
    for (size_t cut = 1; cut < n_whole; cut++) { // wherever its writer was killed
        FILE *file = fopen(f->path, "w");
        fwrite(whole, 1, cut, file);
        fclose(file);
        struct sl_eval_results *results = open_results(f->path);
        bool first = has(results, 0, &a);
        if (!first) {
            add(results, 0, 1, " 4817263.");
        }
        add(results, 1, 0.25, "no \"idea\"\n\xff");
        sl_eval_results_close(&results);
        char *text = read_all(f->path, &n);
        assert_int_equal(n, n_whole);
        assert_memory_equal(text, whole, n);
        free(text);
    }
    free(whole);
}

static void test_results_of_another_run_are_refused_by_name(void **state) {
    struct fixture *f = *state;
    write_two(f->path);
    struct sl_eval_run other = run;
    other.model++;
    assert_refused(f->path, &other, SL_ERR_PRECONDITION, "\"model\" is \"0000000000000abc\" there");
    other = run;
    other.seed = 8;
    assert_refused(f->path, &other, SL_ERR_PRECONDITION, "\"seed\" is 7 there and 8 now");
    other = run;
    other.tokenizer = 1;
    assert_refused(f->path, &other, SL_ERR_PRECONDITION, "\"tokenizer\"");
    other = run;
    other.weights = "int8";
    assert_refused(f->path, &other, SL_ERR_PRECONDITION, "\"weights\"");
}

static void test_results_leave_other_files_alone(void **state) {
    struct fixture *f = *state;
    append(f->path, "my diary"); // no newline: not to be taken for a line that was cut off
    assert_refused(f->path, &run, SL_ERR_INVALID, "not a file of results");
    append(f->path, "\nand more\n");
    assert_refused(f->path, &run, SL_ERR_INVALID, "not a file of results");
    unlink(f->path);
    append(f->path, "{\"bench\": \"engine\"}\n");
    assert_refused(f->path, &run, SL_ERR_INVALID, "not a file of results");
}

static void test_results_refuse_damage_in_the_middle(void **state) {
    struct fixture *f = *state;
    write_two(f->path);
    append(f->path, "{\"recipe\": \"full\", \"score\": 1}\n");
    assert_refused(f->path, &run, SL_ERR_INVALID, "line 4 is no answer");
}

static void test_results_of_parts_are_put_one_behind_the_other(void **state) {
    struct fixture *f = *state;
    struct sl_eval_answer a;
    size_t n;
    write_two(f->path);
    char *text = read_all(f->path, &n);
    unlink(f->path);
    struct sl_eval_results *results = open_results(f->path);
    add(results, 2, 1, "x");
    sl_eval_results_close(&results);
    append(f->path, text);
    free(text);
    results = open_results(f->path);
    for (int64_t i = 0; i < 3; i++) {
        assert_true(has(results, i, &a));
    }
    sl_eval_results_close(&results);
    append(f->path, "{\"sluice_eval\": 1, \"model\": \"0000000000000abd\"}\n");
    assert_refused(f->path, &run, SL_ERR_PRECONDITION, "\"model\"");
}

static void test_results_are_written_by_one_at_a_time(void **state) {
    struct fixture *f = *state;
    struct sl_eval_results *results = open_results(f->path);
    assert_refused(f->path, &run, SL_ERR_EXISTS, "another run");
    sl_eval_results_close(&results);
    results = open_results(f->path);
    sl_eval_results_close(&results);
}

static void test_results_that_cannot_be_written_say_so(void **state) {
    (void)state;
    struct sl_eval_results *results;
    struct sl_error err = {0};
    assert_int_equal(sl_eval_results_open("/nonexistent/r", &run, &results, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/r: cannot be written"));
    assert_int_equal(sl_eval_results_open("/dev/null", &run, &results, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "not a file"));
}

static void test_results_in_memory_need_no_file(void **state) {
    (void)state;
    struct sl_eval_answer a;
    struct sl_eval_results *results = open_results(NULL);
    assert_false(has(results, 0, &a));
    add(results, 0, 1, "x");
    assert_true(has(results, 0, &a));
    sl_eval_results_close(&results);
    assert_null(results);
    sl_eval_results_close(&results);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_results_are_there_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_of_older_versions_are_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_refusals_are_kept_and_give_way, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_drop_a_line_that_was_cut_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_of_another_run_are_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_leave_other_files_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_refuse_damage_in_the_middle, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_of_parts_are_put_one_behind_the_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_are_written_by_one_at_a_time, set_up, tear_down),
        cmocka_unit_test(test_results_that_cannot_be_written_say_so),
        cmocka_unit_test(test_results_in_memory_need_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
