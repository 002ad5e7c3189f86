// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice eval weights`: compares quantized weights with the stored ones, on a text.
 *
 * Design: opens one model at a time, because quantized formats are for models of which only one fits. The first, as
 *         stored, writes its logits to a temporary file; the others compare with them position by position. The text
 *         is read in one session, so that a position sees all earlier ones.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"
#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "client/cli/tool.h"
#include "lab/eval_model.h"
#include "lab/measure/fidelity.h"
#include "lab/measure/measure.h"
#include "lab/picture.h"

#define ROWS           256 // per forward pass: limits the memory of [ROWS][n_vocab] logits
#define DEFAULT_TOKENS 2048

struct weights_config {
    struct sl_tool_config tool;
    const char *model, *device, *text;
    int64_t tokens, threads;
};

static const struct sl_option options[] = {
    SL_MODEL_OPTION(weights_config, model, NULL),
    {"text", 0, SL_OPTION_STRING, NULL, "FILE", "text to read; -: standard input. Default: this tool's license",
     SL_FIELD(weights_config, text)},
    {"tokens", 0, SL_OPTION_INT, "2048", "N", "most tokens of the text that are predicted",
     SL_FIELD(weights_config, tokens), 1, 1 << 24},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one for each processor", SL_FIELD(weights_config, threads), 0,
     1024},
    SL_DEVICE_OPTION(weights_config, device),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice eval weights",
    .usage = "--model DIR [options]",
    .summary = "Read a text with the weights as stored, as int8 and as int4, and compare the predictions.",
    .epilog =
        "error       squared error of the quantized weights, relative to their squares\n"
        "perplexity  exp of the mean negative log likelihood of the text's tokens\n"
        "kl          mean Kullback-Leibler divergence of the next token's distribution from the stored weights',\n"
        "            nats\n"
        "same top    positions whose likeliest token is the one of the stored weights\n"
        "The stored weights' logits go through a temporary file: 4 bytes for each token and word of the\n"
        "vocabulary.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

struct result {
    size_t memory_bytes;
    double load_s, error, perplexity, kl, same_top;
};

struct eval {
    struct weights_config config;
    int32_t *tokens; // [n + 1]
    int64_t n;       // predicted tokens
    FILE *logits;    // of the stored weights: [n][n_vocab]
    const char *tier;
    struct result results[SL_WEIGHT_INT4 + 1];
};

// --- one format ------------------------------------------------------------------------------------------------------

// Writes the prediction of one position to the file, or compares with it. base: [n_vocab] scratch; NULL: writes.
static enum sl_status take_row(struct eval *e, int32_t next, const float *row, float *base, int64_t n_vocab,
                               struct result *sums, struct sl_error *err) {
    sums->perplexity += sl_negative_log_likelihood(row, n_vocab, next);
    if (base == NULL) {
        sums->same_top += 1;
        return fwrite(row, sizeof *row, (size_t)n_vocab, e->logits) == (size_t)n_vocab
                   ? SL_OK
                   : sl_fail(err, SL_ERR_IO, "cannot write the temporary file of logits: %s; use fewer --tokens",
                             strerror(errno));
    }
    SL_FAIL_IF(fread(base, sizeof *base, (size_t)n_vocab, e->logits) != (size_t)n_vocab, err, SL_ERR_IO,
               "cannot read the temporary file of logits back");
    sums->kl += sl_kl_divergence(base, row, n_vocab);
    sums->same_top += sl_arg_max(base, n_vocab) == sl_arg_max(row, n_vocab);
    return SL_OK;
}

static enum sl_status read_text(struct eval *e, enum sl_weight_format format, const struct sl_eval_model *m,
                                float *logits, struct result *result, struct sl_error *err) {
    int64_t n_vocab = m->runtime.config->n_vocab;
    float *base = format == SL_WEIGHT_STORED ? NULL : logits + ROWS * n_vocab;
    struct result sums = {0};
    struct sl_session *session;
    SL_TRY(sl_eval_model_session(m, SL_POSITION_ORIGINAL, e->n, &session, err));
    enum sl_status status = SL_OK;
    rewind(e->logits);
    for (int64_t i = 0; i < e->n && status == SL_OK; i += ROWS) {
        int n = (int)(e->n - i < ROWS ? e->n - i : ROWS);
        struct sl_input input = {.session = session, .tokens = e->tokens + i, .n_tokens = n, .all_logits = logits};
        sl_progress_show(sl_weight_format_name(format), i, e->n);
        status = sl_engine_forward(m->runtime.engine, &input, 1, err);
        for (int r = 0; r < n && status == SL_OK; r++) {
            status = take_row(e, e->tokens[i + r + 1], logits + r * n_vocab, base, n_vocab, &sums, err);
        }
    }
    sl_session_destroy(&session);
    result->perplexity = exp(sums.perplexity / (double)e->n);
    result->kl = sums.kl / (double)e->n;
    result->same_top = sums.same_top / (double)e->n;
    return status;
}

// Prepares the text with the first open model: cuts it to the model's positions.
static enum sl_status prepare(struct eval *e, const struct sl_eval_model *m, struct sl_error *err) {
    int64_t n_tokens;
    SL_TRY(sl_eval_model_read(m, e->config.text, &e->tokens, &n_tokens, err));
    SL_FAIL_IF(n_tokens < 2, err, SL_ERR_INVALID, "the text has no token to predict");
    int64_t most = n_tokens - 1 < m->runtime.config->max_positions ? n_tokens - 1 : m->runtime.config->max_positions;
    e->n = e->config.tokens < most ? e->config.tokens : most;
    e->tier = m->runtime.ops->name;
    e->logits = tmpfile();
    return e->logits ? SL_OK : sl_fail(err, SL_ERR_IO, "no temporary file: %s", strerror(errno));
}

static enum sl_status measure(struct eval *e, enum sl_weight_format format, struct sl_error *err) {
    struct sl_eval_model_config config = {.dir = e->config.model,
                                          .weights = sl_weight_format_name(format),
                                          .device = e->config.device,
                                          .threads = (int)e->config.threads,
                                          .max_rows = ROWS,
                                          .cache_tokens = e->config.tokens + SL_PAGE_SLOTS,
                                          .tokenizer = true};
    struct result *result = &e->results[format];
    struct sl_eval_model m;
    int64_t begin_ns = sl_now_ns();
    sl_progress_show(sl_weight_format_name(format), 0, e->n);
    SL_TRY(sl_eval_model_open(&config, &m, err));
    result->load_s = (double)(sl_now_ns() - begin_ns) / 1e9;
    result->memory_bytes = sl_model_memory_bytes(m.runtime.model);
    enum sl_status status = e->tokens == NULL ? prepare(e, &m, err) : SL_OK;
    SL_THEN(status, sl_model_weight_error(m.runtime.model, format, m.runtime.team, &result->error, err));
    float *logits = malloc((ROWS + 1) * (size_t)m.runtime.config->n_vocab * sizeof *logits);
    SL_THEN(status, logits ? read_text(e, format, &m, logits, result, err)
                           : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for %d rows of logits", ROWS));
    free(logits);
    sl_eval_model_close(&m);
    return status;
}

// --- results ---------------------------------------------------------------------------------------------------------

static enum sl_status report(const struct eval *e, struct sl_error *err) {
    json_t *formats = json_array();
    for (int f = 0; f <= SL_WEIGHT_INT4; f++) {
        const struct result *r = &e->results[f];
        json_array_append_new(formats,
                              json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "name",
                                        sl_weight_format_name((enum sl_weight_format)f), "memory",
                                        (json_int_t)r->memory_bytes, "load", sl_report_number(r->load_s), "error",
                                        sl_report_number(r->error), "perplexity", sl_report_number(r->perplexity), "kl",
                                        sl_report_number(r->kl), "same_top", sl_report_number(r->same_top)));
    }
    json_t *data = json_pack("{s:b, s:o, s:I, s:s, s:o}", "json", e->config.tool.json, "source",
                             sl_text_json(e->config.text ? e->config.text : "LICENSE"), "n", (json_int_t)e->n, "tier",
                             e->tier, "formats", formats);
    return sl_report_print("weights", NULL, data, err);
}

static enum sl_status evaluate(void *arg, struct sl_error *err) {
    struct eval *e = arg;
    SL_FAIL_IF(!e->config.model, err, SL_ERR_INVALID, "--model DIR is needed");
    enum sl_status status = sl_report_check(err);
    for (int f = 0; f <= SL_WEIGHT_INT4 && status == SL_OK; f++) {
        status = measure(e, (enum sl_weight_format)f, err);
    }
    sl_progress_hide();
    return status == SL_OK ? report(e, err) : status;
}

int sl_command_eval_weights(int argc, char **argv) {
    struct eval e = {0};
    int code = sl_tool_run(&program, argc, argv, &e, evaluate);
    free(e.tokens);
    sl_close_file(e.logits);
    return code;
}
