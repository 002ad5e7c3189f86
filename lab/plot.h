// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: plots by gnuplot: a caller writes commands and data, gnuplot draws them into a PNG.
 *
 *     if (sl_plot_open(&plot, "map.png", 1200, 600, err) == SL_OK) {
 *         fprintf(plot.script, "plot '-' with lines\n0 1\n1 2\ne\n");
 *     }
 *     return sl_plot_finish(&plot, err);
 */
#pragma once

#include "base/whole_file.h"

struct sl_plot {
    enum sl_status status; // status of opening it
    FILE *script;          // for the caller to write to
    char script_path[PATH_MAX];
    struct sl_whole_file image; // written by gnuplot
};

// Checks that a plot can be written to `path`, for commands that work long before they draw. NULL: no plot is
// requested. SL_ERR_UNSUPPORTED: no gnuplot. SL_ERR_IO: the path cannot be written to.
enum sl_status sl_plot_check(const char *path, struct sl_error *err);

// Opens a plot; path must outlive it. SL_ERR_IO: the folder of path cannot be written to. The caller must finish it
// in any case.
enum sl_status sl_plot_open(struct sl_plot *plot, const char *path, int width, int height, struct sl_error *err);

// Draws the plot; returns the status of opening if that failed. The image appears under its name whole or not at all.
// SL_ERR_UNSUPPORTED: gnuplot is not installed.
enum sl_status sl_plot_finish(struct sl_plot *plot, struct sl_error *err);

/*
 * Writes the ticks of an axis of rows: "set ytics ('h2o' 0, 'full' 1)". Call sl_plot_tick() for each row, beginning
 * with 0; it truncates texts of more than 44 characters. Call sl_plot_ticks_end() after the last.
 */
void sl_plot_tick(FILE *script, size_t row, const char *text);
void sl_plot_ticks_end(FILE *script);

// Draws the rows of $name, a matrix of n_rows by n_columns, as a heat map with the first row on top; a column is
// `step` wide, the first centered at `at`.
void sl_plot_heat_map(FILE *script, const char *name, size_t n_rows, size_t n_columns, double at, double step);

// Writes a text in gnuplot's single quotes, where nothing is a command. Returns buf.
char *sl_plot_quote(const char *text, char *buf, size_t buf_bytes);
