// SPDX-License-Identifier: Apache-2.0
// Purpose: a report as pictures. SL_ERR_UNSUPPORTED: no gnuplot here (sl_plot_check() knows before the work).
#pragma once

#include "lab/eval/report/eval_report.h"

// Quality against bytes shipped (logarithmic), every complete recipe a point, with the line of those that none beats in
// both. Recipes that offload layers stand apart: stores get those layers beside what is shipped.
enum sl_status sl_eval_plot_pareto(const struct sl_eval_report *report, const char *path, struct sl_error *err);

// Every recipe a bar: its mean, and the interval of its difference to full.
enum sl_status sl_eval_plot_bars(const struct sl_eval_report *report, const char *path, struct sl_error *err);

// Recipes down, tasks across, scores as colours.
enum sl_status sl_eval_plot_tasks(const struct sl_eval_report *report, const char *path, struct sl_error *err);

// Of `sluice eval grid`: a panel for every recipe, depths down, lengths across; cells of the plan depth by depth.
struct sl_eval_grid {
    const int64_t *lengths; // [n_lengths]
    const double *depths;   // [n_depths]
    size_t n_lengths, n_depths;
};
enum sl_status sl_eval_plot_grid(const struct sl_eval_report *report, const struct sl_eval_grid *grid, const char *path,
                                 struct sl_error *err);

// The rows of the frontier, fewest bytes first: nothing that offloads nothing and ships no more has a better mean.
// rows_out: [report->n_rows]. Returns how many.
size_t sl_eval_frontier(const struct sl_eval_report *report, size_t *rows_out);
