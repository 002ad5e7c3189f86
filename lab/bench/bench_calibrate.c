// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures how long a worker's operations take, writes the table of lab/simulate/costs.h, and prints by how much
 *          it misses the measurements that were held out.
 *
 * Design: the grids are passes of a prompt over tokens and contexts, whole prompts, and steps of decode under each recipe.
 *         After every fourth cell of a grid, a point between two of its lines is measured, too, which is held out of the
 *         table: a fifth of all measurements. On a tier of times (timed:h100) the times are counted, not taken: floors of
 *         bytes and operations, and the table says so.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_file.h"
#include "base/whole_file.h"
#include "client/cli/message_json.h"
#include "client/cli/table.h"
#include "engine/tensor/timed/timed.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/recipe_cell.h"
#include "lab/result.h"
#include "lab/simulate/costs.h"

#define RUNS      3
#define MAX_LINES 16
#define MAX_HELD  256
#define STEPS     8 // of a measurement of decode

enum kind { KIND_PASS, KIND_PROMPT, KIND_STEP };

// A measurement that is held out: a pass of x tokens after y, a prompt of x tokens, or a step of x answers after y.
struct held {
    const char *recipe;
    enum kind kind;
    double x, y, s;
};

struct calibration {
    struct sl_rig rig; // opened by the caller, and closed
    struct sl_signals *signals;
    const char *const *recipes; // [n_recipes]; passes are measured under none
    int n_recipes;
    int64_t contexts[MAX_LINES], batches[MAX_LINES];
    int n_contexts, n_batches;
    json_t *table; // gets the lists; the caller's
    struct held held[MAX_HELD];
    int n_held, n_cells;
};

struct options {
    const char *model, *weights, *tier, *device, *output, *contexts, *batches, *transport, *machine;
    struct sl_option_list recipes;
    int64_t threads;
    double link, latency_ms, call_ms, lookup_ms;
    bool json;
};

static const struct sl_option option_table[] = {
    SL_MODEL_OPTION(options, model, "demo"),
    {"out", 'o', SL_OPTION_STRING, NULL, "FILE", "the table (required)", SL_FIELD(options, output)},
    {"recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",
     "a recipe; may be given several times. Default: the full cache and full,format=int8", SL_FIELD(options, recipes)},
    {"contexts", 0, SL_OPTION_STRING, "512,2048,8192", "LIST", "tokens before a pass or a step",
     SL_FIELD(options, contexts)},
    {"batches", 0, SL_OPTION_STRING, "1,4,16", "LIST", "answers of a step", SL_FIELD(options, batches)},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "stored, int8 or int4", SL_FIELD(options, weights)},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use; timed:NAME counts an accelerator's times",
     SL_FIELD(options, tier)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    SL_DEVICE_OPTION(options, device),
    {"transport", 't', SL_OPTION_STRING, "tcp", "NAME", "transport of ships: tcp or shm", SL_FIELD(options, transport)},
    {"link", 0, SL_OPTION_FLOAT, "0", "GBIT", "bandwidth between workers; 0: measure ships on this machine",
     SL_FIELD(options, link), 0, 1e5},
    {"latency", 0, SL_OPTION_FLOAT, "0.1", "MS", "latency of a ship", SL_FIELD(options, latency_ms), 0, 1e4},
    {"call", 0, SL_OPTION_FLOAT, "1", "MS", "time of a call between coordinator and worker, which is not measured",
     SL_FIELD(options, call_ms), 0, 1e4},
    {"lookup", 0, SL_OPTION_FLOAT, "1", "MS", "time of a look-up in a store with its call, which is not measured",
     SL_FIELD(options, lookup_ms), 0, 1e4},
    {"machine", 0, SL_OPTION_STRING, NULL, "TEXT", "name of the machine in the table", SL_FIELD(options, machine)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_signals signals;
    struct sl_team *team;
    struct calibration calibration;
};

// --- the grids --------------------------------------------------------------------------------------------------------------

static enum sl_status measure_pass(struct calibration *c, int64_t tokens, int64_t context, double *s_out,
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

static enum sl_status measure(struct calibration *c, struct held *at, struct sl_error *err) {
    bool is_prompt = at->kind == KIND_PROMPT;
    int64_t x = (int64_t)at->x, y = (int64_t)at->y;
    struct sl_cell cell = {.prefill = is_prompt, .n = is_prompt ? x : y, .batch = at->kind == KIND_STEP ? (int)x : 1};
    double seconds[RUNS];
    snprintf(cell.name, sizeof cell.name, "%s:%" PRId64 "x%d", is_prompt ? "prefill" : "decode", cell.n, cell.batch);
    sl_bench_progress("%s, %s, %" PRId64 " and %" PRId64, at->recipe, at->kind == KIND_PASS ? "pass" : cell.name, x, y);
    enum sl_status status = sl_signals_check(c->signals, err);
    if (status == SL_OK && at->kind == KIND_PASS) {
        return measure_pass(c, x, y, &at->s, err);
    }
    c->rig.config.n_steps = STEPS;
    SL_THEN(status, sl_recipe_cell_run(&c->rig, at->recipe, &cell, RUNS, seconds, err));
    at->s = status == SL_OK ? sl_bench_median(seconds, RUNS) / (is_prompt ? 1 : STEPS) : 0;
    if (status != SL_OK && status != SL_ERR_CANCELLED) {
        sl_error_prefix(err, cell.name);
    }
    return status;
}

struct grid {
    enum kind kind;
    const char *recipe;
    const int64_t *xs, *ys; // [n_xs], [n_ys]; ys NULL: one dimension
    int n_xs, n_ys;
};

static double middle(const int64_t *lines, int n, int i) {
    return (double)((lines[i] + lines[i + 1 < n ? i + 1 : i]) / 2);
}

// Measures a point between this cell and the next ones, where there is one.
static enum sl_status hold_out(struct calibration *c, const struct grid *grid, int i, int j, struct sl_error *err) {
    struct held held = {grid->recipe, grid->kind, middle(grid->xs, grid->n_xs, i),
                        grid->ys ? middle(grid->ys, grid->n_ys, j) : 0, 0};
    bool is_between = held.x > (double)grid->xs[i] || (grid->ys && held.y > (double)grid->ys[j]);
    if (!is_between || c->n_held == MAX_HELD) {
        return SL_OK;
    }
    SL_TRY(measure(c, &held, err));
    c->held[c->n_held++] = held;
    return SL_OK;
}

// Measures a grid. Returns its rows, or NULL after a failure.
static json_t *measure_grid(struct calibration *c, const struct grid *grid, struct sl_error *err) {
    json_t *rows = json_array();
    enum sl_status status = SL_OK;
    for (int cell = 0; cell < grid->n_xs * grid->n_ys && status == SL_OK; cell++) {
        int i = cell / grid->n_ys, j = cell % grid->n_ys;
        struct held at = {grid->recipe, grid->kind, (double)grid->xs[i], grid->ys ? (double)grid->ys[j] : 0, 0};
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

// Measures the grids of the table.
static enum sl_status calibrate(struct calibration *c, struct sl_error *err) {
    int64_t tokens[] = {16, 128, c->rig.config.chunk / 2, c->rig.config.chunk}, depths[MAX_LINES + 1] = {0};
    json_t *decode = json_object(), *reading = json_object();
    memcpy(depths + 1, c->contexts, sizeof *depths * (size_t)c->n_contexts);
    struct grid passes = {KIND_PASS, c->recipes[0], tokens, depths, 4, c->n_contexts + 1};
    bool good = set(c->table, "prefill", measure_grid(c, &passes, err));
    for (int i = 0; i < c->n_recipes && good; i++) {
        struct grid prompts = {KIND_PROMPT, c->recipes[i], c->contexts, NULL, c->n_contexts, 1};
        struct grid steps = {KIND_STEP, c->recipes[i], c->batches, c->contexts, c->n_batches, c->n_contexts};
        good = set(reading, c->recipes[i], measure_grid(c, &prompts, err)) &&
               set(decode, c->recipes[i], measure_grid(c, &steps, err));
    }
    bool kept = set(c->table, "reading", reading) & set(c->table, "decode", decode);
    return good && kept           ? SL_OK
           : err->status != SL_OK ? err->status
                                  : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the table");
}

// Returns what a table says of a measurement that was held out, in seconds. Changes costs->reading.
static double predict(const struct calibration *c, struct sl_costs *costs, const struct held *held) {
    struct sl_recipe recipe;
    struct sl_error ignored;
    if (held->kind != KIND_PROMPT || sl_recipe_parse(held->recipe, &recipe, &ignored) != SL_OK) {
        return held->kind == KIND_PASS ? sl_costs_read_s(costs, held->x, held->y)
                                       : sl_costs_step_s(costs, held->x, held->y);
    }
    const struct sl_costs_cut cut = {recipe.chunk_tokens, sl_reader_half_position(c->rig.runtime.config),
                                     !sl_recipe_evicts(&recipe)};
    sl_costs_fit_reading(costs, &cut);
    return sl_costs_prompt_s(costs, &cut, (int64_t)held->x);
}

// --- output ----------------------------------------------------------------------------------------------------------------

static const struct sl_column columns[] = {
    {"HELD OUT", false}, {"RECIPE", false}, {"MEASURED MS", true}, {"TABLE MS", true}, {"ERROR %", true}};

static enum sl_status print_errors(struct bench *b, struct sl_error *err) {
    static const char *const kinds[] = {"pass of %.0f tokens after %.0f", "prompt of %.0f tokens",
                                        "step of %.0f after %.0f"};
    struct sl_table table = SL_TABLE(columns);
    struct sl_costs *costs = calloc(1, sizeof *costs);
    double errors[MAX_HELD];
    enum sl_status status = costs ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    for (int i = 0; i < b->calibration.n_held && status == SL_OK; i++) {
        const struct held *held = &b->calibration.held[i];
        char name[80];
        status = sl_costs_load(b->options.output, held->recipe, costs, err);
        double table_s = status == SL_OK ? predict(&b->calibration, costs, held) : held->s;
        snprintf(name, sizeof name, kinds[held->kind], held->x, held->y);
        errors[i] = fabs(table_s / held->s - 1);
        if (b->options.json) {
            sl_json_print(json_pack("{s:s, s:s, s:s, s:f, s:f}", "bench", "calibrate", "held_out", name, "recipe",
                                    held->recipe, "measured_ms", held->s * 1e3, "table_ms", table_s * 1e3),
                          0, stdout);
        }
        sl_table_add(&table, "%s\t%s\t%.3f\t%.3f\t%.1f", name, held->recipe, held->s * 1e3, table_s * 1e3,
                     100 * (table_s / held->s - 1));
    }
    if (status == SL_OK && !b->options.json && b->calibration.n_held > 0) {
        sl_table_print(&table, stdout);
        double median = sl_bench_median(errors, (size_t)b->calibration.n_held);
        printf("%s: %d measurements were held out; the table misses them by %.1f%% (median), %.1f%% (most).\n",
               b->options.output, b->calibration.n_held, 100 * median,
               100 * errors[b->calibration.n_held - 1]); // the median has sorted them
    }
    sl_table_cleanup(&table);
    free(costs);
    return status;
}

// --- the bench ---------------------------------------------------------------------------------------------------------------

static enum sl_status parse_list(const char *option, const char *text, int64_t most, int64_t *numbers_out, int *n_out,
                                 struct sl_error *err) {
    for (*n_out = 0; *n_out < MAX_LINES;) {
        char *end;
        int64_t v = strtoll(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0') || v < 1 || v > most ||
            (*n_out > 0 && v <= numbers_out[*n_out - 1])) {
            break;
        }
        numbers_out[(*n_out)++] = v;
        if (*end == '\0') {
            return SL_OK;
        }
        text = end + 1;
    }
    return sl_fail(err, SL_ERR_INVALID,
                   "--%s: expected at most %d rising numbers from 1 to %" PRId64 ", such as 1,4,16", option, MAX_LINES,
                   most);
}

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    SL_FAIL_IF(!b->options.output, err, SL_ERR_INVALID, "--out FILE is missing: where the table goes");
    SL_TRY(sl_whole_file_check(b->options.output, err)); // before minutes of measuring
    enum sl_status status =
        parse_list("contexts", b->options.contexts, 1000000, b->calibration.contexts, &b->calibration.n_contexts, err);
    return status == SL_OK ? parse_list("batches", b->options.batches, SL_CELL_MAX_BATCH, b->calibration.batches,
                                        &b->calibration.n_batches, err)
                           : status;
}

static enum sl_status open_rig(struct bench *b, struct sl_error *err) {
    struct sl_rig_config config = {.model_dir = b->options.model,
                                   .device = b->options.device,
                                   .tier = b->options.tier,
                                   .chunk = 512,
                                   .n_steps = STEPS,
                                   .signals = &b->signals};
    enum sl_status status = sl_weight_format_parse(b->options.weights, &config.weights, err);
    SL_THEN(status, sl_team_create((int)b->options.threads, &b->team, err));
    config.team = b->team;
    for (int i = 0; i < b->options.recipes.n; i++) {
        config.tokenizer |= sl_recipe_cell_repeats(b->options.recipes.items[i]);
    }
    return status == SL_OK ? sl_rig_open(&config, &b->calibration.rig, err) : status;
}

static enum sl_status write_table(struct bench *b, double ship_bytes_per_s, struct sl_error *err) {
    const struct options *o = &b->options;
    char machine[160], shape[96];
    sl_costs_shape(b->calibration.rig.runtime.config, shape);
    snprintf(machine, sizeof machine, "%s, %s%s", o->model, b->calibration.rig.runtime.ops->name,
             !sl_timed_is_named(o->tier) ? ""
             : strchr(o->tier, ':') == strrchr(o->tier, ':')
                 ? ", counted: floors at 60% of the peak and 80% of the bandwidth"
                 : ", counted: floors at what the tier names");
    json_t *head = json_pack("{s:s, s:s, s:i, s:{s:f, s:f}, s:{s:f}, s:f}", "machine",
                             o->machine ? o->machine : machine, "shape", shape, "rows",
                             b->calibration.rig.runtime.device->ops->full_rows, "ship", "bytes_per_s", ship_bytes_per_s,
                             "latency_ms", o->latency_ms, "store", "lookup_ms", o->lookup_ms, "call_ms", o->call_ms);
    bool good = json_object_update(b->calibration.table, head) == 0;
    json_decref(head);
    return sl_json_file_write(o->output, good ? b->calibration.table : NULL, JSON_REAL_PRECISION(6) | JSON_INDENT(1),
                              err);
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    double rate = b->options.link > 0 ? b->options.link * 1e9 / 8 : sl_bench_ship_rate(b->options.transport);
    SL_FAIL_IF(rate <= 0, err, SL_ERR_IO, "no ship over %s was measured: give --link", b->options.transport);
    static const char *const usual[] = {"full", "full,format=int8"};
    const struct sl_option_list *given = &b->options.recipes;
    struct calibration *c = &b->calibration;
    c->signals = &b->signals;
    c->recipes = given->n > 0 ? given->items : usual;
    c->n_recipes = given->n > 0 ? given->n : 2;
    c->table = json_object();
    enum sl_status status = open_rig(b, err);
    if (status == SL_OK && sl_timed_is_named(b->options.tier)) {
        sl_timed_count();
    }
    SL_THEN(status, calibrate(c, err));
    sl_bench_progress(NULL);
    SL_THEN(status, write_table(b, rate, err));
    SL_THEN(status, print_errors(b, err));
    sl_rig_close(&b->calibration.rig);
    sl_team_destroy(&b->team);
    json_decref(b->calibration.table);
    return status;
}

SL_BENCH(calibrate, "--out FILE [options]",
         "Measure how long reading, writing and shipping take, for `sluice simulate` and `sluice plan`.",
         .check = check);
