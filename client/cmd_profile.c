// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice profile`: measure which layers of a model attend densely, and write it beside the model.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/density.h"
#include "client/message_json.h"
#include "client/progress.h"
#include "client/table.h"
#include "client/tool.h"

#define MAX_ROWS  512
#define BAR_WIDTH 40
#define PATH_SIZE 4096

struct profile_config {
    struct sl_tool_config tool;
    const char *model;
    struct sl_option_list texts;
    double threshold;
    int64_t tokens, threads;
    bool dry_run;
};

static const struct sl_option options[] = {
    {"model", 'm', SL_OPTION_STRING, NULL, "DIR", "model folder", offsetof(struct profile_config, model), 0, 0},
    {"text", 't', SL_OPTION_LIST, NULL, "FILE",
     "a prompt; may be given several times, the scores are averaged. Without: the text of this tool's licence",
     offsetof(struct profile_config, texts), 0, 0},
    {"tokens", 'n', SL_OPTION_INT, "2048", "N", "read at most so many tokens of each text",
     offsetof(struct profile_config, tokens), SL_DENSITY_MIN_TOKENS, 1 << 24},
    {"threshold", 0, SL_OPTION_FLOAT, "0.2", "P", "a layer above it is dense",
     offsetof(struct profile_config, threshold), 0, 1},
    {"dry-run", 0, SL_OPTION_FLAG, NULL, NULL, "measure, and write nothing", offsetof(struct profile_config, dry_run),
     0, 0},
    {"threads", 0, SL_OPTION_INT, "0", "N", "0 is one per processor", offsetof(struct profile_config, threads), 0,
     1024},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice profile",
    .usage = "--model DIR [options]",
    .summary = "Measure how dense the attention of each layer is, and write DIR/sluice_profile.json: the layers that\n"
               "recipes call \"dense\" (tailorkv quantizes these, and offloads the others).",
    .epilog = "The score of a layer is the attention of a prompt's last 32 queries outside of each query's top 5% of\n"
              "slots: 0 where few slots have it all. Layer 0 is always dense: no layer before it can predict its "
              "query.\n" SL_EXIT_CODES_HELP,
    .options = options,
    .n_options = sizeof options / sizeof options[0],
};

struct drawing {
    char phase[64];
    int width; // 0: not a terminal
};

static enum sl_status draw(void *arg, int64_t done, int64_t total) {
    struct drawing *d = arg;
    if (d->width > 0) {
        struct sl_progress progress = {.phase = d->phase, .done = done, .total = total};
        sl_progress_draw(&progress, d->width, stderr);
    }
    return SL_OK;
}

static enum sl_status measure(const struct profile_config *config, const struct sl_eval_model *m, double *scores,
                              struct sl_error *err) {
    const struct sl_option_list *texts = &config->texts;
    int n_texts = texts->n ? texts->n : 1;
    double of_text[SL_MAX_LAYERS];
    struct drawing drawing = {.width = sl_terminal_width(STDERR_FILENO)};
    struct sl_density_progress progress = {draw, &drawing};
    enum sl_status status = SL_OK;
    for (int i = 0; i < n_texts && status == SL_OK; i++) {
        int32_t *tokens = NULL;
        int64_t n_tokens = 0;
        const char *path = texts->n ? texts->items[i] : NULL;
        snprintf(drawing.phase, sizeof drawing.phase, "text %d of %d", i + 1, n_texts);
        status = sl_eval_model_read(m, path, &tokens, &n_tokens, err);
        n_tokens = n_tokens < config->tokens ? n_tokens : config->tokens;
        if (status == SL_OK) {
            status = sl_density_measure(m, tokens, n_tokens, &progress, of_text, err);
            if (status != SL_OK && path) {
                char what[PATH_SIZE];
                snprintf(what, sizeof what, "%s", path);
                sl_error_prefix(err, what);
            }
        }
        for (int l = 0; l < m->config->n_layers && status == SL_OK; l++) {
            scores[l] += of_text[l] / n_texts;
        }
        free(tokens);
    }
    if (drawing.width > 0) {
        sl_progress_clear(stderr);
    }
    return status;
}

static void print_table(const double *scores, int n_layers, double threshold, const struct sl_layers *dense) {
    static const struct sl_column columns[] = {{"LAYER", true}, {"DENSE PREFERENCE", true}, {"", false}, {"", false}};
    struct sl_table table;
    sl_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (int l = 0; l < n_layers; l++) {
        int filled = (int)(scores[l] * BAR_WIDTH + 0.5);
        filled = filled > BAR_WIDTH ? BAR_WIDTH : filled;
        sl_table_add(&table, "%d", l);
        sl_table_add(&table, "%.3f", scores[l]);
        sl_table_add(&table, "%.*s", filled, "########################################");
        bool below = l == 0 && scores[l] <= threshold;
        sl_table_add(&table, "%s",
                     below                     ? "dense: nothing predicts its query"
                     : sl_layers_has(dense, l) ? "dense"
                                               : "");
    }
    sl_table_print(&table, stdout);
    sl_table_cleanup(&table);
}

static void print_json(const double *scores, int n_layers, double threshold, const struct sl_layers *dense,
                       const char *path) {
    json_t *preference = json_array(), *layers = json_array();
    for (int l = 0; l < n_layers; l++) {
        json_array_append_new(preference, json_real(scores[l]));
        if (sl_layers_has(dense, l)) {
            json_array_append_new(layers, json_integer(l));
        }
    }
    json_t *object = json_pack("{s:o, s:f, s:o, s:o*}", "dense_preference", preference, "threshold", threshold,
                               "dense_layers", layers, "path", path ? sl_text_json(path) : NULL);
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(object);
}

static enum sl_status profile(const struct profile_config *config, struct sl_error *err) {
    struct sl_eval_model m;
    double scores[SL_MAX_LAYERS] = {0};
    char path[PATH_SIZE] = "";
    struct sl_eval_model_config model = {.dir = config->model,
                                         .threads = (int)config->threads,
                                         .max_rows = MAX_ROWS,
                                         .cache_tokens = config->tokens,
                                         .tokenizer = true};
    enum sl_status status = sl_eval_model_open(&model, &m, err);
    if (status != SL_OK) {
        return status;
    }
    int n_layers = m.config->n_layers;
    struct sl_layers dense;
    status = measure(config, &m, scores, err);
    sl_eval_model_close(&m);
    if (status != SL_OK) {
        return status;
    }
    sl_density_choose(scores, n_layers, config->threshold, &dense);
    if (!config->dry_run) {
        status = sl_density_write(config->model, scores, n_layers, config->threshold, &dense, path, sizeof path, err);
    }
    if (status == SL_OK && config->tool.json) {
        print_json(scores, n_layers, config->threshold, &dense, config->dry_run ? NULL : path);
    } else if (status == SL_OK) {
        print_table(scores, n_layers, config->threshold, &dense);
        if (!config->dry_run) {
            printf("written to %s (threshold %g)\n", path, config->threshold);
        }
    }
    return status;
}

int sl_command_profile(int argc, char **argv) {
    struct profile_config config = {0};
    struct sl_error err = {0};
    int first, code;
    if (!sl_tool_parse(&program, argc, argv, &config, 0, 0, &first, &code)) {
        return code;
    }
    enum sl_status status =
        config.model ? profile(&config, &err) : sl_fail(&err, SL_ERR_INVALID, "--model DIR is needed");
    return status == SL_OK ? SL_EXIT_OK : sl_tool_complain("profile", &err);
}
