// SPDX-License-Identifier: Apache-2.0
// Purpose: cases of metrics without golden scores: broken texts, samples that do not fit, sizes. See golden_metrics.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "lab/eval/metrics/metric.h"

// The status; the score in *score_out.
static enum sl_status judge(const char *name, const char *text, const char *const *answers, double *score_out,
                            struct sl_error *err) {
    struct sl_sample sample = {.metric = sl_metric_find(name)};
    assert_non_null(sample.metric);
    for (; *answers; answers++) {
        assert_int_equal(sl_sample_add_answer(&sample, *answers, strlen(*answers), NULL), SL_OK);
    }
    enum sl_status status = sample.metric->score(&sample, text, score_out, err);
    sl_sample_cleanup(&sample);
    return status;
}

static double score_of(const char *name, const char *text, const char *answer) {
    double score = -1;
    assert_int_equal(judge(name, text, (const char *const[]){answer, NULL}, &score, NULL), SL_OK);
    assert_true(score >= 0 && score <= 1);
    return score;
}

static void test_metrics_have_names_of_their_own(void **state) {
    (void)state;
    for (const struct sl_metric *metric = sl_metrics(); metric->name; metric++) {
        assert_ptr_equal(sl_metric_find(metric->name), metric);
        assert_true(strlen(metric->summary) > 10);
    }
    assert_null(sl_metric_find("f2"));
    assert_null(sl_metric_find(""));
}

// Ten tenths, of which none is a number of base two.
static void test_all_answers_are_the_whole_score(void **state) {
    (void)state;
    const char *answers[] = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "0", NULL};
    double score = -1;
    assert_int_equal(judge("contains-all", "9876543210", answers, &score, NULL), SL_OK);
    assert_true(score == 1.0);
    assert_int_equal(judge("contains-all", "987", answers, &score, NULL), SL_OK);
    assert_true(score == 0.3);
}

// Generation may end in the middle of a character.
static void test_metrics_take_broken_utf8(void **state) {
    (void)state;
    assert_true(score_of("contains-all", "the value is 42\xE4\xBA", "42") == 1);
    assert_true(score_of("f1", "\xFF\xFE 42 \xC3", "42") == 0.5);
    assert_true(score_of("edit-similarity", "ab\xE4", "abc") == 0.67);
    const char *texts[] = {"\x80", "\xF4\x90\x80\x80", "\xED\xA0\x80", "\xC3", "a\xC3(b"};
    for (const struct sl_metric *metric = sl_metrics(); metric->name; metric++) {
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            struct sl_sample sample = {.metric = metric};
            double score = 2;
            assert_int_equal(sl_sample_add_answer(&sample,
                                                  "Paragraph 1 \xE6\xAE\xB5\xE8\x90\xBD"
                                                  "1",
                                                  19, NULL),
                             SL_OK);
            assert_int_equal(sl_sample_add_class(&sample, "x", 1, NULL), SL_OK);
            assert_int_equal(metric->score(&sample, texts[i], &score, NULL), SL_OK);
            assert_true(score >= 0 && score <= 1);
            sl_sample_cleanup(&sample);
        }
    }
}

static void test_metric_refuses_a_sample_without_answers(void **state) {
    (void)state;
    for (const struct sl_metric *metric = sl_metrics(); metric->name; metric++) {
        struct sl_sample sample = {.metric = metric};
        struct sl_error err = {0};
        double score = 7;
        assert_int_equal(metric->score(&sample, "x", &score, &err), SL_ERR_INVALID);
        assert_true(score == 7);
        assert_true(err.text[0] != '\0');
    }
}

static void test_metric_refuses_answers_of_another_form(void **state) {
    (void)state;
    double score;
    struct sl_error err = {0};
    assert_int_equal(judge("paragraph", "3", (const char *const[]){"Paragraph three", NULL}, &score, &err),
                     SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "Paragraph 7"));
    assert_int_equal(judge("paragraph", "3", (const char *const[]){"Paragraph ", NULL}, &score, &err), SL_ERR_INVALID);
    assert_int_equal(judge("paragraph-zh", "3", (const char *const[]){"Paragraph 3", NULL}, &score, &err),
                     SL_ERR_INVALID);
    assert_int_equal(judge("classification", "3", (const char *const[]){"3", NULL}, &score, &err), SL_ERR_INVALID);
}

static void test_metric_takes_the_best_answer(void **state) {
    (void)state;
    double score;
    const char *const answers[] = {"a red fox", "blue", "green", NULL};
    assert_int_equal(judge("f1", "Blue.", answers, &score, NULL), SL_OK);
    assert_true(score == 1);
    assert_int_equal(judge("contains-any", "it is blue", answers, &score, NULL), SL_OK);
    assert_true(score == 1);
    assert_int_equal(judge("contains-all", "it is blue", answers, &score, NULL), SL_OK);
    assert_true(score > 0.333 && score < 0.334);
    assert_int_equal(judge("speaker", "it is blue", answers, &score, NULL), SL_OK);
    assert_true(score == 0); // only the first counts there
}

// The work grows with the product of the lengths: what would not end is refused, what is long is done.
static void test_metric_refuses_what_would_not_end(void **state) {
    (void)state;
    size_t n = 200001;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'a', n - 1);
    text[n - 1] = '\0';
    double score;
    struct sl_error err = {0};
    assert_int_equal(judge("edit-similarity", text, (const char *const[]){"ab", NULL}, &score, &err), SL_ERR_RANGE);
    for (size_t i = 1; i < n - 1; i += 2) {
        text[i] = ' ';
    }
    assert_int_equal(judge("rouge-l", text, (const char *const[]){text, NULL}, &score, &err), SL_ERR_RANGE);
    assert_non_null(strstr(err.text, "100000"));
    assert_true(score_of("f1", text, text) == 0); // nothing but articles
    assert_true(score_of("rouge-l", text, "a") > 0.99);
    free(text);
}

static void test_first_line_is_what_benchmarks_cut(void **state) {
    (void)state;
    const struct {
        const char *text, *line;
    } cases[] = {{"", ""}, {"\n\n", ""}, {"x", "x"}, {"\n\nx\n\ny", "x"}, {" \nx", " "}, {"x\r\ny", "x\r"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[16];
        strcpy(text, cases[i].text);
        assert_ptr_equal(sl_metric_first_line(text), text);
        assert_string_equal(text, cases[i].line);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_have_names_of_their_own),
        cmocka_unit_test(test_all_answers_are_the_whole_score),
        cmocka_unit_test(test_metrics_take_broken_utf8),
        cmocka_unit_test(test_metric_refuses_a_sample_without_answers),
        cmocka_unit_test(test_metric_refuses_answers_of_another_form),
        cmocka_unit_test(test_metric_takes_the_best_answer),
        cmocka_unit_test(test_metric_refuses_what_would_not_end),
        cmocka_unit_test(test_first_line_is_what_benchmarks_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
