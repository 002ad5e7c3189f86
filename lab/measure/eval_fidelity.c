// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval fidelity`: compares recipes with the full cache, as a table, as JSON lines, as a plot.

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "lab/measure/fidelity.h"
#include "lab/measure/measure.h"
#include "lab/measure/trials.h"
#include "lab/picture.h"
#include "lab/result.h"

#define DEFAULT_TOKENS 2048 // if the text has as many

struct eval_config {
    struct sl_tool_config tool;
    struct sl_option_list recipes;
    const char *model, *weights, *device, *budget, *text, *png;
    int64_t tokens, continuation, threads;
};

static const struct sl_option options[] = {
    SL_MODEL_OPTION(eval_config, model, NULL),
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "of the model's weights in memory: stored, int8 or int4",
     SL_FIELD(eval_config, weights)},
    {"recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",
     "may be given several times, or as a list joined by ';'. Without: every preset", SL_FIELD(eval_config, recipes)},
    {"budget", 'b', SL_OPTION_STRING, NULL, "B",
     "of every recipe that evicts and names none: slots, or a ratio of the prompt. Without: 0.2 for presets that were "
     "not "
     "named",
     SL_FIELD(eval_config, budget)},
    {"text", 0, SL_OPTION_STRING, NULL, "FILE", "what is read; - is standard input. Without: this tool's licence",
     SL_FIELD(eval_config, text)},
    {"tokens", 0, SL_OPTION_INT, "0", "N", "of the prompt; 0: what the text has, up to 2048",
     SL_FIELD(eval_config, tokens), 0, 1 << 24},
    {"continuation", 0, SL_OPTION_INT, "128", "N", "tokens behind the prompt, over which everything is measured",
     SL_FIELD(eval_config, continuation), 1, 1 << 16},
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw the results (needs matplotlib)", SL_FIELD(eval_config, png)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "0 is one per processor", SL_FIELD(eval_config, threads), 0, 1024},
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

static void print_summary(const struct eval *e) {
    static const struct sl_column columns[] = {
        {"RECIPE", false}, {"SLOTS", true},  {"BYTES/TOKEN", true}, {"OF F16", true},     {"ERROR", true},
        {"OVERLAP", true}, {"RECALL", true}, {"NLL", true},         {"ABOVE FULL", true}, {"", false}};
    struct sl_table table = SL_TABLE(columns);
    for (size_t i = 0; i < e->common.n; i++) {
        const struct trial *trial = &e->trials[i];
        const struct sl_fidelity_result *r = &trial->result;
        if (trial->run.reason[0]) {
            continue;
        }
        sl_table_add(&table, "%s\t%.1f\t%.1f\t%.1f%%\t%.4f\t%.3f", trial->run.text, r->slots, r->bytes_per_token,
                     100 * r->share, r->error_mean, r->overlap_mean);
        if (r->recall_mean < 0) {
            sl_table_add(&table, "-");
        } else {
            sl_table_add(&table, "%.3f", r->recall_mean);
        }
        sl_table_add(&table, "%.4f\t%+.4f\t%s", r->nll, r->nll - e->full_nll,
                     evicted_nothing(e, trial) ? "nothing was evicted" : "");
    }
    sl_table_finish(&table, stdout);
}

static void print_layers(const struct eval *e) {
    int n_layers = e->model.runtime.config->n_layers;
    static char titles[SL_MAX_LAYERS][16];
    static struct sl_column columns[SL_MAX_LAYERS + 1];
    columns[0] = (struct sl_column){"ERROR BY LAYER", false};
    for (int l = 0; l < n_layers; l++) {
        snprintf(titles[l], sizeof titles[l], "%d", l);
        columns[l + 1] = (struct sl_column){titles[l], true};
    }
    struct sl_table table;
    sl_table_init(&table, columns, (size_t)n_layers + 1);
    for (size_t i = 0; i < e->common.n; i++) {
        if (e->trials[i].run.reason[0] == '\0') {
            sl_table_add(&table, "%s", e->trials[i].run.text);
            for (int l = 0; l < n_layers; l++) {
                sl_table_add(&table, "%.3f", e->trials[i].result.error[l]);
            }
        }
    }
    sl_table_finish(&table, stdout);
}

static void print_value(const char *recipe, const char *what, double value, const char *unit, const char *reference,
                        double reference_value) {
    char name[SL_RECIPE_TEXT_BYTES + 64];
    snprintf(name, sizeof name, "%s: %s", recipe, what);
    sl_bench_print(&(struct sl_bench_result){.bench = "fidelity",
                                             .test = name,
                                             .value = value,
                                             .unit = unit,
                                             .reference = reference,
                                             .reference_value = reference_value},
                   true);
}

static void print_json(const struct eval *e) {
    for (size_t i = 0; i < e->common.n; i++) {
        const struct trial *trial = &e->trials[i];
        const struct sl_fidelity_result *r = &trial->result;
        if (trial->run.reason[0]) {
            json_t *line = json_pack("{s:s, s:s, s:s}", "bench", "fidelity", "case", trial->run.text, "skipped",
                                     trial->run.reason);
            sl_json_print(line, 0, stdout);
            continue;
        }
        print_value(trial->run.text, "cache", r->bytes_per_token, "bytes/token", "f16", r->bytes_per_token / r->share);
        print_value(trial->run.text, "slots", r->slots, "slots/head", "prompt", (double)e->n_read);
        print_value(trial->run.text, "evicted", evicted_nothing(e, trial) ? 0 : (double)e->n_read - r->slots,
                    "slots/head", NULL, 0);
        print_value(trial->run.text, "attention error", r->error_mean, "relative", NULL, 0);
        print_value(trial->run.text, "overlap", r->overlap_mean, "jaccard", NULL, 0);
        if (r->recall_mean >= 0) {
            print_value(trial->run.text, "recall", r->recall_mean, "share", NULL, 0);
        }
        print_value(trial->run.text, "nll", r->nll, "nats/token", "full cache", e->full_nll);
        print_value(trial->run.text, "nll above full", r->nll - e->full_nll, "nats/token", NULL, 0);
        for (int l = 0; l < e->model.runtime.config->n_layers; l++) {
            char what[64];
            snprintf(what, sizeof what, "attention error, layer %d", l);
            print_value(trial->run.text, what, r->error[l], "relative", NULL, 0);
            snprintf(what, sizeof what, "overlap, layer %d", l);
            print_value(trial->run.text, what, r->overlap[l], "jaccard", NULL, 0);
            if (r->recall[l] >= 0) {
                snprintf(what, sizeof what, "recall, layer %d", l);
                print_value(trial->run.text, what, r->recall[l], "share", NULL, 0);
            }
        }
    }
}

static enum sl_status draw(const struct eval *e, struct sl_error *err) {
    json_t *recipes = json_array(), *shares = json_array(), *errors = json_array(), *above = json_array();
    for (size_t i = 0; i < e->common.n; i++) {
        const struct trial *trial = &e->trials[i];
        if (trial->run.reason[0] == '\0') {
            json_array_append_new(recipes, sl_text_json(trial->run.text));
            json_array_append_new(shares, json_real(trial->result.share));
            json_array_append_new(errors,
                                  sl_picture_numbers(trial->result.error, (size_t)e->model.runtime.config->n_layers));
            json_array_append_new(above, json_real(trial->result.nll - e->full_nll));
        }
    }
    return sl_picture_draw(
        "fidelity", e->config.png,
        json_pack("{s:o, s:o, s:o, s:o}", "recipes", recipes, "shares", shares, "errors", errors, "above", above), err);
}

static enum sl_status report(const struct eval *e, struct sl_error *err) {
    if (e->config.tool.json) {
        print_json(e);
    } else {
        printf("%s: a prompt of %lld tokens and the %lld behind it; full cache: nll %.4f\n\n",
               e->config.text ? e->config.text : "LICENSE", (long long)e->n_read, (long long)e->config.continuation,
               e->full_nll);
        if (e->common.n_measured > 0) {
            print_summary(e);
            putchar('\n');
            print_layers(e);
            putchar('\n');
        }
        for (size_t i = 0; i < e->common.n; i++) {
            sl_trial_print_skipped(&e->trials[i].run);
        }
    }
    SL_TRY(sl_trials_check(&e->common, err));
    SL_FAIL_IF(e->common.n_measured == 0, err, SL_ERR_PRECONDITION, "none of the recipes can be run");
    return e->config.png ? draw(e, err) : SL_OK;
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
                                         .tokenizer = true};
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
        status = evaluate_model(e, err);
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
