// SPDX-License-Identifier: Apache-2.0
// Purpose: the report of answers with given scores: means, differences, verdicts, choices, and the
// tables.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/eval/report/eval_plots.h"
#include "lab/eval/report/eval_report.h"
#include "lab/eval/run/eval_run.h"

#define N_RECIPES 5
#define N_CELLS   3
#define N_SAMPLES 20

// good scores as full does; bad never; half where the sample's number is even.
static struct sl_plan_recipe recipes[N_RECIPES] = {
    {(char *)"full", (char *)"", (char *)"full"},
    {(char *)"good", (char *)"20%", (char *)"h2o,budget=0.2"},
    {(char *)"bad", (char *)"20%", (char *)"random,budget=0.2"},
    {(char *)"half", (char *)"", (char *)"full,format=int4"},
    {(char *)"store", (char *)"", (char *)"tailorkv"},
};
static const double shipped[N_RECIPES] = {1, 0.2, 0.2, 0.3, 0.03}, offloaded[N_RECIPES] = {0, 0, 0, 0, 0.8};
static const struct sl_task needle = {.name = "niah-essay"};
static struct sl_plan_cell cells[N_CELLS] = {
    {.name = (char *)"niah-essay", .task = &needle, .n_tokens = 4096, .depth = -1, .n_samples = N_SAMPLES},
    {.name = (char *)"niah-essay", .task = &needle, .n_tokens = 8192, .depth = -1, .n_samples = N_SAMPLES},
    {.name = (char *)"hotpotqa"},
};
static const size_t n_samples[N_CELLS] = {N_SAMPLES, N_SAMPLES, N_SAMPLES};

struct fixture {
    struct sl_eval_plan plan;
    const char **canonical;
    struct sl_eval_results *results;
    struct sl_eval_report report;
};

static double score_of(size_t recipe, size_t cell, size_t sample) {
    double full = cell == 2 ? 0.1 : 1; // the data set is beyond this model
    return recipe == 2 ? 0 : recipe == 3 ? (sample % 2 ? 0 : full) : full;
}

static void add_answer(struct fixture *f, size_t recipe, size_t cell, size_t sample, const char *refused,
                       int64_t offloaded_bytes) {
    struct sl_eval_key key = sl_eval_key_of(&f->plan, f->canonical, recipe, cell, sample);
    struct sl_eval_answer answer = {.name = recipes[recipe].name,
                                    .budget = recipes[recipe].budget,
                                    .text = "x",
                                    .refused = refused,
                                    .score = score_of(recipe, cell, sample),
                                    .shipped_bytes = (int64_t)(1e6 * shipped[recipe]),
                                    .offloaded_bytes = offloaded_bytes,
                                    .full_bytes = 1000000,
                                    .resident_bytes = 500000,
                                    .slots_per_head = 100,
                                    .ttft_ms = 10};
    assert_int_equal(sl_eval_results_add(f->results, &key, &answer, NULL), SL_OK);
}

static void add(struct fixture *f, size_t recipe, size_t cell, size_t sample, const char *refused) {
    add_answer(f, recipe, cell, sample, refused, (int64_t)(1e6 * offloaded[recipe]));
}

static void add_older(struct fixture *f, size_t recipe, size_t cell, size_t sample) {
    add_answer(f, recipe, cell, sample, NULL, 0);
}

static void add_all(struct fixture *f, size_t recipe) {
    for (size_t cell = 0; cell < N_CELLS; cell++) {
        for (size_t sample = 0; sample < N_SAMPLES; sample++) {
            add(f, recipe, cell, sample, NULL);
        }
    }
}

static void report(struct fixture *f) {
    struct sl_error err = {0};
    if (sl_eval_report_make(&f->plan, f->canonical, n_samples, f->results, &f->report, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static int set_up(void **state) {
    static const struct sl_eval_run run = {.weights = "stored"};
    struct fixture *f = calloc(1, sizeof *f);
    f->plan = (struct sl_eval_plan){
        .title = (char *)"A trial", .recipes = recipes, .n_recipes = N_RECIPES, .cells = cells, .n_cells = N_CELLS};
    *state = f;
    return sl_eval_canonical(&f->plan, &f->canonical, NULL) != SL_OK ||
           sl_eval_results_open(NULL, &run, &f->results, NULL) != SL_OK;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    sl_eval_report_cleanup(&f->report);
    sl_eval_results_close(&f->results);
    free(f->canonical);
    free(f);
    return 0;
}

static void assert_near(double a, double b) {
    assert_true(fabs(a - b) < 1e-9);
}

static char *print(const struct fixture *f,
                   void (*fn)(const struct sl_eval_report *report, const char *subject, FILE *file)) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    fn(&f->report, "a model, 5 recipes", file);
    fclose(file);
    return text;
}

// --- numbers ----------------------------------------------------------------------------------------------------

static void test_report_averages_cells_not_answers(void **state) {
    struct fixture *f = *state;
    add_all(f, 0);
    add_all(f, 1);
    add_all(f, 3);
    report(f);
    const struct sl_eval_report *r = &f->report;
    assert_int_equal(r->n_tasks, 2);
    assert_string_equal(r->tasks[0], "niah-essay");
    assert_string_equal(r->tasks[1], "hotpotqa");
    assert_near(r->rows[0].tasks[0], 1); // of two lengths
    assert_near(r->rows[0].tasks[1], 0.1);
    assert_int_equal(r->n_lengths, 2);
    assert_true(r->lengths[0] == 4096 && r->lengths[1] == 8192);
    assert_near(r->rows[3].lengths[1], 0.5);
    assert_near(r->rows[0].mean, 0.7);
    assert_near(r->rows[3].mean, 0.35);
    assert_near(r->rows[1].shipped, 0.2);
    assert_near(r->rows[1].resident, 0.5);
    assert_true(r->rows[1].complete && r->rows[1].n_answers == 3 * N_SAMPLES && r->rows[1].n_pairs == 3 * N_SAMPLES);
    assert_near(r->rows[1].to_full.mean, 0);
    assert_near(r->rows[3].to_full.mean, -0.35);
    assert_true(r->rows[3].to_full.low < -0.35 && r->rows[3].to_full.high > -0.35 && r->rows[3].to_full.high < 0);
    assert_true(!r->rows[0].offloads && r->rows[4].offloads);
    assert_true(isnan(r->rows[4].mean) && r->rows[4].n_answers == 0 && !r->rows[4].complete); // not asked
}

static void test_report_compares_only_questions_that_both_answered(void **state) {
    struct fixture *f = *state;
    add_all(f, 0);
    for (size_t sample = 0; sample < 6; sample++) { // 0 of 3 odd ones, 1 of 3 even ones
        add(f, 3, 0, sample, NULL);
    }
    for (size_t sample = 0; sample < N_SAMPLES; sample++) {
        add(f, 3, 1, sample, "too long");
    }
    report(f);
    const struct sl_eval_row *row = &f->report.rows[3];
    assert_int_equal(row->n_pairs, 6);
    assert_near(row->mean, 0.5);
    assert_near(row->to_full.mean, -0.5);
    assert_false(row->complete);
    assert_int_equal(row->cells[1].n, 0);
    assert_string_equal(row->cells[1].refused, "too long");
    assert_true(isnan(row->cells[1].mean) && isnan(row->cells[2].mean));
    assert_near(row->tasks[0], 0.5); // of the cell that has answers
}

// --- claims -----------------------------------------------------------------------------------------------------

static const struct sl_eval_verdict *judge(struct fixture *f, struct sl_plan_claim claim) {
    static struct sl_plan_claim kept;
    kept = claim;
    kept.paper = (char *)"P";
    kept.text = (char *)"T";
    f->plan.claims = &kept;
    f->plan.n_claims = 1;
    sl_eval_report_cleanup(&f->report);
    report(f);
    assert_int_equal(f->report.n_verdicts, 1);
    return &f->report.verdicts[0];
}

static void test_report_judges_claims(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < 4; i++) {
        add_all(f, i);
    }
    char *needles[] = {(char *)"niah-essay"}, *hard[] = {(char *)"hotpotqa"};
    const struct sl_eval_verdict *v =
        judge(f, (struct sl_plan_claim){.better = (char *)"good", .worse = (char *)"bad", .by = 0.5});
    assert_int_equal(v->verdict, SL_VERDICT_REPRODUCED);
    assert_string_equal(v->budget, "20%");
    assert_near(v->better, 0.7);
    assert_near(v->worse, 0);
    assert_near(v->difference.mean, 0.7);
    assert_int_equal(v->n_pairs, 3 * N_SAMPLES);

    v = judge(f, (struct sl_plan_claim){.better = (char *)"good", .worse = (char *)"bad", .by = 0.75});
    assert_int_equal(v->verdict, SL_VERDICT_NOT_REPRODUCED);
    v = judge(f, (struct sl_plan_claim){.better = (char *)"bad", .worse = (char *)"good"});
    assert_int_equal(v->verdict, SL_VERDICT_NOT_REPRODUCED);

    // A recipe without a budget stands beside one that has it. The interval spans 0.5 exactly here.
    v = judge(f, (struct sl_plan_claim){
                     .better = (char *)"good", .worse = (char *)"half", .by = 0.5, .tasks = needles, .n_tasks = 1});
    assert_int_equal(v->verdict, SL_VERDICT_UNDECIDED);
    assert_string_equal(v->budget, "20%");
    assert_near(v->full, 1);
    assert_int_equal(v->n_pairs, 2 * N_SAMPLES);

    // Equal everywhere: neither better nor worse. With a loss allowed, it is not too large.
    v = judge(f, (struct sl_plan_claim){.better = (char *)"good", .worse = (char *)"full"});
    assert_int_equal(v->verdict, SL_VERDICT_UNDECIDED);
    v = judge(f, (struct sl_plan_claim){.better = (char *)"good", .worse = (char *)"full", .by = -0.015});
    assert_int_equal(v->verdict, SL_VERDICT_REPRODUCED);

    v = judge(f,
              (struct sl_plan_claim){
                  .better = (char *)"good", .worse = (char *)"bad", .tasks = hard, .n_tasks = 1, .needs_least = 0.5});
    assert_int_equal(v->verdict, SL_VERDICT_PRECONDITION_ABSENT);
    assert_near(v->full, 0.1);
    // When both recipes score nothing, neither is as good as the other.
    v = judge(f, (struct sl_plan_claim){.better = (char *)"bad", .worse = (char *)"bad", .by = -0.01});
    assert_int_equal(v->verdict, SL_VERDICT_BOTH_FAIL);

    v = judge(f, (struct sl_plan_claim){.better = (char *)"store", .worse = (char *)"bad"}); // never asked
    assert_int_equal(v->verdict, SL_VERDICT_NOT_MEASURED);
    v = judge(f, (struct sl_plan_claim){.better = (char *)"magic", .worse = (char *)"bad"});
    assert_int_equal(v->verdict, SL_VERDICT_NOT_MEASURED);
}

static void test_report_judges_a_claim_at_every_budget(void **state) {
    struct fixture *f = *state;
    struct sl_plan_claim claim = {
        .paper = (char *)"P", .text = (char *)"T", .better = (char *)"x", .worse = (char *)"y"};
    static struct sl_plan_recipe own[N_RECIPES] = {
        {(char *)"full", (char *)"", (char *)"full"},
        {(char *)"x", (char *)"20%", (char *)"h2o,budget=0.2"},
        {(char *)"y", (char *)"20%", (char *)"random,budget=0.2"},
        {(char *)"x", (char *)"50%", (char *)"h2o,budget=0.5"},
        {(char *)"y", (char *)"50%", (char *)"random,budget=0.5"},
    };
    f->plan.recipes = own;
    f->plan.claims = &claim;
    f->plan.n_claims = 1;
    free(f->canonical);
    assert_int_equal(sl_eval_canonical(&f->plan, &f->canonical, NULL), SL_OK);
    for (size_t i = 0; i < N_RECIPES; i++) {
        add_all(f, i);
    }
    report(f);
    assert_int_equal(f->report.n_verdicts, 2); // not 20% against 50%
    assert_string_equal(f->report.verdicts[0].budget, "20%");
    assert_string_equal(f->report.verdicts[1].budget, "50%");
    assert_int_equal(f->report.verdicts[1].verdict, SL_VERDICT_NOT_REPRODUCED);
}

// --- choices ----------------------------------------------------------------------------------------------------

static void test_report_chooses_by_bytes(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < N_RECIPES; i++) {
        add_all(f, i);
    }
    report(f);
    const struct sl_eval_report *r = &f->report;
    assert_int_equal(r->n_choices, 2); // half is larger than good, and worse
    assert_near(r->choices[0].most, 0.2);
    assert_int_equal(r->choices[0].row, 1);
    assert_true(r->choices[0].not_worse && !r->choices[0].offloads);
    assert_near(r->choices[1].most, 0.05);
    assert_int_equal(r->choices[1].row, 4);
    assert_true(r->choices[1].offloads);
    assert_near(r->rows[4].offloaded, 0.8);
    assert_near(r->rows[1].offloaded, 0);
    char *text = print(f, sl_eval_report_print_markdown);
    assert_non_null(strstr(text, "| 5% | yes | store | 70.0 | 3.0% +80.0% |"));
    free(text);

    size_t frontier[N_RECIPES];
    assert_int_equal(sl_eval_frontier(r, frontier), 1); // full is as good as good
    assert_int_equal(frontier[0], 1);
}

static void test_report_does_not_choose_what_is_not_complete(void **state) {
    struct fixture *f = *state;
    add_all(f, 0);
    add_all(f, 3);
    for (size_t sample = 0; sample < N_SAMPLES; sample++) {
        add(f, 1, 0, sample, NULL);
    }
    report(f);
    assert_int_equal(f->report.n_choices, 1);
    assert_int_equal(f->report.choices[0].row, 3);
    assert_false(f->report.choices[0].not_worse);
}

// --- tables -----------------------------------------------------------------------------------------------------

// Recipes that nothing can be said about, and intervals that are certain: no digit depends on the resampling.
static void fill_for_tables(struct fixture *f) {
    static struct sl_plan_claim claims[2] = {{.paper = (char *)"P",
                                              .text = (char *)"good is better than bad",
                                              .better = (char *)"good",
                                              .worse = (char *)"bad",
                                              .by = 0.5},
                                             {.paper = (char *)"P",
                                              .text = (char *)"the same of the store",
                                              .better = (char *)"store",
                                              .worse = (char *)"bad",
                                              .needs_least = 0.9}};
    f->plan.claims = claims;
    f->plan.n_claims = 2;
    for (size_t i = 0; i < 3; i++) {
        add_all(f, i);
    }
    for (size_t sample = 0; sample < N_SAMPLES; sample++) {
        add(f, 3, 0, sample, "this model has no int4");
        add(f, 4, 0, sample, NULL);
    }
    report(f);
}

static void test_report_as_text(void **state) {
    struct fixture *f = *state;
    fill_for_tables(f);
    char *text = print(f, sl_eval_report_print);
    assert_string_equal(
        text,
        "A trial\n"
        "a model, 5 recipes\n"
        "\n"
        "RECIPE  BUDGET  niah-essay  hotpotqa  AT 4096  AT 8192    MEAN      SHIPPED  TO FULL, 95%\n"
        "full                 100.0      10.0    100.0    100.0    70.0       100.0%   \n"
        "good       20%       100.0      10.0    100.0    100.0    70.0        20.0%  +0.0 [+0.0, +0.0]\n"
        "bad        20%         0.0       0.0      0.0      0.0     0.0        20.0%  -70.0 [-70.0, -70.0] *\n"
        "half                   n/a         -        -        -       -            -  -\n"
        "store                100.0         -    100.0        -  100.0?  3.0% +80.0%  +0.0 [+0.0, +0.0]\n"
        "\n"
        "Scores in points of 100. SHIPPED: bytes of the full cache in f16. TO FULL: difference on the same questions, "
        "with "
        "the\n"
        "interval of a paired bootstrap; * where that does not reach 0. +: what stores get beside it.\n"
        "?: not of all cells, not to be compared.\n"
        "\n"
        "n/a: half, niah-essay of 4096 tokens: this model has no int4\n"
        "\n"
        "Claims\n"
        "\n"
        "PAPER  CLAIM                    BUDGET  BETTER  WORSE  DIFFERENCE, 95%            LEAST  VERDICT\n"
        "P      good is better than bad     20%    70.0    0.0  +70.0 [+70.0, +70.0] *     +50.0  reproduced\n"
        "P      the same of the store       20%   100.0    0.0  +100.0 [+100.0, +100.0] *   +0.0  precondition absent: "
        "full has 70.0 of 90.0\n"
        "\n"
        "The best recipe for so many bytes\n"
        "\n"
        "SHIPS ABOUT  OFFLOADS  RECIPE       MEAN  SHIPPED  TO FULL, 95%       TEXT\n"
        "        20%  no        good at 20%  70.0    20.0%  +0.0 [+0.0, +0.0]  h2o,budget=0.2\n");
    free(text);
}

// The same answers from a file without the bytes in stores, and from one that was continued.
static void test_report_of_older_answers(void **state) {
    struct fixture *f = *state;
    add_all(f, 0);
    for (size_t cell = 0; cell < N_CELLS; cell++) {
        for (size_t sample = 0; sample < N_SAMPLES; sample++) {
            add_older(f, 4, cell, sample);
        }
    }
    report(f);
    assert_near(f->report.rows[4].offloaded, 0);
    char *text = print(f, sl_eval_report_print);
    assert_non_null(strstr(text, "   3.0% +  +0.0 [+0.0, +0.0]\n"));
    free(text);
    sl_eval_report_cleanup(&f->report);
    add(f, 4, 0, 1, NULL);
    add(f, 4, 0, 2, NULL);
    add(f, 4, 2, 0, NULL);
    report(f);
    assert_near(f->report.rows[4].offloaded, 0.8);
}

static void test_report_as_markdown(void **state) {
    struct fixture *f = *state;
    fill_for_tables(f);
    char *text = print(f, sl_eval_report_print_markdown);
    assert_non_null(
        strstr(text, "# A trial\n\na model, 5 recipes\n\n"
                     "| RECIPE | BUDGET | niah-essay | hotpotqa | AT 4096 | AT 8192 | MEAN | SHIPPED | TO FULL, 95% |\n"
                     "|-|-:|-:|-:|-:|-:|-:|-:|-|\n"
                     "| full |  | 100.0 | 10.0 | 100.0 | 100.0 | 70.0 | 100.0% |   |\n"));
    assert_non_null(strstr(text, "\n- n/a: half, niah-essay of 4096 tokens: this model has no int4\n"));
    assert_non_null(strstr(text, "\n## Claims\n\n| PAPER | CLAIM |"));
    assert_non_null(strstr(text, "| reproduced |\n"));
    free(text);
}

static void test_report_as_json(void **state) {
    struct fixture *f = *state;
    fill_for_tables(f);
    char *text = NULL;
    size_t bytes = 0, n_rows = 0, n_claims = 0, n_choices = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(sl_eval_report_print_json(&f->report, file, NULL), SL_OK);
    fclose(file);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line, 0, NULL);
        assert_non_null(root);
        const json_t *row = json_object_get(root, "row"), *claim = json_object_get(root, "claim");
        if (row && n_rows == 3) {
            assert_true(json_is_null(json_object_get(row, "mean")));
            json_t *cell = json_array_get(json_object_get(row, "cells"), 0);
            assert_string_equal(json_string_value(json_object_get(cell, "refused")), "this model has no int4");
        }
        if (row && n_rows == 4) {
            assert_near(json_number_value(json_object_get(row, "shipped")), 0.03);
            assert_near(json_number_value(json_object_get(row, "offloaded")), 0.8);
        }
        if (claim) {
            assert_string_equal(json_string_value(json_object_get(claim, "verdict")),
                                n_claims == 0 ? "reproduced" : "precondition absent");
        }
        n_rows += row != NULL;
        n_claims += claim != NULL;
        n_choices += json_object_get(root, "choice") != NULL;
        json_decref(root);
    }
    assert_true(n_rows == N_RECIPES && n_claims == 2 && n_choices == 1);
    free(text);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_report_averages_cells_not_answers),
        TEST(test_report_compares_only_questions_that_both_answered),
        TEST(test_report_judges_claims),
        TEST(test_report_judges_a_claim_at_every_budget),
        TEST(test_report_chooses_by_bytes),
        TEST(test_report_does_not_choose_what_is_not_complete),
        TEST(test_report_as_text),
        TEST(test_report_of_older_answers),
        TEST(test_report_as_markdown),
        TEST(test_report_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
