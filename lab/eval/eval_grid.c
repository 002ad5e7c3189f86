// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval grid`: whether a fact is found, by its depth and the prompt's length, as a map for every
// recipe.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/eval/eval.h"
#include "lab/eval/eval_session.h"
#include "lab/eval/report/eval_plots.h"
#include "lab/plot.h"

#define MAX_DEPTHS 101

struct grid_config {
    struct sl_tool_config tool;
    struct sl_eval_options eval;
    const char *task, *png;
    int64_t depths;
};

static const struct sl_option options[] = {
    SL_EVAL_PROMPT_OPTIONS(grid_config),
    {"task", 0, SL_OPTION_STRING, "niah-essay", "TASK", "what is hidden and asked; one of `sluice eval suites --list`",
     SL_FIELD(grid_config, task)},
    {"depths", 0, SL_OPTION_INT, "11", "N", "so many places, evenly from the beginning to the end",
     SL_FIELD(grid_config, depths), 1, MAX_DEPTHS},
    SL_EVAL_ASK_OPTIONS(grid_config),
    SL_EVAL_CLUSTER_OPTIONS(grid_config),
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw the maps (needs gnuplot)", SL_FIELD(grid_config, png)},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice eval grid",
    .usage = "--model DIR [--lengths N,N] [--recipe RECIPE] [options]",
    .summary = "Hide a fact at several depths of prompts of several lengths, and map where each recipe finds it.",
    .epilog = "Ctrl-C ends it with the maps of what there is; with --out the same command goes on from "
              "there.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

// Five steps from an empty to a full cell.
static const char *block_of(double score) {
    static const char *const blocks[] = {"\u00b7\u00b7\u00b7\u00b7", "\u2591\u2591\u2591\u2591",
                                         "\u2592\u2592\u2592\u2592", "\u2593\u2593\u2593\u2593",
                                         "\u2588\u2588\u2588\u2588"};
    return isnan(score) ? "    " : blocks[(int)(4 * score + 0.5)];
}

static void print_map(const struct sl_eval_row *row, const struct sl_eval_grid *grid) {
    printf("\n%s%s%s", row->recipe->name, row->recipe->budget[0] ? " at " : "", row->recipe->budget);
    if (isnan(row->mean)) {
        printf(": n/a: %s\n", row->cells[0].refused ? row->cells[0].refused : "not asked");
        return;
    }
    printf(": mean %.1f, shipped %.1f%%\n", 100 * row->mean, 100 * row->shipped);
    for (size_t d = 0; d < grid->n_depths; d++) {
        printf("%6.3g%%  ", 100 * grid->depths[d]);
        for (size_t l = 0; l < grid->n_lengths; l++) {
            const struct sl_eval_cell_score *cell = &row->cells[d * grid->n_lengths + l];
            printf("   %s", cell->n == 0 && cell->refused ? " n/a" : block_of(cell->mean));
        }
        putchar('\n');
    }
    printf("%9s", "");
    for (size_t l = 0; l < grid->n_lengths; l++) {
        printf("%7lld", (long long)grid->lengths[l]);
    }
    putchar('\n');
}

static enum sl_status show(const struct grid_config *c, const struct sl_eval_session *s,
                           const struct sl_eval_grid *grid, struct sl_error *err) {
    if (c->tool.json) {
        enum sl_status status = sl_eval_report_print_json(&s->report, stdout, err);
        return status == SL_OK && c->png ? sl_eval_plot_grid(&s->report, grid, c->png, err) : status;
    }
    printf("%s, by depth and tokens of the prompt: %s none found, %s half, %s all\n%s\n", c->task, block_of(0),
           block_of(0.5), block_of(1), s->subject);
    for (size_t i = 0; i < s->report.n_rows; i++) {
        print_map(&s->report.rows[i], grid);
    }
    return c->png ? sl_eval_plot_grid(&s->report, grid, c->png, err) : SL_OK;
}

// Makes cells depth by depth: sl_eval_plot_grid() relies on it.
static enum sl_status make_plan(const struct grid_config *c, const struct sl_eval_grid *grid, struct sl_eval_plan *plan,
                                struct sl_error *err) {
    const struct sl_task *task;
    int64_t samples = c->eval.samples ? c->eval.samples : 3;
    enum sl_status status = sl_eval_find_task(c->task, &task, err);
    if (status == SL_OK && task->n_facts == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "--task %s: it hides nothing, so there is no depth", c->task);
    }
    plan->seed = (uint64_t)c->eval.seed;
    status = status == SL_OK ? sl_eval_options_recipes(&c->eval, plan, err) : status;
    for (size_t d = 0; status == SL_OK && d < grid->n_depths; d++) {
        for (size_t l = 0; status == SL_OK && l < grid->n_lengths; l++) {
            status = sl_eval_plan_add_task(plan, task, grid->lengths[l], grid->depths[d], samples, err);
        }
    }
    return status;
}

static enum sl_status evaluate(void *config, struct sl_error *err) {
    const struct grid_config *c = config;
    double depths[MAX_DEPTHS];
    int64_t *lengths = NULL;
    struct sl_eval_grid grid = {.depths = depths, .n_depths = (size_t)c->depths};
    for (size_t d = 0; d < grid.n_depths; d++) {
        depths[d] = grid.n_depths > 1 ? (double)d / (double)(grid.n_depths - 1) : 0.5;
    }
    enum sl_status status = sl_plot_check(c->png, err);
    if (status == SL_OK) {
        status = sl_eval_parse_numbers("lengths", c->eval.lengths, 1, INT32_MAX, &lengths, &grid.n_lengths, err);
    }
    if (status != SL_OK) {
        return status;
    }
    grid.lengths = lengths;
    struct sl_eval_session session = {.command = "eval grid", .options = &c->eval};
    status = make_plan(c, &grid, &session.plan, err);
    if (status == SL_OK) {
        status = sl_eval_session_run(&session, err);
        if (status == SL_OK) {
            status = show(c, &session, &grid, err);
        } else if (status == SL_ERR_CANCELLED && session.report.n_rows > 0) {
            struct sl_error lost; // the cancellation is the more useful error
            show(c, &session, &grid, &lost);
        }
    }
    sl_eval_session_cleanup(&session);
    free(lengths);
    return status;
}

int sl_command_eval_grid(int argc, char **argv) {
    struct grid_config config = {0};
    return sl_tool_run(&program, argc, argv, &config, evaluate);
}
