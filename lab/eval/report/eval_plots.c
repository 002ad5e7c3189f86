// SPDX-License-Identifier: Apache-2.0
// Purpose: plots of a report. See eval_plots.h.
#include "lab/eval/report/eval_plots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/plot.h"

#define LABEL_CHARACTERS 44 // of a recipe's name; the rest is omitted
#define LABEL_BYTES      256

// From red over yellow to green, as in published heat maps of needles.
static const char palette[] = "set palette defined (0 '#b2182b', 0.5 '#fee08b', 1 '#1a9850')\nset cbrange [0:100]\n";

// Writes "h2o 20%".
static void name_of(const struct sl_eval_row *row, char *buf) {
    const struct sl_plan_recipe *r = row->recipe;
    bool cut = strlen(r->name) > LABEL_CHARACTERS;
    snprintf(buf, LABEL_BYTES, "%.*s%s%s%.20s", LABEL_CHARACTERS, r->name, cut ? "..." : "", r->budget[0] ? " " : "",
             r->budget);
}

// Writes the same in quotes, for commands.
static const char *label_of(const struct sl_eval_row *row, char *buf) {
    char name[LABEL_BYTES];
    name_of(row, name);
    return sl_plot_quote(name, buf, 2 * LABEL_BYTES);
}

// Returns the approximate width in pixels of the names beside an axis.
static int label_width(const struct sl_eval_report *r) {
    size_t most = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        char name[LABEL_BYTES];
        name_of(&r->rows[i], name);
        most = strlen(name) > most ? strlen(name) : most;
    }
    return 9 * (int)most;
}

static bool is_shown(const struct sl_eval_row *row, bool offloads) {
    return row->complete && row->shipped > 0 && row->offloads == offloads;
}

// --- quality against bytes --------------------------------------------------------------------------------------

struct point {
    double shipped, mean;
    size_t row;
};

// Orders by bytes, then by the better mean, then by position.
static int by_bytes(const void *a, const void *b) {
    const struct point *x = a, *y = b;
    return x->shipped != y->shipped ? (x->shipped > y->shipped) - (x->shipped < y->shipped)
           : x->mean != y->mean     ? (x->mean < y->mean) - (x->mean > y->mean)
                                    : (x->row > y->row) - (x->row < y->row);
}

size_t sl_eval_frontier(const struct sl_eval_report *r, size_t *rows_out) {
    struct point *points = calloc(r->n_rows + 1, sizeof *points);
    size_t n = 0, n_out = 0;
    double best = -1;
    for (size_t i = 0; points && i < r->n_rows; i++) {
        if (is_shown(&r->rows[i], false)) {
            points[n++] = (struct point){r->rows[i].shipped, r->rows[i].mean, i};
        }
    }
    if (n > 0) {
        qsort(points, n, sizeof *points, by_bytes);
    }
    for (size_t i = 0; i < n; i++) {
        if (points[i].mean > best) {
            best = points[i].mean;
            rows_out[n_out++] = points[i].row;
        }
    }
    free(points);
    return n_out;
}

// Prints a point; in data, a text is between double quotes.
static void print_point(FILE *script, const struct sl_eval_row *row) {
    char name[LABEL_BYTES];
    name_of(row, name);
    for (char *c = name; *c; c++) {
        *c = *c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '?' : *c;
    }
    fprintf(script, "%.6g %.6g \"%s\"\n", 100 * row->shipped, 100 * row->mean, name);
}

// Prints the points and returns how many.
static size_t print_points(const struct sl_eval_report *r, const char *name, bool offloads, FILE *script) {
    size_t n = 0;
    fprintf(script, "$%s << EOD\n", name);
    for (size_t i = 0; i < r->n_rows; i++) {
        if (is_shown(&r->rows[i], offloads)) {
            print_point(script, &r->rows[i]);
            n++;
        }
    }
    fputs("EOD\n", script);
    return n;
}

// --- labels that do not collide ---------------------------------------------------------------------------------

// The approximate size of the plot, in pixels.
#define PARETO_WIDTH  1300
#define PARETO_HEIGHT 800
#define PARETO_AXES   110
#define PARETO_RIGHT  300.0 // percent
#define PARETO_TOP    105.0

static void place_label(const struct sl_eval_row *row, double least_shipped, const char *color,
                        struct sl_plot_box *boxes, size_t *n_boxes, FILE *script) {
    char name[LABEL_BYTES], quoted[2 * LABEL_BYTES];
    name_of(row, name);
    double x =
        (PARETO_WIDTH - PARETO_AXES) * log(100 * row->shipped / least_shipped) / log(PARETO_RIGHT / least_shipped);
    double y = (PARETO_HEIGHT - PARETO_AXES) * 100 * row->mean / PARETO_TOP;
    double lines = sl_plot_place(x, y, strlen(name), boxes, n_boxes);
    fprintf(script, "set label %s at %.6g,%.6g left offset character 0.8,%.1f textcolor rgb '%s'\n",
            sl_plot_quote(name, quoted, sizeof quoted), 100 * row->shipped, 100 * row->mean, lines, color);
}

static void place_labels(const struct sl_eval_report *r, const size_t *frontier, size_t n_frontier, FILE *script) {
    struct sl_plot_box *boxes = calloc(r->n_rows + 1, sizeof *boxes);
    double least = 100;
    size_t n = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        bool shown = is_shown(&r->rows[i], false) || is_shown(&r->rows[i], true);
        least = shown && 100 * r->rows[i].shipped < least ? 100 * r->rows[i].shipped : least;
    }
    least = pow(10, floor(log10(least))); // start of the axis
    fprintf(script, "set xrange [%.9g:%g]\n", least, PARETO_RIGHT);
    for (size_t i = 0; boxes && i < n_frontier; i++) {
        place_label(&r->rows[frontier[i]], least, "#1f4e79", boxes, &n, script);
    }
    for (size_t i = 0; boxes && i < r->n_rows; i++) {
        if (is_shown(&r->rows[i], true)) {
            place_label(&r->rows[i], least, "#d95f02", boxes, &n, script);
        }
    }
    free(boxes);
}

static void write_pareto(const struct sl_eval_report *r, const size_t *frontier, size_t n_frontier, FILE *script) {
    size_t n_offload = print_points(r, "offload", true, script);
    print_points(r, "keep", false, script);
    fputs("$frontier << EOD\n", script);
    for (size_t i = 0; i < n_frontier; i++) {
        print_point(script, &r->rows[frontier[i]]);
    }
    // Right of 100% there is only room for the last label.
    fputs("EOD\nset grid\nset logscale x\nset format x '%g%%'\nset yrange [0:105]\n"
          "set xlabel 'bytes shipped, of the full cache in f16'\nset ylabel 'mean score'\nset key bottom right\n",
          script);
    place_labels(r, frontier, n_frontier, script);
    fputs("plot $keep using 1:2 with points pt 7 ps 0.9 lc rgb '#999999' title 'recipes', "
          "$frontier using 1:2 with linespoints pt 7 ps 1.3 lw 2 lc rgb '#1f77b4' title 'none is better and smaller'",
          script);
    fputs(n_offload > 0
              ? ", $offload using 1:2 with points pt 9 ps 1.3 lc rgb '#d95f02' title 'layers in stores as well'\n"
              : "\n",
          script);
}

enum sl_status sl_eval_plot_pareto(const struct sl_eval_report *r, const char *path, struct sl_error *err) {
    size_t *frontier = calloc(r->n_rows + 1, sizeof *frontier);
    if (!frontier) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    size_t n = sl_eval_frontier(r, frontier);
    struct sl_plot plot;
    if (sl_plot_open(&plot, path, PARETO_WIDTH, PARETO_HEIGHT, err) == SL_OK) {
        write_pareto(r, frontier, n, plot.script);
    }
    free(frontier);
    return sl_plot_finish(&plot, err);
}

// --- bars -------------------------------------------------------------------------------------------------------

static void print_labels(const struct sl_eval_report *r, FILE *script) {
    char label[2 * LABEL_BYTES];
    const char *separator = "";
    size_t n = 0;
    fputs("set ytics (", script);
    for (size_t i = 0; i < r->n_rows; i++) {
        if (!isnan(r->rows[i].mean)) {
            label_of(&r->rows[i], label);
            fputs(separator, script);
            for (const char *c = label; *c; c++) { // tick labels are formats: percent signs are doubled
                fputs(*c == '%' ? "%%" : (char[]){*c, '\0'}, script);
            }
            fprintf(script, " %zu", n++);
            separator = ", ";
        }
    }
    fputs(")\n", script);
}

static size_t n_answered(const struct sl_eval_report *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        n += !isnan(r->rows[i].mean);
    }
    return n;
}

static void write_bars(const struct sl_eval_report *r, FILE *script) {
    size_t n = 0;
    fputs("$bars << EOD\n", script);
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct sl_eval_row *row = &r->rows[i];
        if (isnan(row->mean)) {
            continue;
        }
        double middle = 100 * row->mean - 100 * row->to_full.mean; // mean of full, on the same questions
        bool sure = !isnan(row->to_full.low);
        fprintf(script, "%zu %.6g %.6g %.6g\n", n++, 100 * row->mean,
                sure ? middle + 100 * row->to_full.low : 100 * row->mean,
                sure ? middle + 100 * row->to_full.high : 100 * row->mean);
    }
    fprintf(script,
            "EOD\nset grid x\nset xrange [0:100]\nset yrange [%zu.5:-0.5]\nset style fill solid 0.6\nunset key\n"
            "set xlabel 'mean score; lines: 95%% interval of the difference to full'\n",
            n > 0 ? n - 1 : 0);
    print_labels(r, script);
    fputs("plot $bars using ($2 / 2):1:($2 / 2):(0.35) with boxxyerror lc rgb '#1f77b4', "
          "$bars using 2:1:3:4 with xerrorbars pt 0 lw 2 lc rgb '#222222'\n",
          script);
}

enum sl_status sl_eval_plot_bars(const struct sl_eval_report *r, const char *path, struct sl_error *err) {
    struct sl_plot plot;
    if (sl_plot_open(&plot, path, label_width(r) + 700, 240 + 18 * (int)n_answered(r), err) == SL_OK) {
        write_bars(r, plot.script);
    }
    return sl_plot_finish(&plot, err);
}

// --- heat maps --------------------------------------------------------------------------------------------------

static void print_value(FILE *script, size_t x, size_t y, double value) {
    if (!isnan(value)) {
        fprintf(script, "%zu %zu %.6g\n", x, y, 100 * value);
    }
}

static void write_tasks(const struct sl_eval_report *r, FILE *script) {
    char quoted[2 * LABEL_BYTES];
    size_t n = 0;
    fputs("$map << EOD\n", script);
    for (size_t i = 0; i < r->n_rows; i++) {
        for (size_t t = 0; !isnan(r->rows[i].mean) && t < r->n_tasks; t++) {
            print_value(script, t, n, r->rows[i].tasks[t]);
        }
        n += !isnan(r->rows[i].mean);
    }
    fprintf(script, "EOD\n%sunset key\nset xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\nset tics out scale 0\n",
            palette, r->n_tasks - 1, n > 0 ? n - 1 : 0);
    fputs("set xtics rotate by 45 right (", script);
    for (size_t t = 0; t < r->n_tasks; t++) {
        fprintf(script, "%s%s %zu", t ? ", " : "", sl_plot_quote(r->tasks[t], quoted, sizeof quoted), t);
    }
    fputs(")\n", script);
    print_labels(r, script);
    fputs("plot $map using 1:2:3 with image, $map using 1:2:(sprintf('%.0f', $3)) with labels\n", script);
}

enum sl_status sl_eval_plot_tasks(const struct sl_eval_report *r, const char *path, struct sl_error *err) {
    struct sl_plot plot;
    if (sl_plot_open(&plot, path, label_width(r) + 160 + 64 * (int)r->n_tasks, 240 + 20 * (int)n_answered(r), err) ==
        SL_OK) {
        write_tasks(r, plot.script);
    }
    return sl_plot_finish(&plot, err);
}

static void write_panel(const struct sl_eval_row *row, const struct sl_eval_grid *grid, size_t number, FILE *script) {
    char label[2 * LABEL_BYTES];
    fprintf(script, "$panel%zu << EOD\n", number);
    for (size_t d = 0; d < grid->n_depths; d++) {
        for (size_t l = 0; l < grid->n_lengths; l++) {
            print_value(script, l, d, row->cells[d * grid->n_lengths + l].mean);
        }
    }
    fprintf(script, "EOD\nset title %s\nplot $panel%zu using 1:2:3 with image\n", label_of(row, label), number);
}

static void write_grid(const struct sl_eval_report *r, const struct sl_eval_grid *grid, size_t n_across, FILE *script) {
    size_t n = n_answered(r), n_down = (n + n_across - 1) / n_across;
    fprintf(script,
            "%sunset key\nset xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\nset tics out scale 0\n"
            "set xlabel 'tokens of the prompt'\nset ylabel 'depth of the fact'\nset xtics (",
            palette, grid->n_lengths - 1, grid->n_depths - 1);
    for (size_t l = 0; l < grid->n_lengths; l++) {
        fprintf(script, "%s'%lld' %zu", l ? ", " : "", (long long)grid->lengths[l], l);
    }
    fputs(")\nset ytics (", script);
    for (size_t d = 0; d < grid->n_depths; d++) {
        fprintf(script, "%s'%.3g%%%%' %zu", d ? ", " : "", 100 * grid->depths[d], d);
    }
    fprintf(script, ")\nset multiplot layout %zu,%zu\n", n_down > 0 ? n_down : 1, n_across);
    size_t number = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        if (!isnan(r->rows[i].mean)) {
            write_panel(&r->rows[i], grid, number++, script);
        }
    }
    fputs("unset multiplot\n", script);
}

enum sl_status sl_eval_plot_grid(const struct sl_eval_report *r, const struct sl_eval_grid *grid, const char *path,
                                 struct sl_error *err) {
    size_t n = n_answered(r), n_across = n < 3 ? (n > 0 ? n : 1) : 3;
    struct sl_plot plot;
    if (sl_plot_open(&plot, path, 480 * (int)n_across,
                     (160 + 22 * (int)grid->n_depths) * (int)((n + n_across - 1) / n_across), err) == SL_OK) {
        write_grid(r, grid, n_across, plot.script);
    }
    return sl_plot_finish(&plot, err);
}
