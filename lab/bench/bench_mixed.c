// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures how a long prompt and short ones affect each other: time to first token of short jobs that arrive
 *          at random times, alone and beside one long job, and of the long job alone and beside them.
 *
 * Design: rounds have three parts: the long job alone, the short ones alone, both. The short ones arrive at the same
 *         times in each part, spread over the time of the long job alone. The cluster is on this machine without a
 *         kvstore, or is an existing one. Every prompt is random and read once, so nothing is reused. Values are over
 *         all rounds; ratios are medians of rounds.
 */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/cluster_job.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/random.h"
#include "lab/result.h"
#include "engine/model/model.h"
#include "base/options/config.h"

#define MAX_ROUNDS  16
#define MAX_SHORT   64
#define N_OUTPUT    2
#define JOB_MS      1800000
#define LOOK_MS     10 // between two looks for a signal
#define LONG_TOKENS 32768
#define SPREAD      0.8 // of the long job's time alone: the short ones then overlap with it

struct options {
    const char *coordinator, *model, *device, *recipe, *transport, *arena;
    struct sl_tls_files tls; // for --coordinator's cluster
    int64_t long_tokens, short_tokens, short_jobs, rounds;
    bool synthetic, json;
};

static const struct sl_option option_table[] = {
    {"coordinator", 'c', SL_OPTION_STRING, NULL, "HOST:PORT",
     "a cluster that runs already, with this --model; else one is started here", SL_FIELD(options, coordinator)},
    SL_TLS_OPTIONS(options, tls, "client"),
    SL_MODEL_OPTION(options, model, "demo"),
    {"synthetic", 0, SL_OPTION_FLAG, NULL, NULL,
     "random weights of --model's shape, with as many positions as are needed", SL_FIELD(options, synthetic)},
    {"recipe", 'r', SL_OPTION_STRING, "full", "RECIPE", "of all jobs", SL_FIELD(options, recipe)},
    {"transport", 't', SL_OPTION_STRING, "auto", "NAME", "data plane of the cluster", SL_FIELD(options, transport)},
    SL_DEVICE_OPTION(options, device),
    {"arena", 'a', SL_OPTION_STRING, "512M", "SIZE", "memory for KV of each worker", SL_FIELD(options, arena)},
    {"long-tokens", 0, SL_OPTION_INT, "0", "N", "the long prompt; 0: 32768, or what the model has positions for",
     SL_FIELD(options, long_tokens), 0, 1 << 24},
    {"short-tokens", 0, SL_OPTION_INT, "512", "N", "each short prompt", SL_FIELD(options, short_tokens), 2, 1 << 20},
    {"short-jobs", 0, SL_OPTION_INT, "20", "N", "how many", SL_FIELD(options, short_jobs), 1, MAX_SHORT},
    {"rounds", 0, SL_OPTION_INT, "3", "N", "of all measurements", SL_FIELD(options, rounds), 1, MAX_ROUNDS},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct round { // times to first token, in ms
    double long_alone, long_beside;
    double alone[MAX_SHORT], beside[MAX_SHORT]; // times of the short ones
    double short_work;                          // time of reading the short ones alone, summed
};

struct bench {
    struct options options;
    struct sl_signals signals;
    struct sl_model_config model;
    char synthetic_dir[SL_SYNTHETIC_PATH_BYTES]; // "": no synthetic model
    struct sl_rig_cluster cluster;
    uint64_t random;
    double arrivals[MAX_SHORT]; // of the short ones, as a share of their time span
    struct round rounds[MAX_ROUNDS];
    size_t n_rounds;     // that were completed
    atomic_bool stopped; // by a signal: jobs are not waited for
};

// ---- jobs -----------------------------------------------------------------------------------------------------------

struct job {
    struct bench *bench;
    struct sl_rig_job asked;
    int64_t begin_ns;
    pthread_t thread;
    atomic_bool ended;
    // Valid when the thread has ended:
    enum sl_status status;
    struct sl_error err;
};

static void *job_main(void *arg) {
    struct job *job = arg;
    const atomic_bool *stopped = job->asked.stopped;
    for (int64_t ms; !atomic_load(stopped) && (ms = (job->begin_ns - sl_now_ns()) / SL_NS_PER_MS) > 0;) {
        sl_sleep_ms(ms < LOOK_MS ? ms : LOOK_MS);
    }
    job->status = sl_rig_job_run(job->bench->cluster.client, &job->asked, &job->err);
    if (job->status == SL_OK && job->asked.failure[0]) {
        job->status = sl_fail(&job->err, SL_ERR_INTERNAL, "a job of %lld tokens failed: %.200s",
                              (long long)job->asked.n_tokens, job->asked.failure);
    }
    atomic_store(&job->ended, true);
    return NULL;
}

static enum sl_status start_job(struct bench *b, struct job *job, int64_t n_tokens, int64_t begin_ns,
                                struct sl_error *err) {
    *job = (struct job){.bench = b, .begin_ns = begin_ns};
    job->asked = (struct sl_rig_job){.recipe = b->options.recipe,
                                     .n_tokens = n_tokens,
                                     .deadline_ms = JOB_MS,
                                     .n_output = N_OUTPUT,
                                     .stopped = &b->stopped};
    enum sl_status status = sl_rig_random_tokens(&b->random, b->model.n_vocab, n_tokens, &job->asked.tokens, err);
    SL_THEN(status, sl_thread_start("job", job_main, job, &job->thread, err));
    if (status != SL_OK) {
        free(job->asked.tokens);
    }
    return status;
}

static enum sl_status end_job(struct job *job, enum sl_status status, struct sl_error *err) {
    while (!atomic_load(&job->ended)) {
        if (sl_signals_received(&job->bench->signals) > 0) {
            atomic_store(&job->bench->stopped, true);
        }
        sl_sleep_ms(LOOK_MS);
    }
    pthread_join(job->thread, NULL);
    free(job->asked.tokens);
    if (status == SL_OK && job->status != SL_OK) {
        *err = job->err;
        return job->status;
    }
    return status;
}

// ---- measuring ------------------------------------------------------------------------------------------------------

static enum sl_status run_long(struct bench *b, double *ttft_ms_out, struct sl_error *err) {
    struct job job;
    SL_TRY(start_job(b, &job, b->options.long_tokens, 0, err));
    enum sl_status status = end_job(&job, SL_OK, err);
    *ttft_ms_out = job.asked.ttft_ms;
    return status;
}

// Runs all short jobs, spread over span_ms from now on.
static enum sl_status run_short(struct bench *b, double span_ms, double ttft_ms[MAX_SHORT], double *work_ms_out,
                                struct sl_error *err) {
    struct job *jobs = calloc(MAX_SHORT, sizeof *jobs);
    SL_FAIL_IF(jobs == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = SL_OK;
    int64_t now_ns = sl_now_ns(), n_started = 0;
    while (status == SL_OK && n_started < b->options.short_jobs) {
        int64_t begin_ns = now_ns + (int64_t)(b->arrivals[n_started] * span_ms * SL_NS_PER_MS);
        status = start_job(b, &jobs[n_started], b->options.short_tokens, begin_ns, err);
        n_started += status == SL_OK;
    }
    double work_ms = 0;
    for (int64_t i = 0; i < n_started; i++) {
        status = end_job(&jobs[i], status, err);
        ttft_ms[i] = jobs[i].asked.ttft_ms;
        work_ms += jobs[i].asked.prefill_ms;
        sl_bench_progress("short jobs: %lld of %lld", (long long)i + 1, (long long)n_started);
    }
    free(jobs);
    *work_ms_out = work_ms;
    return status;
}

static enum sl_status run_both(struct bench *b, double span_ms, struct round *round, struct sl_error *err) {
    struct job job;
    SL_TRY(start_job(b, &job, b->options.long_tokens, 0, err));
    while (!atomic_load(&job.asked.reading)) {
        sl_sleep_ms(1);
    }
    double work_ms; // including the long job's turns in between
    enum sl_status status = run_short(b, span_ms, round->beside, &work_ms, err);
    status = end_job(&job, status, err);
    round->long_beside = job.asked.ttft_ms;
    return status;
}

// Returns the value that `share` of n do not exceed (nearest rank).
static double percentile(const double *values, size_t n, double share) {
    double sorted[MAX_ROUNDS * MAX_SHORT];
    memcpy(sorted, values, sizeof *values * n);
    return sl_bench_percentile(sorted, n, share);
}

static void print_run(const struct bench *b, const char *test, int64_t round, double ttft_ms) {
    sl_bench_print_run((struct sl_bench_result){.bench = "mixed", .test = test, .unit = "ms"}, round + 1, ttft_ms,
                       b->options.json);
}

static enum sl_status measure(struct bench *b, struct sl_error *err) {
    double sum = 0, warm_up_ms;
    size_t n_short = (size_t)b->options.short_jobs;
    for (int64_t i = 0; i < b->options.short_jobs; i++) { // a Poisson process
        b->arrivals[i] = sum;
        sum += -log(1 - (double)(sl_random_mmix(&b->random) >> 33) * 0x1p-31);
    }
    for (int64_t i = 0; i < b->options.short_jobs; i++) {
        b->arrivals[i] /= sum;
    }
    enum sl_status status = run_short(b, 0, b->rounds[0].alone, &warm_up_ms, err);
    SL_THEN(status, sl_signals_check(&b->signals, err));
    for (int64_t r = 0; r < b->options.rounds && status == SL_OK; r++) {
        struct round *round = &b->rounds[r];
        sl_bench_progress("round %lld of %lld: the long job alone", (long long)r + 1, (long long)b->options.rounds);
        status = run_long(b, &round->long_alone, err);
        if (status == SL_OK) {
            print_run(b, "the long job alone", r, round->long_alone);
        }
        double span_ms = SPREAD * b->rounds[0].long_alone;
        SL_THEN(status, run_short(b, span_ms, round->alone, &round->short_work, err));
        if (status == SL_OK) {
            print_run(b, "p50 of the short jobs alone", r, percentile(round->alone, n_short, 0.5));
            status = run_both(b, span_ms, round, err);
        }
        if (status == SL_OK) {
            print_run(b, "p50 of the short jobs beside the long one", r, percentile(round->beside, n_short, 0.5));
            print_run(b, "the long job beside the short ones", r, round->long_beside);
            b->n_rounds++;
        }
        SL_THEN(status, sl_signals_check(&b->signals, err));
    }
    return status;
}

// ---- printing -------------------------------------------------------------------------------------------------------

static void print_short(struct bench *b, double share) {
    size_t n = (size_t)b->options.short_jobs, n_rounds = b->n_rounds;
    double alone[MAX_ROUNDS * MAX_SHORT], beside[MAX_ROUNDS * MAX_SHORT], ratios[MAX_ROUNDS];
    for (size_t r = 0; r < n_rounds; r++) {
        memcpy(alone + r * n, b->rounds[r].alone, sizeof *alone * n);
        memcpy(beside + r * n, b->rounds[r].beside, sizeof *beside * n);
        ratios[r] = percentile(b->rounds[r].beside, n, share) / percentile(b->rounds[r].alone, n, share);
    }
    double alone_ms = percentile(alone, n * n_rounds, share), beside_ms = percentile(beside, n * n_rounds, share);
    char name[128];
    snprintf(name, sizeof name, "p%.0f ttft, %lld tokens, alone", 100 * share, (long long)b->options.short_tokens);
    sl_bench_print_value("mixed", name, alone_ms, "ms", b->options.json);
    snprintf(name, sizeof name, "p%.0f ttft, %lld tokens beside %lld", 100 * share, (long long)b->options.short_tokens,
             (long long)b->options.long_tokens);
    sl_bench_print(&(struct sl_bench_result){.bench = "mixed",
                                             .test = name,
                                             .value = beside_ms,
                                             .unit = "ms",
                                             .reference = "alone",
                                             .reference_value = alone_ms,
                                             .paired_ratio = sl_bench_median(ratios, n_rounds)},
                   b->options.json);
}

static void print_long(struct bench *b) {
    size_t n_rounds = b->n_rounds;
    double alone[MAX_ROUNDS], beside[MAX_ROUNDS], more[MAX_ROUNDS], work[MAX_ROUNDS];
    for (size_t r = 0; r < n_rounds; r++) {
        const struct round *round = &b->rounds[r];
        alone[r] = round->long_alone;
        beside[r] = round->long_beside;
        more[r] = round->long_beside - round->long_alone;
        work[r] = round->short_work;
    }
    double more_ms = sl_bench_median(more, n_rounds), work_ms = sl_bench_median(work, n_rounds);
    char name[128];
    snprintf(name, sizeof name, "ttft, %lld tokens beside %lld short jobs", (long long)b->options.long_tokens,
             (long long)b->options.short_jobs);
    sl_bench_print_turns((struct sl_bench_result){.bench = "mixed", .test = name, .unit = "ms", .reference = "alone"},
                         beside, alone, n_rounds, b->options.json);
    sl_bench_print(&(struct sl_bench_result){.bench = "mixed",
                                             .test = "what the short jobs cost the long one",
                                             .value = more_ms,
                                             .unit = "ms",
                                             .reference = "what reading them takes alone",
                                             .reference_value = work_ms},
                   b->options.json);
}

// ---- starting and stopping ------------------------------------------------------------------------------------------

// Makes a model with random weights in the model's shape, with its own tokenizer.
static enum sl_status make_synthetic(struct bench *b, struct sl_error *err) {
    struct sl_model_config config = b->model;
    config.max_positions = b->options.long_tokens + N_OUTPUT;
    SL_TRY(sl_synthetic_create(&config, SL_SYNTHETIC_WRITTEN, &b->signals, b->synthetic_dir, err));
    char source[PATH_MAX], path[PATH_MAX], link[PATH_MAX];
    snprintf(source, sizeof source, "%s/tokenizer.json", b->options.model);
    snprintf(link, sizeof link, "%s/tokenizer.json", b->synthetic_dir);
    SL_FAIL_IF(realpath(source, path) == NULL || symlink(path, link) != 0, err, SL_ERR_IO,
               "%s: cannot be linked to from %s: %m", source, b->synthetic_dir);
    return SL_OK;
}

static void remove_synthetic(struct bench *b) {
    if (b->synthetic_dir[0] != '\0') {
        char link[PATH_MAX];
        snprintf(link, sizeof link, "%s/tokenizer.json", b->synthetic_dir);
        unlink(link);
        sl_synthetic_remove(b->synthetic_dir);
    }
}

static enum sl_status prepare_model(struct bench *b, struct sl_error *err) {
    struct options *options = &b->options;
    SL_TRY(sl_model_config_load(options->model, &b->model, err));
    int64_t most = b->model.max_positions - N_OUTPUT;
    if (options->long_tokens == 0) {
        options->long_tokens = options->synthetic || most > LONG_TOKENS ? LONG_TOKENS : most;
    }
    SL_FAIL_IF(options->synthetic && options->coordinator != NULL, err, SL_ERR_INVALID,
               "--synthetic: makes a model for a cluster that is started here, not at --coordinator");
    SL_FAIL_IF(!options->synthetic && options->long_tokens > most, err, SL_ERR_INVALID,
               "--long-tokens %lld: the model has %lld positions; --synthetic makes one with more",
               (long long)options->long_tokens, (long long)b->model.max_positions);
    SL_FAIL_IF(options->short_tokens > options->long_tokens, err, SL_ERR_INVALID,
               "--short-tokens %lld: more than --long-tokens %lld", (long long)options->short_tokens,
               (long long)options->long_tokens);
    return options->synthetic ? make_synthetic(b, err) : SL_OK;
}

static enum sl_status start(struct bench *b, struct sl_error *err) {
    const struct options *options = &b->options;
    enum sl_status status = SL_OK;
    if (options->coordinator == NULL) {
        sl_bench_progress("starting a cluster");
        const char *model = b->synthetic_dir[0] != '\0' ? b->synthetic_dir : options->model;
        status = sl_rig_cluster_start(&b->cluster, model, options->device, options->transport, options->arena,
                                      &b->signals, err);
    }
    return status == SL_OK ? sl_rig_cluster_connect(&b->cluster, options->coordinator, &options->tls, &b->signals, err)
                           : status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    b->random = 1;
    enum sl_status status = prepare_model(b, err);
    SL_THEN(status, start(b, err));
    SL_THEN(status, measure(b, err));
    if (b->n_rounds > 0) { // not all, when it was stopped
        print_short(b, 0.5);
        print_short(b, 0.99);
        print_long(b);
    }
    sl_rig_cluster_stop(&b->cluster, &b->signals);
    remove_synthetic(b);
    return status;
}

SL_BENCH(mixed, "[options]",
         "Measure the time to first token of short prompts alone and beside a long one, and what they cost it.",
         .check = NULL);
