// SPDX-License-Identifier: Apache-2.0
// Purpose: data sets in the forms that benchmarks distribute, and what is wrong with a file told by its line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/eval/metrics/metric.h"
#include "lab/eval/tasks/dataset.h"
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

static struct sl_dataset_config config_of(const char *format, const char *name) {
    return (struct sl_dataset_config){.name = name, .path = path, .format = format};
}

static struct sl_dataset open_text(const struct sl_dataset_config *config, const char *text) {
    struct sl_dataset dataset;
    struct sl_error err = {0};
    temp_folder_write_text(&folder, "data.jsonl", text);
    if (sl_dataset_open(config, &dataset, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return dataset;
}

static void assert_refused_bytes(const struct sl_dataset_config *config, const char *bytes, size_t n_bytes,
                                 enum sl_status wanted, const char *reason) {
    struct sl_dataset dataset = {.n = 77};
    struct sl_error err = {0};
    temp_folder_write(&folder, "data.jsonl", bytes, n_bytes);
    assert_int_equal(sl_dataset_open(config, &dataset, &err), wanted);
    if (!strstr(err.text, reason)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, reason);
    }
    assert_int_equal(dataset.n, 77);
}

static void assert_refused(const struct sl_dataset_config *config, const char *text, const char *reason) {
    assert_refused_bytes(config, text, strlen(text), SL_ERR_INVALID, reason);
}

// --- what is read ------------------------------------------------------------------------------------------------

static void test_dataset_longbench(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("longbench", "hotpotqa");
    struct sl_dataset dataset =
        open_text(&config, "\xEF\xBB\xBF{\"input\": \"Who?\", \"context\": \"A {long} text.\", \"answers\": [\"He\", "
                           "\"him\"], \"all_classes\": null, \"length\": 7, \"_id\": \"x\"}\r\n"
                           "\n  \n"
                           "{\"input\": \"Wo?\", \"context\": \"\\u4e2d {input}\", \"answers\": [\"da\"]}");
    assert_string_equal(dataset.name, "hotpotqa");
    assert_false(dataset.first_line);
    assert_int_equal(dataset.n, 2);
    const struct sl_sample *sample = &dataset.samples[0];
    assert_non_null(strstr(sample->prompt, "\n\nA {long} text.\n\n"));
    assert_non_null(strstr(sample->prompt, "Question: Who?\nAnswer:"));
    assert_ptr_equal(sample->metric, sl_metric_find("f1"));
    assert_int_equal(sample->max_new_tokens, 32);
    assert_int_equal(sample->n_answers, 2);
    assert_string_equal(sample->answers[1], "him");
    assert_int_equal(sample->n_classes, 0);
    assert_non_null(strstr(dataset.samples[1].prompt, "\xE4\xB8\xAD {input}")); // what is put in is not looked at again
    sl_dataset_cleanup(&dataset);
    assert_null(dataset.samples);
    sl_dataset_cleanup(&dataset);
}

static void test_dataset_longbench_classes_and_first_line(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("longbench", "trec_e");
    struct sl_dataset dataset = open_text(&config, "{\"input\": \"q\", \"context\": \"c\", \"answers\": [\"Food\"], "
                                                   "\"all_classes\": [\"Food\", \"Drink\"]}\n");
    assert_true(dataset.first_line);
    assert_int_equal(dataset.samples[0].n_classes, 2);
    assert_string_equal(dataset.samples[0].classes[1], "Drink");
    assert_string_equal(dataset.samples[0].metric->name, "classification");
    sl_dataset_cleanup(&dataset);
}

static void test_dataset_infinitebench(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("infinitebench", "passkey");
    struct sl_dataset dataset =
        open_text(&config, "{\"id\": 0, \"context\": \"c\", \"input\": \"i\", \"answer\": \"71432\", \"options\": []}\n"
                           "{\"id\": 1, \"context\": \"c\", \"input\": \"i\", \"answer\": [\"9\"], \"options\": []}\n");
    assert_string_equal(dataset.samples[0].prompt, "c\n\ni\nAnswer:");
    assert_string_equal(dataset.samples[0].answers[0], "71432");
    assert_string_equal(dataset.samples[1].answers[0], "9");
    assert_int_equal(dataset.samples[0].max_new_tokens, 6);
    sl_dataset_cleanup(&dataset);

    config.name = "math_find";
    dataset = open_text(&config, "{\"context\": \"c\", \"input\": \"i\", \"answer\": 12}\n"
                                 "{\"context\": \"c\", \"input\": \"i\", \"answer\": [-0.5]}\n");
    assert_string_equal(dataset.samples[0].answers[0], "12");
    assert_string_equal(dataset.samples[1].answers[0], "-0.5");
    sl_dataset_cleanup(&dataset);
}

static void test_dataset_finds_the_letter_of_a_choice(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("infinitebench", "longbook_choice_eng");
    struct sl_dataset dataset = open_text(
        &config, "{\"context\": \"c\", \"input\": \"Who?\", \"answer\": [\"Ann\"], \"options\": [\"Bob\", \"Ann\"]}\n"
                 "{\"context\": \"c\", \"input\": \"Who?\", \"answer\": [\"Bob\", \"A\"], \"options\": [\"Bob\"]}\n");
    assert_non_null(strstr(dataset.samples[0].prompt, "Who?\nA. Bob\nB. Ann\n"));
    assert_int_equal(dataset.samples[0].n_answers, 2);
    assert_string_equal(dataset.samples[0].answers[0], "Ann");
    assert_string_equal(dataset.samples[0].answers[1], "B");
    assert_int_equal(dataset.samples[1].n_answers, 2);
    sl_dataset_cleanup(&dataset);
    assert_refused(&config,
                   "{\"context\": \"c\", \"input\": \"\", \"answer\": \"Cy\", \"options\": [\"Bob\", \"Ann\"]}",
                   "data.jsonl:1: the answer is none");
    config.name = "code_debug";
    assert_refused(&config, "{\"context\": \"c\", \"input\": \"\", \"answer\": \"Cy\"}", "none of the first four");
}

static void test_dataset_ruler(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("ruler", "niah_multivalue");
    struct sl_dataset dataset =
        open_text(&config, "{\"index\": 0, \"input\": \"All of it.\", \"outputs\": [\"1\", \"2\"], "
                           "\"length\": 9}\n"
                           "{\"input\": \"Q\", \"answer_prefix\": \" A\", \"outputs\": [\"1\"]}\n");
    assert_string_equal(dataset.samples[0].prompt, "All of it.");
    assert_string_equal(dataset.samples[1].prompt, "Q A");
    assert_string_equal(dataset.samples[0].metric->name, "contains-all");
    assert_int_equal(dataset.samples[0].max_new_tokens, 128);
    sl_dataset_cleanup(&dataset);
}

static void test_dataset_of_our_own(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("sluice", "mine");
    config.metric = "classification";
    config.max_new_tokens = 5;
    config.first_line = true;
    config.max_samples = 1; // the rest is not even parsed
    struct sl_dataset dataset =
        open_text(&config, "{\"prompt\": \"p\", \"answer\": \"x\", \"classes\": [\"x\", \"y\"]}\nrubbish\n");
    assert_int_equal(dataset.n, 1);
    assert_true(dataset.first_line);
    assert_string_equal(dataset.samples[0].prompt, "p");
    assert_int_equal(dataset.samples[0].max_new_tokens, 5);
    sl_dataset_cleanup(&dataset);
}

static void test_dataset_takes_a_prompt_and_a_metric(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("longbench", "hotpotqa");
    config.prompt = "{x}{input}{input} {options}{";
    config.metric = "exact";
    config.max_new_tokens = 9;
    struct sl_dataset dataset =
        open_text(&config, "{\"input\": \"i\", \"answers\": [\"x\"], \"options\": [\"o\", \"p\"]}");
    assert_string_equal(dataset.samples[0].prompt, "{x}ii A. o\nB. p{");
    assert_string_equal(dataset.samples[0].metric->name, "exact");
    assert_int_equal(dataset.samples[0].max_new_tokens, 9);
    sl_dataset_cleanup(&dataset);
}

// --- what is refused ---------------------------------------------------------------------------------------------

static void test_dataset_names_the_line(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("longbench", "hotpotqa");
    const char *good = "{\"input\": \"i\", \"context\": \"c\", \"answers\": [\"x\"]}\n";
    const struct {
        const char *line, *reason;
    } cases[] = {
        {"{", "data.jsonl:2: byte "},
        {"[1]", "data.jsonl:2: a line must be a JSON object"},
        {"{\"input\": \"i\", \"input\": \"j\"}", "duplicate"},
        {"{\"context\": \"c\", \"answers\": [\"x\"]}", "no \"input\""},
        {"{\"input\": \"i\", \"answers\": [\"x\"]}", "no \"context\""},
        {"{\"input\": \"i\", \"context\": \"c\"}", "no \"answers\""},
        {"{\"input\": \"i\", \"context\": \"c\", \"answers\": null}", "no \"answers\""},
        {"{\"input\": \"i\", \"context\": \"c\", \"answers\": []}", "\"answers\" is empty"},
        {"{\"input\": \"i\", \"context\": \"c\", \"answers\": [[\"x\"]]}", "\"answers\" must be"},
        {"{\"input\": \"i\", \"context\": \"c\", \"answers\": {}}", "\"answers\" must be"},
        {"{\"input\": 1, \"context\": \"c\", \"answers\": [\"x\"]}", "\"input\" must be a text"},
        {"{\"input\": \"i\", \"context\": [\"c\"], \"answers\": [\"x\"]}", "\"context\" must be a text"},
        {"{\"input\": \"a\\u0000b\", \"context\": \"c\", \"answers\": [\"x\"]}", "\\u0000"},
        {"{\"input\": \"\\ud800\", \"context\": \"c\", \"answers\": [\"x\"]}", "Unicode"},
        {"{\"input\": \"\xC3(\", \"context\": \"c\", \"answers\": [\"x\"]}", "UTF-8"},
        {"{\"input\": \"i\", \"context\": \"c\", \"answers\": [\"x\"]} {}", "data.jsonl:2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s\n%s", good, cases[i].line, good);
        assert_refused(&config, text, cases[i].reason);
    }
    assert_refused_bytes(&config, "{}\0{}", 5, SL_ERR_INVALID, "data.jsonl:1");
    assert_refused_bytes(&config, "\0", 1, SL_ERR_INVALID, "data.jsonl:1");
}

static void test_dataset_refuses_what_is_no_data(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("longbench", "hotpotqa");
    assert_refused(&config, "", "no question in it");
    assert_refused(&config, "\n \t\r\n", "no question in it");
    struct sl_dataset dataset;
    struct sl_error err = {0};
    config.path = "/nonexistent/hotpotqa.jsonl";
    assert_int_equal(sl_dataset_open(&config, &dataset, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/hotpotqa.jsonl"));
    config.path = folder.path;
    assert_int_equal(sl_dataset_open(&config, &dataset, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "is not a file"));
}

static void test_dataset_refuses_a_line_without_end(void **state) {
    (void)state;
    struct sl_dataset_config config = config_of("longbench", "hotpotqa");
    struct sl_dataset dataset;
    struct sl_error err = {0};
    temp_folder_write_text(&folder, "data.jsonl", "");
    assert_int_equal(truncate(path, (64 << 20) + 1), 0); // zeros, which take no room
    assert_int_equal(sl_dataset_open(&config, &dataset, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "data.jsonl:1: longer than 64 MiB"));
}

static void test_dataset_refuses_what_it_cannot_judge(void **state) {
    (void)state;
    const char *line = "{\"input\": \"i\", \"context\": \"c\", \"answers\": [\"x\"], \"answer\": [[1, 2]]}";
    struct sl_dataset_config config = config_of("longbench", "unheard_of");
    assert_refused(&config, line, "give metric and max_new_tokens");
    config.metric = "f1";
    assert_refused(&config, line, "max_new_tokens must be given");
    config.max_new_tokens = -1;
    assert_refused(&config, line, "max_new_tokens must be given");
    config.max_new_tokens = 8;
    config.metric = "f2";
    assert_refused(&config, line, "no metric \"f2\"");
    config.metric = "classification";
    assert_refused(&config, line, "data.jsonl:1: classification needs the classes");
    config.metric = "paragraph";
    assert_refused(&config, line, "data.jsonl:1: an answer names no paragraph");
    config.metric = "f1";
    config.prompt = "What?";
    assert_refused(&config, line, "place for neither");
    config.format = "longbank";
    assert_refused(&config, line, "there are longbench, infinitebench, ruler, sluice");
    config = config_of("infinitebench", "math_calc");
    assert_refused_bytes(&config, line, strlen(line), SL_ERR_UNSUPPORTED, "left out");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset_longbench),
        cmocka_unit_test(test_dataset_longbench_classes_and_first_line),
        cmocka_unit_test(test_dataset_infinitebench),
        cmocka_unit_test(test_dataset_finds_the_letter_of_a_choice),
        cmocka_unit_test(test_dataset_ruler),
        cmocka_unit_test(test_dataset_of_our_own),
        cmocka_unit_test(test_dataset_takes_a_prompt_and_a_metric),
        cmocka_unit_test(test_dataset_names_the_line),
        cmocka_unit_test(test_dataset_refuses_what_is_no_data),
        cmocka_unit_test(test_dataset_refuses_a_line_without_end),
        cmocka_unit_test(test_dataset_refuses_what_it_cannot_judge),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
