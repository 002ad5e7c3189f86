// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the engine cell by cell (lab/bench/rig/cell.h), for a program that alternates with another engine
 *          (lab/bench/peers).
 *
 * Design: a short warm-up run of every cell is not measured. With --paced every run waits for a line on standard
 *         input, the first one before its cell is made, so that only one of several programs works at a time. The end
 *         of standard input ends the bench. With --recipe, cells go through the workers' reader and steps instead
 *         (recipe_cell.h): each cell under each recipe. A cell for which the device has no room is reported and
 *         skipped; the bench then fails at its end.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "client/cli/message_json.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/recipe_cell.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/result.h"
#include "base/options/config.h"

#define MAX_RUNS 101

struct options {
    const char *model, *geometry, *weights, *tier, *device, *logits;
    struct sl_option_list cells, recipes;
    int64_t threads, runs, chunk, tokens, layers, retaining;
    bool paced, json;
};

static const struct sl_option option_table[] = {
    SL_MODEL_OPTION(options, model, "demo"),
    {"geometry", 0, SL_OPTION_STRING, NULL, "NAME", "a random model instead: " SL_GEOMETRY_HELP,
     SL_FIELD(options, geometry)},
    {"layers", 0, SL_OPTION_INT, "0", "N", "with --geometry: number of layers; 0: as many as that has",
     SL_FIELD(options, layers), 0, SL_MAX_LAYERS},
    {"retaining-heads", 0, SL_OPTION_INT, "0", "N", "with --geometry: rows of its retaining heads; 0: no heads",
     SL_FIELD(options, retaining), 0, 65536},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "stored, int8 or int4", SL_FIELD(options, weights)},
    {"cell", 0, SL_OPTION_LIST, NULL, "CELL", "prefill:TOKENS or decode:DEPTHxBATCH; may be given several times",
     SL_FIELD(options, cells)},
    {"recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",
     "compress by this recipe; may be given several times. None: plain sessions in f16", SL_FIELD(options, recipes)},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of every cell", SL_FIELD(options, runs), 1, MAX_RUNS},
    {"tokens", 0, SL_OPTION_INT, "16", "N", "steps of a decode run", SL_FIELD(options, tokens), 1, 4096},
    {"chunk", 0, SL_OPTION_INT, "512", "N", "tokens of a prompt that are read at once", SL_FIELD(options, chunk),
     SL_CELL_MAX_BATCH, 1 << 16},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use", SL_FIELD(options, tier)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    SL_DEVICE_OPTION(options, device),
    {"logits", 0, SL_OPTION_STRING, NULL, "FILE", "write the logits after each prompt there, as f32",
     SL_FIELD(options, logits)},
    {"paced", 0, SL_OPTION_FLAG, "no", NULL, "wait for a line on standard input before every run, and print every run",
     SL_FIELD(options, paced)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_cell cells[SL_MAX_OPTION_LIST];
    enum sl_weight_format weights;
    struct sl_model_config geometry; // value of --geometry
    struct sl_team *team;
    struct sl_rig rig;
    struct sl_signals signals;
    bool over; // standard input has ended
};

// With --paced: waits for a line. Returns false once there is none.
static bool wait_for_line(struct bench *b) {
    b->over = b->over || (b->options.paced && !sl_bench_wait_for_line(&b->signals));
    return !b->over;
}

static void print_rate(const struct bench *b, const char *recipe, double seconds) {
    char name[192];
    snprintf(name, sizeof name, "%s%s%s", b->rig.cell.name, recipe != NULL ? " " : "", recipe != NULL ? recipe : "");
    sl_bench_print_value("cells", name, (double)sl_rig_tokens(&b->rig) / seconds, "tokens/s", b->options.json);
}

// Prints the peak device memory, including weights, without CUDA's own. CPUs have no such line.
static void print_memory(const struct bench *b, const char *recipe) {
    char name[192];
    snprintf(name, sizeof name, "memory of %s%s%s", b->rig.cell.name, recipe != NULL ? " " : "",
             recipe != NULL ? recipe : "");
    if (sl_rig_most_bytes(&b->rig) > 0) {
        sl_bench_print_value("cells", name, (double)sl_rig_most_bytes(&b->rig) / 1e9, "GB", b->options.json);
    }
}

static enum sl_status measure_cell(struct bench *b, struct sl_error *err) {
    const char *name = b->rig.cell.name;
    double seconds[MAX_RUNS];
    enum sl_status status = sl_rig_warm_up(&b->rig, err);
    for (int64_t run = 0; run < b->options.runs && status == SL_OK; run++) {
        sl_bench_progress("%s: run %" PRId64 " of %" PRId64, name, run + 1, b->options.runs);
        if (run > 0 && !wait_for_line(b)) { // measure_plain() has waited for the first
            return SL_OK;
        }
        status = sl_rig_run(&b->rig, &seconds[run], err);
        if (status == SL_OK && b->options.paced) {
            print_rate(b, NULL, seconds[run]);
        }
    }
    if (status == SL_OK && !b->options.paced) {
        print_rate(b, NULL, sl_bench_median(seconds, (size_t)b->options.runs));
        print_memory(b, NULL);
    }
    return status;
}

static enum sl_status save_logits(const struct bench *b, struct sl_error *err) {
    size_t n_vocab = (size_t)b->rig.runtime.config->n_vocab;
    FILE *file = fopen(b->options.logits, "wb");
    bool saved = file != NULL && fwrite(b->rig.logits, sizeof *b->rig.logits, n_vocab, file) == n_vocab;
    saved &= file != NULL && fclose(file) == 0;
    return saved ? SL_OK : sl_fail(err, SL_ERR_IO, "%s: cannot write the logits: %m", b->options.logits);
}

// --- the whole -----------------------------------------------------------------------------------------------------

static void print_header(const struct bench *b) {
    const struct sl_rig *rig = &b->rig;
    double weight_mb = (double)sl_model_weight_bytes(rig->runtime.model) / 1e6;
    double memory_mb = (double)sl_model_memory_bytes(rig->runtime.model) / 1e6;
    if (!b->options.json) {
        printf("%s: %.1f MB of weights, %.1f MB in memory, tier %s, %d threads\n", b->options.model, weight_mb,
               memory_mb, rig->runtime.ops->name, sl_team_size(b->team));
    } else {
        json_t *line = json_pack("{s:s, s:s, s:f, s:f, s:s, s:i, s:I}", "bench", "cells", "model", b->options.model,
                                 "weight_mb", weight_mb, "memory_mb", memory_mb, "tier", rig->runtime.ops->name,
                                 "threads", sl_team_size(b->team), "chunk", b->options.chunk);
        sl_json_print(line, JSON_REAL_PRECISION(6), stdout);
    }
    fflush(stdout);
}

static enum sl_status open_rig(struct bench *b, struct sl_error *err) {
    const struct options *options = &b->options;
    struct sl_rig_config config = {.model_dir = options->model,
                                   .device = options->device,
                                   .tier = options->tier,
                                   .weights = b->weights,
                                   .chunk = (int)options->chunk,
                                   .n_steps = options->tokens,
                                   .signals = &b->signals};
    enum sl_status status = sl_team_create((int)options->threads, &b->team, err);
    config.team = b->team;
    for (int i = 0; i < options->recipes.n && status == SL_OK; i++) {
        int64_t chunk = 0;
        status = sl_recipe_chunk(options->recipes.items[i], &chunk, err);
        config.chunk = chunk > config.chunk ? (int)chunk : config.chunk;
        config.tokenizer |= sl_recipe_cell_repeats(options->recipes.items[i]);
    }
    if (status == SL_OK && options->geometry != NULL) {
        status = sl_synthetic_config(options->geometry, options->layers, &b->geometry, err);
        b->geometry.retaining_hidden = (int)options->retaining;
        config.geometry = &b->geometry;
        b->options.model = options->geometry; // the model's name from here on
    }
    return status == SL_OK ? sl_rig_open(&config, &b->rig, err) : status;
}

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    SL_FAIL_IF(b->options.cells.n == 0, err, SL_ERR_INVALID, "no --cell given");
    enum sl_status status = sl_weight_format_parse(b->options.weights, &b->weights, err);
    SL_THEN_FAIL_IF(status, b->options.recipes.n > 0 && (b->options.paced || b->options.logits != NULL), err,
                    SL_ERR_INVALID, "--recipe goes with neither --paced nor --logits");
    for (int i = 0; i < b->options.cells.n && status == SL_OK; i++) {
        status = sl_cell_parse(b->options.cells.items[i], &b->cells[i], err);
    }
    return status;
}

static enum sl_status measure_plain(struct bench *b, const struct sl_cell *cell, struct sl_error *err) {
    if (!wait_for_line(b)) {
        return sl_signals_check(&b->signals, err);
    }
    enum sl_status status = sl_rig_open_cell(&b->rig, cell, err);
    SL_THEN(status, measure_cell(b, err));
    SL_THEN(status, cell->prefill && b->options.logits != NULL ? save_logits(b, err) : SL_OK);
    sl_rig_close_cell(&b->rig);
    return status;
}

static enum sl_status measure_recipe(struct bench *b, const struct sl_cell *cell, const char *recipe,
                                     struct sl_error *err) {
    double seconds[MAX_RUNS];
    SL_TRY(sl_recipe_cell_run(&b->rig, recipe, cell, b->options.runs, seconds, err));
    print_rate(b, recipe, sl_bench_median(seconds, (size_t)b->options.runs));
    print_memory(b, recipe);
    return SL_OK;
}

// Reports a cell without room and continues with the others; *worst is then the bench's final status. A program that
// paces the runs gets a line for the cell, too.
static enum sl_status pass_over(const struct bench *b, enum sl_status status, const char *recipe, struct sl_error *err,
                                enum sl_status *worst_inout) {
    if (status != SL_ERR_EXHAUSTED) {
        return status;
    }
    if (b->options.paced && b->options.json) {
        sl_json_print(json_pack("{s:s, s:s}", "bench", "cells", "error", err->text), 0, stdout);
    }
    fprintf(stderr, "bench: %s%s%s\n", recipe != NULL ? recipe : "", recipe != NULL ? ": " : "", err->text);
    *worst_inout = status;
    return SL_OK;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    enum sl_status worst = SL_OK, status = open_rig(b, err);
    if (status == SL_OK) {
        print_header(b);
    }
    for (int i = 0; i < b->options.cells.n && status == SL_OK && !b->over; i++) {
        const struct sl_option_list *recipes = &b->options.recipes;
        if (recipes->n == 0) {
            status = pass_over(b, measure_plain(b, &b->cells[i], err), NULL, err, &worst);
        }
        for (int r = 0; r < recipes->n && status == SL_OK; r++) {
            const char *recipe = recipes->items[r];
            status = pass_over(b, measure_recipe(b, &b->cells[i], recipe, err), recipe, err, &worst);
        }
    }
    sl_rig_close(&b->rig);
    sl_team_destroy(&b->team);
    return status == SL_OK ? worst : status;
}

SL_BENCH(cells, "--cell CELL [options]",
         "Measure single cells of the engine: one prompt length, or one depth and batch.", .check = check);
