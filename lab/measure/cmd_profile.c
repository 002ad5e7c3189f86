// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice profile`: measures how each layer's attention is distributed over its slots, and which layers are
// dense; writes that to a file if requested.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/whole_file.h"
#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"
#include "lab/measure/measure.h"
#include "lab/measure/profile_file.h"
#include "lab/picture.h"

#define MAX_ROWS  512
#define BAR_WIDTH 20
#define PATH_SIZE 4096

struct profile_config {
    struct sl_tool_config tool;
    const char *model, *weights, *device, *png, *out;
    struct sl_option_list texts;
    double threshold;
    int64_t tokens, threads;
    bool write;
};

static const struct sl_option options[] = {
    SL_MODEL_OPTION(profile_config, model, NULL),
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT",
     "format of the model's weights in memory: stored, int8 or int4", SL_FIELD(profile_config, weights)},
    {"text", 0, SL_OPTION_LIST, NULL, "FILE",
     "a prompt; may be given several times, and the scores are averaged. Default: the text of this tool's license",
     SL_FIELD(profile_config, texts)},
    {"tokens", 0, SL_OPTION_INT, "2048", "N", "most tokens of each text that are read",
     SL_FIELD(profile_config, tokens), SL_ATTENTION_MIN_TOKENS, 1 << 24},
    {"threshold", 0, SL_OPTION_FLOAT, "0.2", "P", "score above which a layer is dense",
     SL_FIELD(profile_config, threshold), 0, 1},
    {"out", 'o', SL_OPTION_STRING, NULL, "FILE", "write the profile there", SL_FIELD(profile_config, out)},
    {"write", 0, SL_OPTION_FLAG, NULL, NULL,
     "write it into the model's folder, as sluice_profile.json: what recipes call \"dense\" changes, and with it the "
     "model's fingerprint",
     SL_FIELD(profile_config, write)},
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw the measurements (needs matplotlib)",
     SL_FIELD(profile_config, png)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one for each processor", SL_FIELD(profile_config, threads), 0,
     1024},
    SL_DEVICE_OPTION(profile_config, device),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice profile",
    .usage = "--model DIR [options]",
    .summary =
        "Measure how dense the attention of each layer is. With --write the layers above the threshold are those\n"
        "that recipes call \"dense\" (tailorkv quantizes these, and offloads the others).",
    .epilog = "Means over the last 32 queries of each prompt, over query heads and over prompts:\n"
              "dense preference  attention outside of each query's top 5% of slots: 0 where few slots have it all\n"
              "first, last       share of the attention on the first 1, 4, 64 slots (sinks) and on the newest 64\n"
              "slots 90, 95, 99  the smallest share of the slots that holds this percentage of the attention\n"
              "effective         exp of the entropy: the number of slots that have it if all are attended equally\n"
              "Layer 0 is always dense: no layer before it can predict its query. --json has every KV "
              "head.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

static enum sl_status draw(void *phase, int64_t done, int64_t total) {
    sl_progress_show(phase, done, total);
    return SL_OK;
}

static enum sl_status measure(const struct profile_config *config, const struct sl_eval_model *m,
                              struct sl_attention_profile *profile, struct sl_error *err) {
    const struct sl_option_list *texts = &config->texts;
    int n_texts = texts->n ? texts->n : 1;
    char phase[64];
    struct sl_attention_progress progress = {draw, phase};
    enum sl_status status = SL_OK;
    for (int i = 0; i < n_texts && status == SL_OK; i++) {
        int32_t *tokens = NULL;
        int64_t n_tokens = 0;
        const char *path = texts->n ? texts->items[i] : NULL;
        snprintf(phase, sizeof phase, "text %d of %d", i + 1, n_texts);
        status = sl_eval_model_read(m, path, &tokens, &n_tokens, err);
        n_tokens = n_tokens < config->tokens ? n_tokens : config->tokens;
        if (status == SL_OK) {
            status = sl_attention_profile_add(profile, m, tokens, n_tokens, &progress, err);
            if (status != SL_OK && path) {
                char what[PATH_SIZE];
                snprintf(what, sizeof what, "%s", path);
                sl_error_prefix(err, what);
            }
        }
        free(tokens);
    }
    sl_progress_hide();
    return status;
}

// --- the table -------------------------------------------------------------------------------------------------------

static void print_table(const struct sl_attention_profile *p, double threshold, const struct sl_layers *dense) {
    static const struct sl_column columns[] = {{"LAYER", true},   {"DENSE PREFERENCE", true}, {"", false},
                                               {"FIRST 1", true}, {"FIRST 4", true},          {"FIRST 64", true},
                                               {"LAST 64", true}, {"SLOTS 90%", true},        {"95%", true},
                                               {"99%", true},     {"EFFECTIVE", true},        {"", false}};
    struct sl_table table = SL_TABLE(columns);
    for (int l = 0; l < p->n_layers; l++) {
        double score = sl_attention_of_layer(p, l, SL_ATTENTION_DENSE);
        sl_table_add(&table, "%d\t%.3f\t%.*s", l, score, (int)(score * BAR_WIDTH + 0.5), "####################");
        for (int s = SL_ATTENTION_FIRST_1; s <= SL_ATTENTION_SLOTS_99; s++) {
            sl_table_add(&table, "%.1f%%", 100 * sl_attention_of_layer(p, l, s));
        }
        sl_table_add(&table, "%.1f", sl_attention_of_layer(p, l, SL_ATTENTION_EFFECTIVE));
        bool below = l == 0 && score <= threshold;
        sl_table_add(&table, "%s",
                     below                     ? "dense: nothing predicts its query"
                     : sl_layers_has(dense, l) ? "dense"
                                               : "");
    }
    sl_table_finish(&table, stdout);
}

// --- the command -----------------------------------------------------------------------------------------------------

// Finds the path of the profile; "" if none is to be written. Detects an unwritable output before the work.
static enum sl_status find_path(const struct profile_config *config, char path_out[PATH_SIZE], struct sl_error *err) {
    SL_FAIL_IF(config->write && config->out, err, SL_ERR_INVALID, "--write and --out exclude each other");
    SL_FAIL_IF(config->out && (size_t)snprintf(path_out, PATH_SIZE, "%s", config->out) >= PATH_SIZE, err,
               SL_ERR_INVALID, "--out %.200s...: the path is too long", config->out);
    if (config->out && !config->out[0]) { // report() takes "" as "no profile requested"
        return sl_fail(err, SL_ERR_INVALID, "--out: the path is empty");
    }
    if (!config->out && !config->write) {
        path_out[0] = '\0';
        return SL_OK;
    }
    SL_TRY(config->write ? sl_profile_path(config->model, path_out, PATH_SIZE, err) : SL_OK);
    return sl_whole_file_check(path_out, err);
}

static enum sl_status report(const struct profile_config *config, const struct sl_attention_profile *p,
                             const char *path, struct sl_error *err) {
    struct sl_layers dense;
    sl_profile_choose(p, config->threshold, &dense);
    json_t *json = sl_profile_json(p, config->threshold, &dense);
    enum sl_status status = json ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    SL_THEN(status, path[0] ? sl_profile_write(path, json, err) : SL_OK);
    if (status == SL_OK && config->tool.json) {
        if (path[0]) {
            json_object_set_new(json, "path", sl_text_json(path));
        }
        sl_json_print(json_incref(json), JSON_COMPACT | JSON_REAL_PRECISION(6), stdout);
    } else if (status == SL_OK) {
        print_table(p, config->threshold, &dense);
        if (path[0]) {
            printf("written to %s (threshold %g)\n", path, config->threshold);
        }
    }
    if (status == SL_OK && config->png) {
        return sl_picture_draw("profile", config->png, json, err);
    }
    json_decref(json);
    return status;
}

static enum sl_status profile(void *arg, struct sl_error *err) {
    const struct profile_config *config = arg;
    struct sl_eval_model m;
    struct sl_eval_model_config model = {.dir = config->model,
                                         .weights = config->weights,
                                         .device = config->device,
                                         .threads = (int)config->threads,
                                         .max_rows = MAX_ROWS,
                                         .cache_tokens = config->tokens,
                                         .tokenizer = true};
    char path[PATH_SIZE];
    enum sl_status status =
        config->model ? sl_picture_check(config->png, err) : sl_fail(err, SL_ERR_INVALID, "--model DIR is needed");
    SL_THEN(status, find_path(config, path, err));
    SL_THEN(status, sl_eval_model_open(&model, &m, err));
    SL_TRY(status);
    struct sl_attention_profile p;
    status = sl_attention_profile_init(&p, m.runtime.config->n_layers, m.runtime.config->n_kv_heads, err);
    SL_THEN(status, measure(config, &m, &p, err));
    sl_eval_model_close(&m);
    SL_THEN(status, report(config, &p, path, err));
    sl_attention_profile_cleanup(&p);
    return status;
}

SL_COMMAND_RUN(sl_command_profile, profile_config, program, profile)
