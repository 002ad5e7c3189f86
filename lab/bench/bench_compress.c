// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures what each recipe adds to (or saves from) the time of reading a prompt, compared with the full
 *          cache.
 *
 * Design: uses the workers' own reader on one engine. Every round reads the prompt once under each recipe, the full
 *         cache first, so that load changes on the machine affect all of them. Times are medians, and a ratio is the
 *         median of the rounds' own ratios. A warm-up round is not counted. Eviction costs work, but later chunks
 *         need not attend to evicted slots: ratios below 100% are plausible. Token ids are random: the computation
 *         hardly depends on them.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/cli/message_json.h"
#include "engine/job/job_recipe.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/recipe_cell.h"
#include "lab/bench/rig/cluster_job.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/eval_model.h"
#include "lab/result.h"
#include "base/options/config.h"

#define MAX_RUNS  31
#define MAX_CASES 128

struct options {
    const char *model, *device;
    struct sl_option_list recipes;
    int64_t n_tokens, runs, threads;
    bool json, synthetic;
};

static const struct sl_option option_table[] = {
    SL_MODEL_OPTION(options, model, "demo"),
    {"synthetic", 0, SL_OPTION_FLAG, "no", NULL, "a random model of 135 M parameters instead",
     SL_FIELD(options, synthetic)},
    {"recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",
     "may be given several times. Without: every preset, those that evict at budgets 0.2, 0.5 and 1024",
     SL_FIELD(options, recipes)},
    {"tokens", 0, SL_OPTION_INT, "8000", "N", "length of the prompt", SL_FIELD(options, n_tokens), 1, 1 << 24},
    {"runs", 0, SL_OPTION_INT, "3", "N", "rounds", SL_FIELD(options, runs), 1, MAX_RUNS},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    SL_DEVICE_OPTION(options, device),
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct one {
    char text[SL_RECIPE_TEXT_BYTES];
    char reason[384]; // reason for skipping it; "" if it was measured
    struct sl_plan *plan;
    double ms[MAX_RUNS];
};

struct bench {
    struct options options;
    struct sl_eval_model model;
    int32_t *tokens; // [n_tokens]
    struct one *cases;
    size_t n_cases;
    struct sl_signals signals;
};

static enum sl_status add_case(struct bench *b, const char *text, const char *budget, struct sl_error *err) {
    SL_FAIL_IF(b->n_cases == MAX_CASES, err, SL_ERR_INVALID, "more than %d recipes", MAX_CASES);
    struct one *one = &b->cases[b->n_cases++];
    snprintf(one->text, sizeof one->text, budget ? "%s,budget=%s" : "%s", text, budget);
    return SL_OK;
}

static enum sl_status add_cases(struct bench *b, struct sl_error *err) {
    static const char *const budgets[] = {"0.2", "0.5", "1024"};
    enum sl_status status = add_case(b, "full", NULL, err); // the reference
    const struct sl_option_list *recipes = &b->options.recipes;
    for (int i = 0; i < recipes->n && status == SL_OK; i++) {
        status = add_case(b, recipes->items[i], NULL, err);
    }
    const struct sl_preset *preset = recipes->n ? NULL : sl_recipe_presets();
    for (; preset && preset->name && status == SL_OK; preset++) {
        struct sl_recipe recipe; // random weights have no tokenizer: no instruction to repeat the prompt with
        bool evicts = sl_recipe_parse(preset->name, &recipe, NULL) == SL_OK && sl_recipe_evicts(&recipe);
        bool can = evicts && (!b->options.synthetic || !sl_recipe_repeats(&recipe));
        for (size_t i = 0; can && i < sizeof budgets / sizeof budgets[0] && status == SL_OK; i++) {
            status = add_case(b, preset->name, budgets[i], err);
        }
        if (!evicts && strcmp(preset->name, "full") != 0) {
            status = add_case(b, preset->name, NULL, err);
        }
    }
    return recipes->n || status != SL_OK ? status : add_case(b, "full,format=int4", NULL, err);
}

// Plans the cases. Named recipes must be valid; a preset that does not fit is reported with the reason.
static enum sl_status plan_cases(struct bench *b, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(b->model.runtime.config);
    for (size_t i = 0; i < b->n_cases; i++) {
        struct one *one = &b->cases[i];
        struct sl_recipe recipe;
        struct sl_error why = {0};
        one->plan = malloc(sizeof *one->plan);
        SL_FAIL_IF(one->plan == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
        enum sl_status status = sl_job_recipe(one->text, b->model.runtime.config, &recipe, &why);
        if (status == SL_OK) {
            int rope_set = sl_model_rope_set(b->model.runtime.config, b->options.n_tokens);
            status = sl_plan_make_local(&recipe, &geometry, b->options.n_tokens, rope_set, one->plan, &why);
        }
        SL_FAIL_IF(status != SL_OK && b->options.recipes.n > 0, err, status, "%.100s: %s", one->text, why.text);
        if (status != SL_OK) {
            snprintf(one->reason, sizeof one->reason, "%s", why.text);
        }
    }
    return SL_OK;
}

static enum sl_status read_prompt(struct bench *b, const struct sl_plan *plan, double *ms_out, struct sl_error *err) {
    const struct sl_eval_model *m = &b->model;
    struct sl_reader_config config = {.plan = plan, .runtime = &m->runtime, .arena = m->arena, .tokens = b->tokens};
    struct sl_reader *reader;
    int64_t began_ns = sl_now_ns();
    enum sl_status status = sl_recipe_cell_read(&config, &b->signals, &reader, err);
    *ms_out = (double)(sl_now_ns() - began_ns) / SL_NS_PER_MS;
    sl_reader_destroy(&reader);
    return status;
}

// Returns the row of a case without its value; `test_out` holds its name.
static struct sl_bench_result row_of(const struct bench *b, size_t i, char test_out[SL_RECIPE_TEXT_BYTES + 64]) {
    snprintf(test_out, SL_RECIPE_TEXT_BYTES + 64, "prefill %" PRId64 " tokens, %s", b->options.n_tokens,
             b->cases[i].text);
    return (struct sl_bench_result){
        .bench = "compress", .test = test_out, .unit = "ms", .reference = i > 0 ? "full" : NULL};
}

// Counts the rounds that were completed.
static enum sl_status measure(struct bench *b, int64_t *n_rounds_out, struct sl_error *err) {
    char test[SL_RECIPE_TEXT_BYTES + 64];
    enum sl_status status = SL_OK;
    *n_rounds_out = 0;
    for (int64_t run = -1; run < b->options.runs && status == SL_OK; run++) { // run -1 warms up
        for (size_t i = 0; i < b->n_cases && status == SL_OK; i++) {
            struct one *one = &b->cases[i];
            if (one->reason[0] != '\0') {
                continue;
            }
            sl_bench_progress("round %" PRId64 " of %" PRId64 ": %s", run + 1, b->options.runs, one->text);
            status = read_prompt(b, one->plan, &one->ms[run < 0 ? 0 : run], err);
            if (status == SL_OK && run >= 0) {
                sl_bench_print_run(row_of(b, i, test), run + 1, one->ms[run], b->options.json);
            }
        }
        *n_rounds_out += status == SL_OK && run >= 0;
    }
    return status;
}

static void print_skipped(const struct one *one, bool json) {
    if (!json) {
        printf("%-44s skipped: %s\n", one->text, one->reason);
        return;
    }
    json_t *line = json_pack("{s:s, s:s, s:s}", "bench", "compress", "case", one->text, "skipped", one->reason);
    sl_json_print(line, 0, stdout);
}

static void print(struct bench *b, int64_t n_rounds) {
    const struct one *full = &b->cases[0];
    for (size_t i = 0; i < b->n_cases; i++) {
        struct one *one = &b->cases[i];
        if (one->reason[0]) {
            print_skipped(one, b->options.json);
            continue;
        }
        char test[SL_RECIPE_TEXT_BYTES + 64];
        sl_bench_print_turns(row_of(b, i, test), one->ms, full->ms, (size_t)n_rounds, b->options.json);
    }
}

static enum sl_status open_model(struct bench *b, const char *dir, struct sl_error *err) {
    int max_rows = SL_PAGE_SLOTS;
    for (size_t i = 0; i < b->n_cases; i++) {
        struct sl_recipe recipe;
        bool good = sl_recipe_parse(b->cases[i].text, &recipe, NULL) == SL_OK;
        max_rows = good && recipe.chunk_tokens > max_rows ? recipe.chunk_tokens : max_rows;
    }
    struct sl_eval_model_config config = {.dir = dir,
                                          .device = b->options.device,
                                          .threads = (int)b->options.threads,
                                          .max_rows = max_rows,
                                          .cache_tokens = 2 * b->options.n_tokens + max_rows,
                                          .tokenizer = !b->options.synthetic};
    SL_TRY(sl_eval_model_open(&config, &b->model, err));
    SL_FAIL_IF(b->options.n_tokens > b->model.runtime.config->max_positions, err, SL_ERR_INVALID,
               "--tokens %" PRId64 ": the model has %" PRId64 " positions", b->options.n_tokens,
               b->model.runtime.config->max_positions);
    uint64_t random = 1;
    return sl_rig_random_tokens(&random, b->model.runtime.config->n_vocab, b->options.n_tokens, &b->tokens, err);
}

static enum sl_status run_model(struct bench *b, const char *dir, struct sl_error *err) {
    enum sl_status status = open_model(b, dir, err);
    SL_THEN(status, plan_cases(b, err));
    int64_t n_rounds = 0;
    SL_THEN(status, measure(b, &n_rounds, err));
    if (n_rounds > 0) { // not all, when it was stopped
        print(b, n_rounds);
    }
    for (size_t i = 0; i < b->n_cases; i++) {
        free(b->cases[i].plan);
    }
    free(b->tokens);
    sl_eval_model_close(&b->model);
    return status;
}

static enum sl_status run_synthetic(struct bench *b, struct sl_error *err) {
    char dir[SL_SYNTHETIC_PATH_BYTES];
    sl_bench_progress("writing a random model");
    SL_TRY(sl_synthetic_create(&sl_synthetic_find("135m")->config, SL_SYNTHETIC_WRITTEN, &b->signals, dir, err));
    enum sl_status status = run_model(b, dir, err);
    sl_synthetic_remove(dir);
    return status;
}

static enum sl_status check(void *bench, struct sl_error *err) {
    const struct bench *b = bench;
    enum sl_status status = SL_OK;
    struct sl_recipe recipe;
    for (int i = 0; i < b->options.recipes.n && status == SL_OK; i++) {
        status = sl_recipe_parse(b->options.recipes.items[i], &recipe, err);
    }
    return status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    b->cases = calloc(MAX_CASES, sizeof *b->cases);
    enum sl_status status = b->cases ? add_cases(b, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    SL_THEN(status, b->options.synthetic ? run_synthetic(b, err) : run_model(b, b->options.model, err));
    free(b->cases);
    return status;
}

SL_BENCH(compress, "[options]", "Measure the prefill time of each recipe beside the full cache's.", .check = check);
