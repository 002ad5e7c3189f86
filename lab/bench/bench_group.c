// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures what it costs the ranks of one model to exchange activations, by their number and size.
 *
 * Design: ranks on CPUs share one memory, and read each other's rows in place: a gather is only the barrier at the
 *         end of the operation. The bench also prints the cost if every rank copied the others' columns. Ranks with
 *         their own memory gather (engine/tensor/ranks/gather.c). Their traffic is counted, not timed: a model of the
 *         geometry reads one chunk on emulated devices that count and do not compute, and the ranks report the bytes
 *         that they sent and received.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/team.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/recipe_cell.h"
#include "lab/bench/rig/cluster_job.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/result.h"
#include "base/options/config.h"
#include "engine/runtime/plugin.h"
#include "engine/tensor/ranks/ranks.h"

#define MAX_RUNS    101
#define MOST_ROUNDS 2000
#define RUN_BYTES   ((int64_t)64 << 20) // bytes that a rank copies per run

struct options {
    int64_t ranks, from_bytes, to_bytes, runs, n_tokens;
    const char *geometry;
    bool json;
};

static const struct sl_option option_table[] = {
    {"ranks", 0, SL_OPTION_INT, "4", "N", "2, 4, .. ranks, up to N", SL_FIELD(options, ranks), 2, SL_MAX_RANKS},
    {"first-bytes", 0, SL_OPTION_SIZE, "4K", "BYTES", "of the smallest gather", SL_FIELD(options, from_bytes), 64,
     1 << 30},
    {"to", 0, SL_OPTION_SIZE, "16M", "BYTES", "of the largest: four times as much each", SL_FIELD(options, to_bytes),
     64, 1 << 30},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of every figure", SL_FIELD(options, runs), 1, MAX_RUNS},
    {"geometry", 0, SL_OPTION_STRING, "8b", "NAME", "model of which bytes are counted: 135m, 1b or 8b",
     SL_FIELD(options, geometry)},
    {"tokens", 0, SL_OPTION_INT, "64", "N", "that it reads", SL_FIELD(options, n_tokens), 1, 4096},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_signals signals;
};

// --- one memory ------------------------------------------------------------------------------------------------------

struct copies { // each rank copies from all others, or nothing is copied
    int n;
    size_t bytes;           // of the whole tensor
    char *of[SL_MAX_RANKS]; // [bytes] of each rank
};

static void copy_others(void *arg, int64_t begin, int64_t end, int member) {
    const struct copies *c = arg;
    size_t share = c->bytes / (size_t)c->n;
    (void)begin;
    (void)end;
    for (int r = 0; r < c->n; r++) {
        if (r != member && share > 0) {
            memcpy(c->of[member] + (size_t)r * share, c->of[r] + (size_t)r * share, share);
        }
    }
}

static double time_rounds(struct sl_team *team, struct copies *c, int64_t n_rounds) {
    int lost;
    int64_t begin = sl_now_ns();
    for (int64_t i = 0; i < n_rounds; i++) {
        (void)sl_team_run_each(team, copy_others, c, &(struct sl_team_vigil){.still_ms = 60000}, &lost);
    }
    return (double)(sl_now_ns() - begin) / 1e3 / (double)n_rounds;
}

// Alternates between copying and reading in place.
static enum sl_status measure(struct bench *b, struct sl_team *team, struct copies *c, size_t bytes,
                              struct sl_error *err) {
    double copied[MAX_RUNS], in_place[MAX_RUNS];
    char name[96];
    int64_t n_rounds = RUN_BYTES / (int64_t)bytes;
    n_rounds = n_rounds < 4 ? 4 : n_rounds > MOST_ROUNDS ? MOST_ROUNDS : n_rounds;
    sl_bench_progress("%d ranks, %zu bytes", c->n, bytes);
    enum sl_status status = SL_OK;
    for (int64_t run = 0; run < b->options.runs && status == SL_OK; run++) {
        c->bytes = bytes;
        copied[run] = time_rounds(team, c, n_rounds);
        c->bytes = 0;
        in_place[run] = time_rounds(team, c, n_rounds);
        status = sl_signals_check(&b->signals, err);
    }
    if (status != SL_OK) {
        return status;
    }
    snprintf(name, sizeof name, "gather of %.0f KB by copies, %d ranks", (double)bytes / 1024, c->n);
    struct sl_bench_result result = {
        .bench = "group", .test = name, .unit = "us", .as_factor = true, .reference = "in place"};
    sl_bench_print_turns(result, copied, in_place, (size_t)b->options.runs, b->options.json);
    return SL_OK;
}

static enum sl_status measure_sizes(struct bench *b, int n, struct sl_error *err) {
    struct copies c = {.n = n};
    struct sl_team *team = NULL;
    size_t most = ((size_t)b->options.to_bytes + 63) / 64 * 64;
    enum sl_status status = sl_team_create(n, &team, err);
    for (int r = 0; r < n && status == SL_OK; r++) {
        c.of[r] = aligned_alloc(64, most);
        status = c.of[r] != NULL ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
        if (status == SL_OK) {
            memset(c.of[r], r, most);
        }
    }
    for (int64_t bytes = b->options.from_bytes; bytes <= b->options.to_bytes && status == SL_OK; bytes *= 4) {
        status = measure(b, team, &c, (size_t)bytes, err);
    }
    for (int r = 0; r < n; r++) {
        free(c.of[r]);
    }
    sl_team_destroy(&team);
    return status;
}

// --- memory of their own ---------------------------------------------------------------------------------------------

static void print_count(const struct bench *b, int n, const char *what, uint64_t bytes, int n_layers) {
    char name[96];
    snprintf(name, sizeof name, "%s, %d ranks: %s, a token and layer", b->options.geometry, n, what);
    struct sl_bench_result result = {.bench = "group",
                                     .test = name,
                                     .value = (double)bytes / 1e3 / (double)(b->options.n_tokens * n_layers),
                                     .unit = "KB"};
    sl_bench_print(&result, b->options.json);
}

static void print_counts(const struct bench *b, const struct sl_runtime *runtime, int n) {
    struct sl_ranks_traffic first = sl_ranks_traffic(runtime->device, 0), most = {0};
    int n_layers = runtime->config->n_layers;
    for (int r = 1; r < n; r++) {
        struct sl_ranks_traffic other = sl_ranks_traffic(runtime->device, r);
        most.sent = other.sent > most.sent ? other.sent : most.sent;
        most.received = other.received > most.received ? other.received : most.received;
    }
    print_count(b, n, "rank 0 sends", first.sent, n_layers);
    print_count(b, n, "rank 0 receives", first.received, n_layers);
    print_count(b, n, "another sends at most", most.sent, n_layers);
    print_count(b, n, "another receives at most", most.received, n_layers);
}

static enum sl_status count_model(struct bench *b, const char *dir, int n, struct sl_error *err) {
    struct sl_runtime runtime = {0};
    struct sl_reader *reader = NULL;
    struct sl_plan *plan = malloc(sizeof *plan);
    int32_t *tokens = NULL;
    uint64_t random = 1;
    struct sl_runtime_config config = {
        .model_dir = dir, .device = "emulated", .ranks = n, .threads = n, .max_rows = (int)b->options.n_tokens};
    enum sl_status status =
        plan != NULL ? sl_runtime_open(&config, &runtime, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    SL_THEN(status, sl_recipe_cell_plan(runtime.config, "full", b->options.n_tokens, plan, err));
    SL_THEN(status, sl_runtime_open_arena(&runtime, plan->prefill_peak_bytes, err));
    SL_THEN(status, sl_rig_random_tokens(&random, runtime.config->n_vocab, b->options.n_tokens, &tokens, err));
    struct sl_reader_config reading = {.plan = plan, .runtime = &runtime, .arena = runtime.arena, .tokens = tokens};
    SL_THEN(status, sl_recipe_cell_read(&reading, &b->signals, &reader, err));
    if (status == SL_OK) {
        print_counts(b, &runtime, n);
    }
    sl_reader_destroy(&reader);
    free(tokens);
    free(plan);
    sl_runtime_close(&runtime);
    return status;
}

// --- all -------------------------------------------------------------------------------------------------------------

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    char dir[SL_SYNTHETIC_PATH_BYTES];
    const struct sl_model_config *geometry = sl_synthetic_find(b->options.geometry);
    SL_FAIL_IF(geometry == NULL, err, SL_ERR_INVALID, "--geometry %s: unknown, expected 135m, 1b or 8b",
               b->options.geometry);
    enum sl_status status = SL_OK;
    for (int n = 2; n <= b->options.ranks && status == SL_OK; n *= 2) {
        status = measure_sizes(b, n, err);
    }
    const struct sl_plugin *plugin;
    SL_THEN(status, sl_plugin_find("emulated", &plugin, err));
    if (status == SL_OK) {
        plugin->counts->only();
    }
    SL_THEN(status, sl_synthetic_create_empty(geometry, dir, sizeof dir, err));
    if (status != SL_OK) {
        return status;
    }
    for (int n = 2; n <= b->options.ranks && status == SL_OK; n *= 2) {
        status = count_model(b, dir, n, err);
    }
    sl_synthetic_remove(dir);
    return status;
}

SL_BENCH(group, "[options]", "Measure what it costs ranks of one model to have each other's activations.",
         .check = NULL);
