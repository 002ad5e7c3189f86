// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice eval perplexity`: streams texts through a bounded cache, recipe by recipe, and has a table, JSON
 *          lines, a plot.
 *
 * Design: lab/measure/perplexity.h measures; this file handles texts, blocks and differences. A text counts in whole
 *         blocks of BLOCK tokens, all of one size. So the mean over blocks, which is resampled for the interval, is
 *         the mean over tokens. Blocks are resampled and not tokens, because the likelihoods of adjacent tokens are
 *         correlated.
 */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "lab/measure/measure.h"
#include "lab/measure/perplexity.h"
#include "lab/measure/trials.h"
#include "lab/picture.h"

#define BLOCK     256
#define MAX_CHUNK 512

struct perplexity_config {
    struct sl_tool_config tool;
    struct sl_option_list recipes, texts;
    const char *model, *weights, *device, *budget, *png;
    int64_t tokens, chunk, threads;
};

static const struct sl_option options[] = {
    SL_MODEL_OPTION(perplexity_config, model, NULL),
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT",
     "format of the model's weights in memory: stored, int8 or int4", SL_FIELD(perplexity_config, weights)},
    {"recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",
     "a recipe; may be given several times, or as a list joined by ';'. Default: every preset",
     SL_FIELD(perplexity_config, recipes)},
    {"budget", 'b', SL_OPTION_STRING, NULL, "B",
     "budget of every recipe that evicts and names none: slots, or a ratio of the tokens predicted. Default: 0.2 for "
     "presets that were not named",
     SL_FIELD(perplexity_config, budget)},
    {"text", 0, SL_OPTION_LIST, NULL, "FILE",
     "text to read; may be given several times; -: standard input. Default: the text of this tool's license",
     SL_FIELD(perplexity_config, texts)},
    {"tokens", 0, SL_OPTION_INT, "4096", "N", "most tokens of each text that are predicted, in whole blocks of 256",
     SL_FIELD(perplexity_config, tokens), BLOCK, 1 << 24},
    {"chunk", 0, SL_OPTION_INT, "32", "N", "tokens that are read at once; a recipe evicts after each chunk",
     SL_FIELD(perplexity_config, chunk), 1, MAX_CHUNK},
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw the results (needs matplotlib)", SL_FIELD(perplexity_config, png)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one for each processor", SL_FIELD(perplexity_config, threads),
     0, 1024},
    SL_DEVICE_OPTION(perplexity_config, device),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice eval perplexity",
    .usage = "--model DIR [options]",
    .summary = "Let texts stream through the cache of each recipe and measure how well their tokens are predicted.",
    .epilog =
        "Every token is predicted from what the recipe has kept of the chunks before it and from the tokens of its\n"
        "own chunk: from at most budget + chunk slots (StreamingLLM's measure is --chunk 1).\n"
        "slots       per layer and KV head when the text has been read; most: of any head, the chunk included\n"
        "perplexity  exp of the mean negative log likelihood\n"
        "above full  what that mean is above the full cache's, in nats a token, with the 95% interval of a paired\n"
        "            bootstrap over blocks of 256 tokens\n"
        "Recipes that do not stream, or that this model cannot run, are listed with the reason.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

struct text {
    const char *path;
    char *source;    // NULL: the license
    int32_t *tokens; // [n + 1]
    int64_t n;       // predicted tokens: a multiple of BLOCK
};

// One recipe and its results.
struct trial {
    struct sl_trial run;
    double *blocks; // [n_blocks] mean negative log likelihood; text after text
    double slots;   // mean over texts
    int64_t most_slots;
    bool evicts; // whether the recipe evicts
};

struct eval {
    struct perplexity_config config;
    struct sl_eval_model model;
    struct sl_trials common;
    struct trial *trials; // [common.n]; the first is the full cache
    struct text texts[SL_MAX_OPTION_LIST];
    int n_texts;
    int64_t n_tokens, n_blocks, most_blocks; // of all texts; of the longest
    double *nll;                             // [of the longest text]
    int64_t done;                            // tokens of the texts before the one that is being read
};

// --- what to run -----------------------------------------------------------------------------------------------------

static enum sl_status make_trials(struct eval *e, struct sl_error *err) {
    SL_TRY(sl_eval_recipes(&e->config.recipes, e->config.budget, &e->common.recipes, err));
    e->trials = calloc(e->common.recipes.n + 1, sizeof *e->trials);
    SL_FAIL_IF(e->trials == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    e->trials[e->common.n++].run.text = "full";
    for (size_t i = 0; i < e->common.recipes.n; i++) {
        if (strcmp(e->common.recipes.items[i], "full") != 0) {
            e->trials[e->common.n++].run.text = e->common.recipes.items[i];
        }
    }
    return SL_OK;
}

static enum sl_status read_texts(struct eval *e, struct sl_error *err) {
    const struct sl_option_list *paths = &e->config.texts;
    enum sl_status status = SL_OK;
    do {
        struct text *text = &e->texts[e->n_texts];
        text->path = paths->n ? paths->items[e->n_texts] : NULL;
        status = sl_eval_text_read(text->path, &text->source, err);
        e->n_texts += status == SL_OK;
    } while (status == SL_OK && e->n_texts < paths->n);
    return status;
}

static enum sl_status encode_text(struct eval *e, struct text *text, struct sl_error *err) {
    int64_t n_tokens, positions = e->model.runtime.config->max_positions;
    SL_TRY(sl_eval_model_encode(&e->model, text->source, &text->tokens, &n_tokens, err));
    int64_t most = n_tokens - 1 < positions ? n_tokens - 1 : positions;
    text->n = (e->config.tokens < most ? e->config.tokens : most) / BLOCK * BLOCK;
    SL_FAIL_IF(text->n == 0, err, SL_ERR_INVALID,
               "%s: a text of %lld tokens and a model of %lld positions; a block of %d and one token before it "
               "are needed",
               text->path ? text->path : "LICENSE", (long long)n_tokens, (long long)positions, BLOCK);
    e->n_tokens += text->n;
    e->n_blocks += text->n / BLOCK;
    e->most_blocks = text->n / BLOCK > e->most_blocks ? text->n / BLOCK : e->most_blocks;
    return SL_OK;
}

static enum sl_status encode_texts(struct eval *e, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; i < e->n_texts && status == SL_OK; i++) {
        status = encode_text(e, &e->texts[i], err);
    }
    if (status == SL_OK) {
        e->nll = calloc((size_t)e->most_blocks * BLOCK, sizeof *e->nll);
        status = e->nll ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    for (size_t i = 0; i < e->common.n && status == SL_OK; i++) {
        e->trials[i].blocks = calloc((size_t)e->n_blocks, sizeof *e->trials[i].blocks);
        status = e->trials[i].blocks ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    return status;
}

// --- running ---------------------------------------------------------------------------------------------------------

static enum sl_status draw_progress(void *arg, int64_t done, int64_t total) {
    (void)total; // of this text
    struct eval *e = arg;
    return sl_trials_draw(&e->common, e->done + done, e->n_tokens);
}

static enum sl_status measure_texts(struct eval *e, struct trial *trial, const struct sl_recipe *recipe,
                                    struct sl_error *err) {
    double *block = trial->blocks;
    enum sl_status status = SL_OK;
    e->done = 0;
    for (int i = 0; i < e->n_texts && status == SL_OK; i++) {
        const struct text *text = &e->texts[i];
        struct sl_perplexity_result result;
        struct sl_perplexity_config config = {.model = &e->model,
                                              .tokens = text->tokens,
                                              .n_tokens = text->n,
                                              .chunk = (int)e->config.chunk,
                                              .progress_fn = draw_progress,
                                              .arg = e};
        status = sl_perplexity_measure(&config, recipe, e->nll, &result, err);
        if (status != SL_OK) {
            break;
        }
        for (int64_t t = 0; t < text->n; t++) {
            block[t / BLOCK] += e->nll[t] / BLOCK;
        }
        block += text->n / BLOCK;
        trial->slots += result.slots / e->n_texts;
        trial->most_slots = result.most_slots > trial->most_slots ? result.most_slots : trial->most_slots;
        e->done += text->n;
    }
    return status;
}

// Runs a trial. A recipe that does not stream or does not fit the model gets a reason; other failures end the
// evaluation.
static enum sl_status run_trial(struct eval *e, struct trial *trial, struct sl_error *err) {
    struct sl_recipe recipe;
    struct sl_error why = {0};
    enum sl_status status = sl_trial_begin(&e->common, &trial->run, e->model.runtime.config, &recipe, &why);
    if (status == SL_OK) {
        trial->evicts = sl_recipe_evicts(&recipe);
        status = measure_texts(e, trial, &recipe, &why);
    }
    return sl_trial_end(&e->common, &trial->run, status, &why, err);
}

static enum sl_status run_trials(struct eval *e, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < e->common.n && status == SL_OK; i++) {
        struct trial *trial = &e->trials[i];
        snprintf(e->common.phase, sizeof e->common.phase, "%zu/%zu %.40s", i + 1, e->common.n, trial->run.text);
        status = run_trial(e, trial, err);
    }
    sl_progress_hide();
    return status;
}

// --- results ---------------------------------------------------------------------------------------------------------

static json_t *trial_json(const struct eval *e, const struct trial *trial) {
    json_t *recipe = sl_text_json(trial->run.text);
    if (trial->run.reason[0]) {
        return json_pack("{s:o, s:o}", "recipe", recipe, "skipped", sl_text_json(trial->run.reason));
    }
    return json_pack("{s:o, s:o, s:I, s:b, s:o}", "recipe", recipe, "slots", sl_report_number(trial->slots),
                     "most_slots", (json_int_t)trial->most_slots, "evicts", trial->evicts, "blocks",
                     sl_picture_numbers(trial->blocks, (size_t)e->n_blocks));
}

static enum sl_status report(const struct eval *e, struct sl_error *err) {
    json_t *trials = json_array(), *n_blocks = json_array();
    const size_t n_run = e->common.n_measured;
    const bool is_run = n_run > 1 || (n_run == 1 && e->common.n == 1);
    for (size_t i = 0; i < e->common.n; i++) {
        json_array_append_new(trials, trial_json(e, &e->trials[i]));
    }
    for (int i = 0; i < e->n_texts; i++) {
        json_array_append_new(n_blocks, json_integer(e->texts[i].n / BLOCK));
    }
    json_t *data =
        json_pack("{s:b, s:I, s:I, s:i, s:o, s:o}", "json", e->config.tool.json, "n_tokens", (json_int_t)e->n_tokens,
                  "chunk", (json_int_t)e->config.chunk, "block", BLOCK, "n_blocks", n_blocks, "trials", trials);
    SL_TRY(sl_report_print("perplexity", is_run && !e->common.stopped ? e->config.png : NULL, data, err));
    SL_TRY(sl_trials_check(&e->common, err));
    return is_run ? SL_OK : sl_fail(err, SL_ERR_PRECONDITION, "none of the recipes can be streamed");
}

// Evaluates with an open model.
static enum sl_status evaluate_model(struct eval *e, struct sl_error *err) {
    const struct perplexity_config *c = &e->config;
    struct sl_eval_model_config model = {.dir = c->model,
                                         .weights = c->weights,
                                         .device = c->device,
                                         .threads = (int)c->threads,
                                         .max_rows = (int)c->chunk,
                                         .cache_tokens = c->tokens + MAX_CHUNK,
                                         .tokenizer = true,
                                         .signals = &e->common.signals};
    SL_TRY(sl_eval_model_open(&model, &e->model, err));
    enum sl_status status = encode_texts(e, err);
    SL_THEN(status, run_trials(e, err));
    SL_THEN(status, report(e, err));
    sl_eval_model_close(&e->model);
    return status;
}

static enum sl_status evaluate(void *arg, struct sl_error *err) {
    struct eval *e = arg;
    if (!e->config.model) { // before waiting for standard input
        return sl_fail(err, SL_ERR_INVALID, "--model DIR is needed");
    }
    enum sl_status status = make_trials(e, err);
    SL_THEN(status, sl_picture_check(e->config.png, err));
    SL_THEN(status, read_texts(e, err));                       // may wait: before signals are blocked
    SL_THEN(status, sl_signals_init(&e->common.signals, err)); // before the model's threads start
    if (status == SL_OK) {
        status = sl_report_check(err);
        SL_THEN(status, evaluate_model(e, err));
        sl_signals_cleanup(&e->common.signals);
    }
    return status;
}

int sl_command_eval_perplexity(int argc, char **argv) {
    struct eval e = {0};
    int code = sl_tool_run(&program, argc, argv, &e, evaluate);
    for (size_t i = 0; i < e.common.n; i++) {
        free(e.trials[i].blocks);
    }
    for (int i = 0; i < e.n_texts; i++) {
        free(e.texts[i].source);
        free(e.texts[i].tokens);
    }
    free(e.trials);
    free(e.nll);
    sl_list_cleanup(&e.common.recipes);
    return code;
}
