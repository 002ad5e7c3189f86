// SPDX-License-Identifier: Apache-2.0
// Purpose: see calibrate.h.
#include "lab/bench/calibrate/calibrate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lab/result.h"

#define RUNS 3

static enum sl_status measure_pass(struct sl_calibration *c, int64_t tokens, int64_t context, double *s_out,
                                   struct sl_error *err) {
    struct sl_cell cell = {.n = context, .batch = 1};
    double seconds[RUNS];
    snprintf(cell.name, sizeof cell.name, "%" PRId64 " after %" PRId64, tokens, context);
    c->rig.config.n_steps = c->rig.config.chunk;
    enum sl_status status = sl_rig_open_cell(&c->rig, &cell, err);
    for (int run = -1; run < RUNS && status == SL_OK; run++) { // the first one warms up
        status = sl_rig_read_after(&c->rig, (int)tokens, &seconds[run < 0 ? 0 : run], err);
    }
    sl_rig_close_cell(&c->rig);
    *s_out = status == SL_OK ? sl_bench_median(seconds, RUNS) : 0;
    return status;
}

static enum sl_status measure(struct sl_calibration *c, struct sl_held *at, struct sl_error *err) {
    bool is_prompt = at->kind == SL_CALIBRATED_PROMPT;
    int64_t x = (int64_t)at->x, y = (int64_t)at->y;
    struct sl_cell cell = {
        .prefill = is_prompt, .n = is_prompt ? x : y, .batch = at->kind == SL_CALIBRATED_STEP ? (int)x : 1};
    double seconds[RUNS];
    snprintf(cell.name, sizeof cell.name, "%s:%" PRId64 "x%d", is_prompt ? "prefill" : "decode", cell.n, cell.batch);
    sl_bench_progress("%s, %s, %" PRId64 " and %" PRId64, at->recipe,
                      at->kind == SL_CALIBRATED_PASS ? "pass" : cell.name, x, y);
    enum sl_status status = sl_signals_check(c->signals, err);
    if (status == SL_OK && at->kind == SL_CALIBRATED_PASS) {
        return measure_pass(c, x, y, &at->s, err);
    }
    c->rig.config.n_steps = SL_CALIBRATION_STEPS;
    SL_THEN(status, sl_recipe_cell_run(&c->rig, at->recipe, &cell, RUNS, seconds, err));
    at->s = status == SL_OK ? sl_bench_median(seconds, RUNS) / (is_prompt ? 1 : SL_CALIBRATION_STEPS) : 0;
    if (status != SL_OK && status != SL_ERR_CANCELLED) {
        sl_error_prefix(err, cell.name);
    }
    return status;
}

struct grid {
    enum sl_calibrated kind;
    const char *recipe;
    const int64_t *xs, *ys; // [n_xs], [n_ys]; ys NULL: one dimension
    int n_xs, n_ys;
};

static double middle(const int64_t *lines, int n, int i) {
    return (double)((lines[i] + lines[i + 1 < n ? i + 1 : i]) / 2);
}

// Measures a point between this cell and the next ones, where there is one.
static enum sl_status hold_out(struct sl_calibration *c, const struct grid *grid, int i, int j, struct sl_error *err) {
    struct sl_held held = {grid->recipe, grid->kind, middle(grid->xs, grid->n_xs, i),
                           grid->ys ? middle(grid->ys, grid->n_ys, j) : 0, 0};
    bool is_between = held.x > (double)grid->xs[i] || (grid->ys && held.y > (double)grid->ys[j]);
    if (!is_between || c->n_held == SL_CALIBRATION_MAX_HELD) {
        return SL_OK;
    }
    enum sl_status status = measure(c, &held, err);
    if (status == SL_OK) {
        c->held[c->n_held++] = held;
    }
    return status;
}

// Measures a grid. Returns its rows, or NULL after a failure.
static json_t *measure_grid(struct sl_calibration *c, const struct grid *grid, struct sl_error *err) {
    json_t *rows = json_array();
    enum sl_status status = SL_OK;
    for (int cell = 0; cell < grid->n_xs * grid->n_ys && status == SL_OK; cell++) {
        int i = cell / grid->n_ys, j = cell % grid->n_ys;
        struct sl_held at = {grid->recipe, grid->kind, (double)grid->xs[i], grid->ys ? (double)grid->ys[j] : 0, 0};
        status = measure(c, &at, err);
        if (status == SL_OK) {
            json_array_append_new(rows, grid->ys ? json_pack("[f, f, f]", at.x, at.y, at.s * 1e3)
                                                 : json_pack("[f, f]", at.x, at.s * 1e3));
            status = c->n_cells++ % 4 == 1 ? hold_out(c, grid, i, j, err) : SL_OK;
        }
    }
    if (status != SL_OK) {
        json_decref(rows);
        return NULL;
    }
    return rows;
}

static bool set(json_t *object, const char *name, json_t *value) {
    return value && json_object_set_new(object, name, value) == 0;
}

enum sl_status sl_calibrate(struct sl_calibration *c, struct sl_error *err) {
    int64_t tokens[] = {16, 128, c->rig.config.chunk / 2, c->rig.config.chunk},
            depths[SL_CALIBRATION_MAX_LINES + 1] = {0};
    json_t *decode = json_object(), *reading = json_object();
    memcpy(depths + 1, c->contexts, sizeof *depths * (size_t)c->n_contexts);
    struct grid passes = {SL_CALIBRATED_PASS, c->recipes[0], tokens, depths, 4, c->n_contexts + 1};
    bool good = set(c->table, "prefill", measure_grid(c, &passes, err));
    for (int i = 0; i < c->n_recipes && good; i++) {
        struct grid prompts = {SL_CALIBRATED_PROMPT, c->recipes[i], c->contexts, NULL, c->n_contexts, 1};
        struct grid steps = {SL_CALIBRATED_STEP, c->recipes[i], c->batches, c->contexts, c->n_batches, c->n_contexts};
        good = set(reading, c->recipes[i], measure_grid(c, &prompts, err)) &&
               set(decode, c->recipes[i], measure_grid(c, &steps, err));
    }
    bool kept = set(c->table, "reading", reading) & set(c->table, "decode", decode);
    return good && kept           ? SL_OK
           : err->status != SL_OK ? err->status
                                  : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the table");
}

double sl_calibration_predict(const struct sl_calibration *c, struct sl_costs *costs, const struct sl_held *held) {
    struct sl_recipe recipe;
    struct sl_error ignored;
    if (held->kind != SL_CALIBRATED_PROMPT || sl_recipe_parse(held->recipe, &recipe, &ignored) != SL_OK) {
        return held->kind == SL_CALIBRATED_PASS ? sl_costs_read_s(costs, held->x, held->y)
                                                : sl_costs_step_s(costs, held->x, held->y);
    }
    const struct sl_costs_cut cut = {recipe.chunk_tokens, sl_reader_half_position(c->rig.runtime.config),
                                     !sl_recipe_evicts(&recipe)};
    sl_costs_fit_reading(costs, &cut);
    return sl_costs_prompt_s(costs, &cut, (int64_t)held->x);
}
