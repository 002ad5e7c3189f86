// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures what disaggregation costs a single job: the time to first token of a cluster on this machine
 *          compared with one process that does both phases, alternating in the same run.
 *
 * Design: one cluster per transport, all started before gRPC is (starting forks); no kvstore, so nothing is reused.
 *         Token ids are random: the computation does not depend on them. The first run of each side is not counted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/bench/bench.h"
#include "lab/bench/rig/cluster_job.h"
#include "lab/result.h"
#include "base/options/config.h"
#include "engine/runner/local.h"

#define MAX_RUNS 32
#define N_OUTPUT 8
#define JOB_MS   120000

struct options {
    const char *model, *device, *recipe, *tier;
    int64_t n_tokens, runs;
    bool json;
};

static const struct sl_option option_table[] = {
    SL_MODEL_OPTION(options, model, "demo"),
    {"recipe", 'r', SL_OPTION_STRING, "full", "RECIPE", "of the jobs", SL_FIELD(options, recipe)},
    {"tokens", 0, SL_OPTION_INT, "8000", "N", "length of the prompt", SL_FIELD(options, n_tokens), 2, 1 << 24},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of every measurement", SL_FIELD(options, runs), 1, MAX_RUNS},
    SL_DEVICE_OPTION(options, device),
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use", SL_FIELD(options, tier)},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line", SL_FIELD(options, json)},
};

static const char *const transports[] = {"shm", "tcp"};
#define N_TRANSPORTS 2

struct side {
    struct sl_rig_cluster cluster;
    double ttft_ms[MAX_RUNS], prefill_ms[MAX_RUNS], ship_ms[MAX_RUNS];
};

struct bench {
    struct options options;
    struct sl_signals signals;
    struct side sides[N_TRANSPORTS];
    struct sl_local *local;
    double local_ms[MAX_RUNS], local_prefill_ms[MAX_RUNS];
    int32_t *tokens;
    double capsule_bytes;
};

// ---- the two sides --------------------------------------------------------------------------------------------------

static enum sl_status run_local(struct bench *b, int64_t slot, struct sl_error *err) {
    struct sl_local_request request = {.recipe = b->options.recipe,
                                       .prompt = b->tokens,
                                       .n_prompt = b->options.n_tokens,
                                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                                       .max_new_tokens = N_OUTPUT,
                                       .ignore_eos = true};
    struct sl_local_result result;
    SL_TRY(sl_local_generate(b->local, &request, &result, err));
    b->local_ms[slot] = result.ttft_ms;
    b->local_prefill_ms[slot] = result.prefill_ms;
    free(result.text);
    return SL_OK;
}

static enum sl_status run_cluster(struct bench *b, struct side *side, int64_t slot, struct sl_error *err) {
    struct sl_rig_job job = {.recipe = b->options.recipe,
                             .tokens = b->tokens,
                             .n_tokens = b->options.n_tokens,
                             .deadline_ms = JOB_MS,
                             .n_output = N_OUTPUT};
    enum sl_status status = sl_rig_job_run(side->cluster.client, &job, err);
    SL_THEN_FAIL_IF(status, job.failure[0], err, SL_ERR_INTERNAL, "job %s failed: %s", job.id, job.failure);
    side->ttft_ms[slot] = job.ttft_ms;
    side->prefill_ms[slot] = job.prefill_ms;
    side->ship_ms[slot] = job.ship_ms;
    b->capsule_bytes = job.capsule_bytes;
    return status;
}

// ---- starting and stopping ------------------------------------------------------------------------------------------

static enum sl_status start_clusters(struct bench *b, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; i < N_TRANSPORTS && status == SL_OK; i++) {
        sl_bench_progress("starting a cluster over %s", transports[i]);
        status = sl_rig_cluster_start(&b->sides[i].cluster, b->options.model, b->options.device, transports[i], NULL,
                                      &b->signals, err);
    }
    for (int i = 0; i < N_TRANSPORTS && status == SL_OK; i++) {
        status = sl_rig_cluster_connect(&b->sides[i].cluster, NULL, NULL, &b->signals, err);
    }
    return status;
}

static enum sl_status make_prompt(struct bench *b, struct sl_error *err) {
    const struct sl_model_config *model = sl_local_model(b->local);
    SL_FAIL_IF(b->options.n_tokens + N_OUTPUT > model->max_positions, err, SL_ERR_INVALID,
               "--tokens %lld: the model has %lld positions", (long long)b->options.n_tokens,
               (long long)model->max_positions);
    uint64_t random = 1;
    return sl_rig_random_tokens(&random, model->n_vocab, b->options.n_tokens, &b->tokens, err);
}

static void stop(struct bench *b) {
    for (int i = 0; i < N_TRANSPORTS; i++) {
        sl_rig_cluster_stop(&b->sides[i].cluster, &b->signals);
    }
    sl_local_close(&b->local);
    free(b->tokens);
}

// ---- measuring ------------------------------------------------------------------------------------------------------

// Prints a row of one run, which is not the warm-up.
static void print_run(const struct bench *b, int64_t run, const char *side, double ttft_ms) {
    char name[128];
    snprintf(name, sizeof name, "ttft %lld tokens, %s", (long long)b->options.n_tokens, side);
    if (run >= 0) {
        sl_bench_print_run((struct sl_bench_result){.bench = "ttft", .test = name, .unit = "ms"}, run + 1, ttft_ms,
                           b->options.json);
    }
}

// Counts the runs that were completed.
static enum sl_status measure(struct bench *b, size_t *n_runs_out, struct sl_error *err) {
    enum sl_status status = SL_OK;
    *n_runs_out = 0;
    for (int64_t run = -1; run < b->options.runs && status == SL_OK; run++) { // run -1 warms up
        int64_t slot = run < 0 ? 0 : run;
        sl_bench_progress("run %lld of %lld", (long long)run + 1, (long long)b->options.runs);
        status = run_local(b, slot, err);
        if (status == SL_OK) {
            print_run(b, run, "one process", b->local_ms[slot]);
        }
        for (int i = 0; i < N_TRANSPORTS && status == SL_OK; i++) {
            status = run_cluster(b, &b->sides[i], slot, err);
            if (status == SL_OK) {
                print_run(b, run, transports[i], b->sides[i].ttft_ms[slot]);
            }
        }
        *n_runs_out += status == SL_OK && run >= 0;
        SL_THEN(status, sl_signals_check(&b->signals, err));
    }
    return status;
}

static void print_turns(const struct bench *b, const char *name, const double *ms, const char *reference,
                        const double *reference_ms, size_t runs) {
    struct sl_bench_result result = {.bench = "ttft", .test = name, .unit = "ms", .reference = reference};
    sl_bench_print_turns(result, ms, reference_ms, runs, b->options.json);
}

static void print(struct bench *b, size_t runs) {
    long long n_tokens = (long long)b->options.n_tokens;
    char name[128];
    for (int i = 0; i < N_TRANSPORTS; i++) {
        const struct side *side = &b->sides[i];
        snprintf(name, sizeof name, "ttft %lld tokens, %s cluster over %s", n_tokens, b->options.recipe, transports[i]);
        print_turns(b, name, side->ttft_ms, "one process", b->local_ms, runs);
        snprintf(name, sizeof name, "of that reading the prompt, %s", transports[i]);
        print_turns(b, name, side->prefill_ms, "one process", b->local_prefill_ms, runs);
        snprintf(name, sizeof name, "ship after the last chunk (%.1f MiB), %s", b->capsule_bytes / (1 << 20),
                 transports[i]);
        print_turns(b, name, side->ship_ms, "ttft", side->ttft_ms, runs);
    }
    snprintf(name, sizeof name, "ttft %lld tokens, one process", n_tokens);
    sl_bench_print_value("ttft", name, sl_bench_median(b->local_ms, runs), "ms", b->options.json);
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    struct sl_local_config config = {
        .model_dir = b->options.model, .device = b->options.device, .tier = b->options.tier, .share_weights = true};
    bool is_named = strcmp(b->options.tier, "auto") != 0; // else the caller's SLUICE_TIER, if any, is for all of them
    SL_FAIL_IF(is_named && setenv("SLUICE_TIER", b->options.tier, 1) != 0, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = start_clusters(b, err); // forks: before this process has threads
    SL_THEN(status, sl_local_open(&config, &b->local, err));
    SL_THEN(status, make_prompt(b, err));
    size_t n_runs = 0;
    SL_THEN(status, measure(b, &n_runs, err));
    if (n_runs > 0) { // not all, when it was stopped
        print(b, n_runs);
    }
    stop(b);
    return status;
}

SL_BENCH(ttft, "[options]",
         "Measure the time to first token of a cluster on this machine beside one process doing both phases.",
         .check = NULL);
