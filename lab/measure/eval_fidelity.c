// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval fidelity`: compares recipes with the full cache, as a table, as JSON lines, as a plot.

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "lab/measure/fidelity.h"
#include "lab/measure/measure.h"
#include "lab/measure/trials.h"
#include "lab/picture.h"

#define DEFAULT_TOKENS 2048 // if the text has as many

struct eval_config {
    struct sl_tool_config tool;
    struct sl_option_list recipes;
    const char *model, *weights, *device, *budget, *text, *png;
    int64_t tokens, continuation, threads;
};

static const struct sl_option options[] = {
    SL_MODEL_OPTION(eval_config, model, NULL),
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT",
     "format of the model's weights in memory: stored, int8 or int4", SL_FIELD(eval_config, weights)},
    {"recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",
     "a recipe; may be given several times, or as a list joined by ';'. Default: every preset",
     SL_FIELD(eval_config, recipes)},
    {"budget", 'b', SL_OPTION_STRING, NULL, "B",
     "budget of every recipe that evicts and names none: slots, or a ratio of the prompt. Default: 0.2 for presets "
     "that were not named",
     SL_FIELD(eval_config, budget)},
    {"text", 0, SL_OPTION_STRING, NULL, "FILE", "text to read; -: standard input. Default: this tool's license",
     SL_FIELD(eval_config, text)},
    {"tokens", 0, SL_OPTION_INT, "0", "N", "tokens of the prompt; 0: those of the text, up to 2048",
     SL_FIELD(eval_config, tokens), 0, 1 << 24},
    {"continuation", 0, SL_OPTION_INT, "128", "N", "tokens after the prompt, over which everything is measured",
     SL_FIELD(eval_config, continuation), 1, 1 << 16},
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw the results (needs matplotlib)", SL_FIELD(eval_config, png)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one for each processor", SL_FIELD(eval_config, threads), 0,
     1024},
    SL_DEVICE_OPTION(eval_config, device),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice eval fidelity",
    .usage = "--model DIR [options]",
    .summary = "Read a text under each recipe and compare attention and predictions with the full cache's.",
    .epilog =
        "error    relative error of the attention output over the continuation, same queries (mean over layers)\n"
        "overlap  Jaccard index of the slots kept with those that the continuation attends to most\n"
        "recall   of the topk slots that an offloaded layer's search should find, the share that it finds\n"
        "nll      mean negative log likelihood of the continuation's tokens, and what it is above the full cache's\n"
        "Recipes that this model cannot run are listed with the reason.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

// One recipe and its results.
struct trial {
    struct sl_trial run;
    struct sl_recipe recipe;
    struct sl_fidelity_result result;
};

struct eval {
    struct eval_config config;
    struct sl_eval_model model;
    struct sl_trials common;
    struct trial *trials; // [common.n]
    char *source;         // the text; NULL: the license
    int32_t *tokens;
    int64_t n_read;
    double full_nll;
};

// --- what to run ---------------------------------------------------------------------------------------------------

static enum sl_status make_trials(struct eval *e, struct sl_error *err) {
    SL_TRY(sl_eval_recipes(&e->config.recipes, e->config.budget, &e->common.recipes, err));
    e->trials = calloc(e->common.recipes.n, sizeof *e->trials);
    SL_FAIL_IF(e->trials == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < e->common.recipes.n; i++) {
        struct trial *trial = &e->trials[e->common.n++];
        struct sl_error why = {0};
        trial->run.text = e->common.recipes.items[i];
        if (sl_recipe_parse(trial->run.text, &trial->recipe, &why) != SL_OK) { // the preset cannot have this budget
            snprintf(trial->run.reason, sizeof trial->run.reason, "%s", why.text);
        }
    }
    return SL_OK;
}

static int largest_chunk(const struct eval *e) {
    int rows = 512;
    for (size_t i = 0; i < e->common.n; i++) {
        bool can_run = e->trials[i].run.reason[0] == '\0';
        rows = can_run && e->trials[i].recipe.chunk_tokens > rows ? e->trials[i].recipe.chunk_tokens : rows;
    }
    return rows;
}

// Encodes the text, and chooses where its prompt ends.
static enum sl_status encode_text(struct eval *e, struct sl_error *err) {
    const struct eval_config *c = &e->config;
    int64_t n_tokens;
    SL_TRY(sl_eval_model_encode(&e->model, e->source, &e->tokens, &n_tokens, err));
    int64_t positions = e->model.runtime.config->max_positions;
    int64_t most = (n_tokens < positions ? n_tokens : positions) - c->continuation - 1;
    int64_t asked = c->tokens ? c->tokens : most < DEFAULT_TOKENS ? most : DEFAULT_TOKENS;
    SL_FAIL_IF(asked < 1 || asked > most, err, SL_ERR_INVALID,
               "a prompt of %lld tokens and a continuation of %lld, with one token more to predict, do not fit "
               "a text of %lld tokens and a model of %lld positions",
               (long long)(asked < 1 ? 1 : asked), (long long)c->continuation, (long long)n_tokens,
               (long long)positions);
    e->n_read = asked;
    return SL_OK;
}

// --- running ---------------------------------------------------------------------------------------------------------

static enum sl_status draw_progress(void *arg, int64_t done, int64_t total) {
    struct eval *e = arg;
    return sl_trials_draw(&e->common, done, total);
}

// Runs a trial. A recipe that does not fit the model or the prompt gets a reason; other failures end the evaluation.
static enum sl_status run_trial(struct eval *e, struct sl_fidelity *fidelity, struct trial *trial,
                                struct sl_error *err) {
    struct sl_recipe recipe;
    struct sl_error why = {0};
    enum sl_status status = sl_trial_begin(&e->common, &trial->run, e->model.runtime.config, &recipe, &why);
    SL_THEN(status, sl_fidelity_measure(fidelity, &recipe, &trial->result, &why));
    return sl_trial_end(&e->common, &trial->run, status, &why, err);
}

static enum sl_status run_trials(struct eval *e, struct sl_error *err) {
    struct sl_fidelity_config config = {.model = &e->model,
                                        .tokens = e->tokens,
                                        .n_read = e->n_read,
                                        .n_new = e->config.continuation,
                                        .progress_fn = draw_progress,
                                        .arg = e};
    struct sl_fidelity *fidelity;
    snprintf(e->common.phase, sizeof e->common.phase, "full cache");
    enum sl_status status = sl_fidelity_create(&config, &fidelity, err);
    if (status != SL_OK) {
        return status != SL_ERR_CANCELLED
                   ? status
                   : sl_fail(err, status, "stopped by a signal: none of %zu recipes was measured", e->common.n);
    }
    e->full_nll = sl_fidelity_full_nll(fidelity);
    for (size_t i = 0; i < e->common.n && status == SL_OK; i++) {
        snprintf(e->common.phase, sizeof e->common.phase, "%zu/%zu %.40s", i + 1, e->common.n, e->trials[i].run.text);
        status = e->trials[i].run.reason[0] ? SL_OK : run_trial(e, fidelity, &e->trials[i], err);
    }
    sl_fidelity_destroy(&fidelity);
    sl_progress_hide();
    return status;
}

// --- results ---------------------------------------------------------------------------------------------------------

// Returns whether a recipe that evicts has a budget too large for this prompt: its errors are then meaningless.
static bool evicted_nothing(const struct eval *e, const struct trial *trial) {
    return sl_recipe_evicts(&trial->recipe) && !sl_recipe_thins(&trial->recipe) &&
           trial->result.slots > (double)e->n_read - 0.5;
}

static json_t *trial_json(const struct eval *e, const struct trial *trial) {
    const struct sl_fidelity_result *r = &trial->result;
    const size_t n_layers = (size_t)e->model.runtime.config->n_layers;
    json_t *recipe = sl_text_json(trial->run.text);
    if (trial->run.reason[0]) {
        return json_pack("{s:o, s:o}", "recipe", recipe, "skipped", sl_text_json(trial->run.reason));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o}", "recipe", recipe, "slots",
                     sl_report_number(r->slots), "bytes_per_token", sl_report_number(r->bytes_per_token), "share",
                     sl_report_number(r->share), "error_mean", sl_report_number(r->error_mean), "overlap_mean",
                     sl_report_number(r->overlap_mean), "recall_mean", sl_report_number(r->recall_mean), "nll",
                     sl_report_number(r->nll), "nothing_evicted", evicted_nothing(e, trial), "error",
                     sl_picture_numbers(r->error, n_layers), "overlap", sl_picture_numbers(r->overlap, n_layers),
                     "recall", sl_picture_numbers(r->recall, n_layers));
}

static enum sl_status report(const struct eval *e, struct sl_error *err) {
    json_t *trials = json_array();
    bool is_whole = !e->common.stopped && e->common.n_measured > 0;
    for (size_t i = 0; i < e->common.n; i++) {
        json_array_append_new(trials, trial_json(e, &e->trials[i]));
    }
    json_t *data = json_pack("{s:b, s:o, s:I, s:I, s:i, s:o, s:o}", "json", e->config.tool.json, "source",
                             sl_text_json(e->config.text ? e->config.text : "LICENSE"), "n_read", (json_int_t)e->n_read,
                             "n_new", (json_int_t)e->config.continuation, "n_layers", e->model.runtime.config->n_layers,
                             "full_nll", sl_report_number(e->full_nll), "trials", trials);
    SL_TRY(sl_report_print("fidelity", is_whole ? e->config.png : NULL, data, err));
    SL_TRY(sl_trials_check(&e->common, err));
    SL_FAIL_IF(e->common.n_measured == 0, err, SL_ERR_PRECONDITION, "none of the recipes can be run");
    return SL_OK;
}

// Evaluates with an open model.
static enum sl_status evaluate_model(struct eval *e, struct sl_error *err) {
    const struct eval_config *c = &e->config;
    // Room for two full caches, a recipe's two copies, and one of them growing while it is read.
    int64_t most = c->tokens ? c->tokens : DEFAULT_TOKENS;
    struct sl_eval_model_config model = {.dir = c->model,
                                         .weights = c->weights,
                                         .device = c->device,
                                         .threads = (int)c->threads,
                                         .max_rows = largest_chunk(e),
                                         .cache_tokens = 6 * (most + c->continuation + SL_PAGE_SLOTS),
                                         .tokenizer = true,
                                         .signals = &e->common.signals};
    SL_TRY(sl_eval_model_open(&model, &e->model, err));
    enum sl_status status = encode_text(e, err);
    SL_THEN(status, run_trials(e, err));
    SL_THEN(status, report(e, err));
    free(e->tokens);
    sl_eval_model_close(&e->model);
    return status;
}

static enum sl_status evaluate(void *arg, struct sl_error *err) {
    struct eval *e = arg;
    const struct eval_config *c = &e->config;
    if (!c->model) { // before waiting for standard input
        return sl_fail(err, SL_ERR_INVALID, "--model DIR is needed");
    }
    enum sl_status status = make_trials(e, err);
    SL_THEN(status, sl_picture_check(c->png, err));
    SL_THEN(status, sl_eval_text_read(c->text, &e->source, err)); // may wait: before signals
    SL_THEN(status, sl_signals_init(&e->common.signals, err));    // before the model's threads start
    if (status == SL_OK) {
        status = sl_report_check(err);
        SL_THEN(status, evaluate_model(e, err));
        sl_signals_cleanup(&e->common.signals);
    }
    return status;
}

int sl_command_eval_fidelity(int argc, char **argv) {
    struct eval e = {0};
    int code = sl_tool_run(&program, argc, argv, &e, evaluate);
    free(e.source);
    free(e.trials);
    sl_list_cleanup(&e.common.recipes);
    return code;
}
