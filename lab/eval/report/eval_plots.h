// SPDX-License-Identifier: Apache-2.0
// Purpose: plots of a report. SL_ERR_UNSUPPORTED: gnuplot is not installed (sl_plot_check() detects this before the
// work).
#pragma once

#include "lab/eval/report/eval_report.h"

// Plots quality against shipped bytes (logarithmic), every complete recipe a point, with the Pareto frontier. Recipes
// that offload layers are shown separately: stores get those layers in addition to the shipped bytes.
enum sl_status sl_eval_plot_pareto(const struct sl_eval_report *report, const char *path, struct sl_error *err);

// Plots a bar for every recipe: its mean, and the interval of its difference to full.
enum sl_status sl_eval_plot_bars(const struct sl_eval_report *report, const char *path, struct sl_error *err);

// Plots recipes as rows, tasks as columns, scores as colors.
enum sl_status sl_eval_plot_tasks(const struct sl_eval_report *report, const char *path, struct sl_error *err);

// For `sluice eval grid`: a panel for every recipe, depths as rows, lengths as columns; the plan has cells depth by
// depth.
struct sl_eval_grid {
    const int64_t *lengths; // [n_lengths]
    const double *depths;   // [n_depths]
    size_t n_lengths, n_depths;
};
enum sl_status sl_eval_plot_grid(const struct sl_eval_report *report, const struct sl_eval_grid *grid, const char *path,
                                 struct sl_error *err);

// Finds the rows of the frontier, fewest bytes first: no other row that offloads nothing and ships no more has a
// better mean. rows_out: [report->n_rows]. Returns how many.
size_t sl_eval_frontier(const struct sl_eval_report *report, size_t *rows_out);
