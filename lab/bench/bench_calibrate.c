// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures how long a worker's operations take (lab/bench/calibrate), writes the table of lab/simulate/costs.h, and
 *          prints by how much it misses the measurements that were held out.
 *
 * Design: on a tier of times (timed:h100) the
 *         times are counted, not taken: floors of bytes and operations, and the table says so.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message_json.h"
#include "client/cli/table.h"
#include "engine/tensor/timed/timed.h"
#include "lab/bench/bench.h"
#include "lab/bench/calibrate/calibrate.h"
#include "lab/bench/rig/recipe_cell.h"
#include "lab/result.h"

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
     "may be given several times. Without: the full cache and full,format=int8", SL_FIELD(options, recipes)},
    {"contexts", 0, SL_OPTION_STRING, "512,2048,8192", "LIST", "tokens before a pass or a step",
     SL_FIELD(options, contexts)},
    {"batches", 0, SL_OPTION_STRING, "1,4,16", "LIST", "answers of a step", SL_FIELD(options, batches)},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "stored, int8 or int4", SL_FIELD(options, weights)},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use; timed:NAME counts an accelerator's times",
     SL_FIELD(options, tier)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    SL_DEVICE_OPTION(options, device),
    {"transport", 't', SL_OPTION_STRING, "tcp", "NAME", "of ships: tcp or shm", SL_FIELD(options, transport)},
    {"link", 0, SL_OPTION_FLOAT, "0", "GBIT", "between workers; 0: ships on this machine are measured",
     SL_FIELD(options, link), 0, 1e5},
    {"latency", 0, SL_OPTION_FLOAT, "0.1", "MS", "of a ship", SL_FIELD(options, latency_ms), 0, 1e4},
    {"call", 0, SL_OPTION_FLOAT, "1", "MS", "of a call between coordinator and worker; not measured",
     SL_FIELD(options, call_ms), 0, 1e4},
    {"lookup", 0, SL_OPTION_FLOAT, "1", "MS", "of a look-up in a store, with its call; not measured",
     SL_FIELD(options, lookup_ms), 0, 1e4},
    {"machine", 0, SL_OPTION_STRING, NULL, "TEXT", "what the table calls the machine", SL_FIELD(options, machine)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_signals signals;
    struct sl_team *team;
    struct sl_calibration calibration;
};

// --- output ----------------------------------------------------------------------------------------------------------------

static const struct sl_column columns[] = {
    {"HELD OUT", false}, {"RECIPE", false}, {"MEASURED MS", true}, {"TABLE MS", true}, {"ERROR %", true}};

static enum sl_status print_errors(struct bench *b, struct sl_error *err) {
    static const char *const kinds[] = {"pass of %.0f tokens after %.0f", "prompt of %.0f tokens",
                                        "step of %.0f after %.0f"};
    struct sl_table table = SL_TABLE(columns);
    struct sl_costs *costs = calloc(1, sizeof *costs);
    double errors[SL_CALIBRATION_MAX_HELD];
    enum sl_status status = costs ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    for (int i = 0; i < b->calibration.n_held && status == SL_OK; i++) {
        const struct sl_held *held = &b->calibration.held[i];
        char name[80];
        status = sl_costs_load(b->options.output, held->recipe, costs, err);
        double table_s = status == SL_OK ? sl_calibration_predict(&b->calibration, costs, held) : held->s;
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
    for (*n_out = 0; *n_out < SL_CALIBRATION_MAX_LINES;) {
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
                   "--%s: expected at most %d rising numbers from 1 to %" PRId64 ", such as 1,4,16", option,
                   SL_CALIBRATION_MAX_LINES, most);
}

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    SL_FAIL_IF(!b->options.output, err, SL_ERR_INVALID, "--out FILE is missing: where the table goes");
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
                                   .n_steps = SL_CALIBRATION_STEPS,
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
             sl_timed_is_named(o->tier) ? ", counted: floors at 60% of the peak and 80% of the bandwidth" : "");
    json_t *head = json_pack("{s:s, s:s, s:i, s:{s:f, s:f}, s:{s:f}, s:f}", "machine",
                             o->machine ? o->machine : machine, "shape", shape, "rows",
                             b->calibration.rig.runtime.device->ops->full_rows, "ship", "bytes_per_s", ship_bytes_per_s,
                             "latency_ms", o->latency_ms, "store", "lookup_ms", o->lookup_ms, "call_ms", o->call_ms);
    bool good = json_object_update(b->calibration.table, head) == 0 &&
                json_dump_file(b->calibration.table, o->output, JSON_REAL_PRECISION(6) | JSON_INDENT(1)) == 0;
    json_decref(head);
    return good ? SL_OK : sl_fail(err, SL_ERR_IO, "%s cannot be written: %m", o->output);
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    double rate = b->options.link > 0 ? b->options.link * 1e9 / 8 : sl_bench_ship_rate(b->options.transport);
    SL_FAIL_IF(rate <= 0, err, SL_ERR_IO, "no ship over %s was measured: give --link", b->options.transport);
    static const char *const usual[] = {"full", "full,format=int8"};
    const struct sl_option_list *given = &b->options.recipes;
    struct sl_calibration *c = &b->calibration;
    c->signals = &b->signals;
    c->recipes = given->n > 0 ? given->items : usual;
    c->n_recipes = given->n > 0 ? given->n : 2;
    c->table = json_object();
    enum sl_status status = open_rig(b, err);
    if (status == SL_OK && sl_timed_is_named(b->options.tier)) {
        sl_timed_count();
    }
    SL_THEN(status, sl_calibrate(c, err));
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
