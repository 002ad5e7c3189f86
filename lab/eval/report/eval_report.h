// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: results of an evaluation: scores of every recipe in every cell, the difference to `full` with its
 *          interval, the shipped bytes, which claims hold, and which recipe is best for how many bytes.
 *
 * Design: eval_report.c, eval_compare.c and eval_claims.c compute; three files show the results: eval_report_text.c,
 *         eval_report_json.c, eval_plots.c. Differences are paired: only questions count that both recipes have
 *         answered.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "lab/bootstrap.h"
#include "lab/eval/run/eval_results.h"
#include "lab/eval/tasks/plan.h"

// A recipe in one cell.
struct sl_eval_cell_score {
    double mean;         // NaN: no answers
    size_t n;            // answers
    double *scores;      // [n_samples of the cell], NaN if there is no answer; owned by the report
    const char *refused; // reason for no answers; NULL if there are some, or nothing was asked
};

struct sl_eval_row {
    const struct sl_plan_recipe *recipe;
    struct sl_eval_cell_score *cells; // [n_cells]
    double *tasks;                    // [n_tasks] mean over the cells of that name; NaN
    double *lengths;                  // [n_lengths] mean over the cells of that length; NaN
    double mean;                      // over the cells that have answers, with equal weights; NaN
    size_t n_answers;
    bool complete;              // every cell has answers: means can be compared
    bool offloads;              // offloads layers to stores: their bytes are not in `shipped`
    double shipped, resident;   // shares of the full cache in f16; means over cells
    double offloaded;           // share sent to stores; 0 also if no answer reports it (eval_results.h)
    double slots_per_head;      // mean over cells
    struct sl_interval to_full; // difference; 0 for row 0 (full itself)
    size_t n_pairs;
};

enum sl_verdict {
    SL_VERDICT_NOT_MEASURED,        // no question has both answers
    SL_VERDICT_PRECONDITION_ABSENT, // full scores less than the claim needs
    SL_VERDICT_BOTH_FAIL,           // both are below a twentieth of full's score: too low to compare
    SL_VERDICT_REPRODUCED,          // the whole interval of better - worse lies above `by`
    SL_VERDICT_NOT_REPRODUCED,      // the whole interval lies below `by`
    SL_VERDICT_UNDECIDED,           // the interval contains `by`
};
const char *sl_verdict_text(enum sl_verdict verdict);

// A claim at one budget.
struct sl_eval_verdict {
    const struct sl_plan_claim *claim;
    const char *budget; // "" if neither recipe has one
    enum sl_verdict verdict;
    double better, worse;          // means over the claim's cells that both have
    struct sl_interval difference; // better - worse
    size_t n_pairs;
    double full; // mean over the claim's cells
};

// The best recipe among those that ship at most such a share: one entry for recipes that offload layers and one for
// the others.
struct sl_eval_choice {
    double most; // of the full cache in f16
    bool offloads;
    size_t row;
    bool not_worse; // the interval of its difference to full contains 0
};

struct sl_eval_report {
    const struct sl_eval_plan *plan;
    const size_t *n_samples; // [n_cells]
    const char **tasks;      // [n_tasks] names of cells, each once
    size_t n_tasks;
    int64_t *lengths; // [n_lengths] of the plan's tasks, each once
    size_t n_lengths;
    struct sl_eval_row *rows; // [n_rows], in the order of the plan's recipes; row 0 is full
    size_t n_rows;
    struct sl_eval_verdict *verdicts;
    size_t n_verdicts;
    struct sl_eval_choice *choices; // only if it differs from the choice for fewer bytes
    size_t n_choices;
};

// Makes the report. plan, canonical (eval_run.h), n_samples and results must outlive it.
enum sl_status sl_eval_report_make(const struct sl_eval_plan *plan, const char *const *canonical,
                                   const size_t *n_samples, const struct sl_eval_results *results,
                                   struct sl_eval_report *report_out, struct sl_error *err);
void sl_eval_report_cleanup(struct sl_eval_report *report);

// eval_compare.c: computes row a - row b over the questions that both have answered, in the cells for which `wanted`
// (NULL: all) is set.
enum sl_status sl_eval_compare(const struct sl_eval_report *report, size_t a, size_t b, const bool *wanted,
                               struct sl_interval *interval_out, size_t *n_pairs_out, struct sl_error *err);

// eval_claims.c: computes the report's verdicts and choices from the rest of it.
enum sl_status sl_eval_judge_claims(struct sl_eval_report *report, struct sl_error *err);
enum sl_status sl_eval_choose(struct sl_eval_report *report, struct sl_error *err);

// eval_report_text.c: prints the report. subject: one line that describes the evaluation.
void sl_eval_report_print(const struct sl_eval_report *report, const char *subject, FILE *file);
void sl_eval_report_print_markdown(const struct sl_eval_report *report, const char *subject, FILE *file);

// eval_report_json.c: prints a line for every recipe, verdict and choice.
enum sl_status sl_eval_report_print_json(const struct sl_eval_report *report, FILE *file, struct sl_error *err);
