// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what disaggregation costs a single job: the time to first token of a cluster on this machine beside one process
 *          that does both phases, in the same run, the two taking turns.
 *
 * Design: one cluster a transport, all started before gRPC is (starting forks); no kvstore, so that nothing is reused. Random
 *         token ids: what is computed does not depend on them. The first run of each side is not counted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "cli/cluster.h"
#include "cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/result.h"
#include "libsluice/sluice.h"
#include "runner/local.h"

#define MAX_RUNS 32
#define N_OUTPUT 8
#define JOB_MS   120000

struct options {
    const char *model, *recipe;
    int64_t n_tokens, runs;
    bool json;
};

static const struct sl_option option_table[] = {
    {"model", 'm', SL_OPTION_STRING, "models/demo", "DIR", "model folder", SL_FIELD(options, model)},
    {"recipe", 'r', SL_OPTION_STRING, "full", "RECIPE", "of the jobs", SL_FIELD(options, recipe)},
    {"tokens", 'n', SL_OPTION_INT, "8000", "N", "length of the prompt", SL_FIELD(options, n_tokens), 2, 1 << 24},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of every measurement", SL_FIELD(options, runs), 1, MAX_RUNS},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line", SL_FIELD(options, json)},
};

static const struct sl_program program = {
    .name = "sluice bench ttft",
    .usage = "[options]",
    .summary = "Measure the time to first token of a cluster on this machine beside one process doing both phases.",
    SL_OPTIONS(option_table),
};

static const char *const transports[] = {"shm", "tcp"};
#define N_TRANSPORTS 2

struct side {
    struct sl_cluster *cluster;
    struct sl_client *client;
    double ttft_ms[MAX_RUNS], ship_ms[MAX_RUNS];
};

struct bench {
    struct options options;
    struct sl_signals signals;
    FILE *log; // what the processes say
    struct side sides[N_TRANSPORTS];
    struct sl_local *local;
    double local_ms[MAX_RUNS];
    int32_t *tokens;
    double capsule_bytes;
};

// ---- the two sides -----------------------------------------------------------------------------------------------------

static enum sl_status run_local(struct bench *b, double *ttft_ms_out, struct sl_error *err) {
    struct sl_local_request request = {.recipe = b->options.recipe,
                                       .prompt = b->tokens,
                                       .n_prompt = b->options.n_tokens,
                                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                                       .max_new_tokens = N_OUTPUT,
                                       .ignore_eos = true};
    struct sl_local_result result;
    enum sl_status status = sl_local_generate(b->local, &request, &result, err);
    if (status == SL_OK) {
        *ttft_ms_out = result.ttft_ms;
        free(result.text);
    }
    return status;
}

struct outcome {
    bool finished;
    int32_t code;
    char text[256];
    double ttft_ms, ship_ms, capsule_bytes;
};

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct outcome *outcome = arg;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) {
        outcome->finished = true;
        outcome->code = event->finished->status_code;
        snprintf(outcome->text, sizeof outcome->text, "%s", event->finished->status_text);
        if (event->finished->statistics) {
            outcome->ttft_ms = event->finished->statistics->ttft_ms;
            outcome->ship_ms = event->finished->statistics->ship_ms;
            outcome->capsule_bytes = (double)event->finished->statistics->capsule_bytes;
        }
    }
}

static enum sl_status run_cluster(struct bench *b, struct side *side, double *ttft_ms_out, double *ship_ms_out,
                                  struct sl_error *err) {
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    ids.ids = b->tokens;
    ids.n_ids = (size_t)b->options.n_tokens;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &ids;
    request.recipe = (char *)b->options.recipe;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = N_OUTPUT;
    request.ignore_eos = true;
    struct outcome outcome = {0};
    struct sl_watch watch = {.deadline_ns = sl_deadline_in_ms(JOB_MS), .on_event = on_event, .arg = &outcome};
    char job_id[SL_JOB_ID_BYTES];
    enum sl_status status = sl_client_generate(side->client, &request, &watch, job_id, err);
    if (status == SL_OK && (!outcome.finished || outcome.code != 0)) {
        status = sl_fail(err, SL_ERR_INTERNAL, "job %s failed: %s", job_id, outcome.text);
    }
    if (status == SL_OK) {
        *ttft_ms_out = outcome.ttft_ms;
        *ship_ms_out = outcome.ship_ms;
        b->capsule_bytes = outcome.capsule_bytes;
    }
    return status;
}

// ---- starting and stopping ---------------------------------------------------------------------------------------------

static enum sl_status start_clusters(struct bench *b, struct sl_error *err) {
    for (int i = 0; i < N_TRANSPORTS; i++) {
        sl_bench_progress("starting a cluster over %s", transports[i]);
        struct sl_cluster_config config = {.model = b->options.model,
                                           .weights = "stored",
                                           .host = "127.0.0.1",
                                           .transport = transports[i],
                                           .workers_log = "warn",
                                           .n_prefill = 1,
                                           .n_decode = 1,
                                           .n_kvstore = 0,
                                           .ready_ms = 60000};
        enum sl_status status = sl_cluster_start(&config, &b->signals, b->log, &b->sides[i].cluster, err);
        if (status != SL_OK) {
            return status;
        }
    }
    for (int i = 0; i < N_TRANSPORTS; i++) {
        struct side *side = &b->sides[i];
        int code;
        if (!sl_tool_connect("bench", sl_cluster_address(side->cluster), &side->client, &code)) {
            return sl_fail(err, SL_ERR_PEER_LOST, "no connection to %s", sl_cluster_address(side->cluster));
        }
        enum sl_status status = sl_cluster_wait_ready(side->cluster, side->client, &b->signals, err);
        if (status == SL_OK) {
            status = sl_cluster_run_thread(side->cluster, err);
        }
        if (status != SL_OK) {
            return status;
        }
    }
    return SL_OK;
}

static enum sl_status make_prompt(struct bench *b, struct sl_error *err) {
    const struct sl_model_config *model = sl_local_model(b->local);
    if (b->options.n_tokens + N_OUTPUT > model->max_positions) {
        return sl_fail(err, SL_ERR_INVALID, "--tokens %lld: the model has %lld positions",
                       (long long)b->options.n_tokens, (long long)model->max_positions);
    }
    b->tokens = malloc(sizeof *b->tokens * (size_t)b->options.n_tokens);
    if (!b->tokens) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    uint64_t state = 1;
    for (int64_t i = 0; i < b->options.n_tokens; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX generator
        b->tokens[i] = (int32_t)((state >> 33) % (uint64_t)model->n_vocab);
    }
    return SL_OK;
}

static void stop(struct bench *b) {
    for (int i = 0; i < N_TRANSPORTS; i++) {
        if (b->sides[i].client) {
            sl_tool_disconnect(&b->sides[i].client);
        }
        sl_cluster_stop(&b->sides[i].cluster, 5000, &b->signals);
    }
    sl_local_close(&b->local);
    free(b->tokens);
}

// ---- measuring ---------------------------------------------------------------------------------------------------------

static enum sl_status measure(struct bench *b, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t run = -1; run < b->options.runs && status == SL_OK; run++) { // run -1 warms up
        int64_t slot = run < 0 ? 0 : run;
        sl_bench_progress("run %lld of %lld", (long long)run + 1, (long long)b->options.runs);
        status = run_local(b, &b->local_ms[slot], err);
        for (int i = 0; i < N_TRANSPORTS && status == SL_OK; i++) {
            status = run_cluster(b, &b->sides[i], &b->sides[i].ttft_ms[slot], &b->sides[i].ship_ms[slot], err);
        }
        if (status == SL_OK && sl_signals_received(&b->signals) > 0) {
            status = sl_fail(err, SL_ERR_CANCELLED, "stopped by a signal");
        }
    }
    return status;
}

static void print(struct bench *b) {
    size_t runs = (size_t)b->options.runs;
    double local_ms = sl_bench_median(b->local_ms, runs);
    char name[128];
    snprintf(name, sizeof name, "ttft %lld tokens, one process", (long long)b->options.n_tokens);
    sl_bench_print(&(struct sl_bench_result){.bench = "ttft", .test = name, .value = local_ms, .unit = "ms"},
                   b->options.json);
    for (int i = 0; i < N_TRANSPORTS; i++) {
        double ttft_ms = sl_bench_median(b->sides[i].ttft_ms, runs);
        snprintf(name, sizeof name, "ttft %lld tokens, %s cluster over %s", (long long)b->options.n_tokens,
                 b->options.recipe, transports[i]);
        sl_bench_print(&(struct sl_bench_result){.bench = "ttft",
                                                 .test = name,
                                                 .value = ttft_ms,
                                                 .unit = "ms",
                                                 .reference = "one process",
                                                 .reference_value = local_ms,
                                                 .ratio_value = ttft_ms},
                       b->options.json);
        snprintf(name, sizeof name, "ship after the last chunk (%.1f MiB), %s", b->capsule_bytes / (1 << 20),
                 transports[i]);
        sl_bench_print(&(struct sl_bench_result){.bench = "ttft",
                                                 .test = name,
                                                 .value = sl_bench_median(b->sides[i].ship_ms, runs),
                                                 .unit = "ms",
                                                 .reference = "ttft",
                                                 .reference_value = ttft_ms,
                                                 .ratio_value = sl_bench_median(b->sides[i].ship_ms, runs)},
                       b->options.json);
    }
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    struct sl_local_config config = {.model_dir = b->options.model};
    b->log = stderr;
    enum sl_status status = sl_signals_init(&b->signals, err);
    if (status != SL_OK) {
        return status;
    }
    status = start_clusters(b, err); // forks: before any thread of ours
    status = status == SL_OK ? sl_local_open(&config, &b->local, err) : status;
    status = status == SL_OK ? make_prompt(b, err) : status;
    status = status == SL_OK ? measure(b, err) : status;
    if (status == SL_OK) {
        print(b);
    }
    stop(b);
    sl_signals_cleanup(&b->signals);
    return status;
}

const struct sl_bench sl_bench_ttft = {
    .program = &program,
    .bytes = sizeof(struct bench),
    .run = run,
};
