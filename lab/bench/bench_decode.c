// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: compares a step of decode with layers in a kvstore with a step with everything in this process: time and
 *          memory, in one run, and how much of the wait for the store is hidden behind computation.
 *
 * Design: a random model, sessions that are generated and not read (lab/bench/rig/cell.h), a real kvstore as a
 *         process on the same machine, whose scanning threads share its CPUs. For each length "full" comes first,
 *         then each recipe. Random weights produce random queries: prediction quality and the number of rows kept
 *         from step to step are not those of real models. Times and bytes only depend on the weights through these.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/compress/plan/plan.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/recipe_cell.h"
#include "lab/bench/rig/store_rig.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/result.h"
#include "base/options/config.h"
#include "engine/runner/writing.h"

#define MAX_LENGTHS  8
#define WARM_UP      3
#define AIM_RESIDENT 20.0 // factor below full's, at the longest prompt
#define DEADLINE_MS  10000

struct options {
    const char *geometry, *model, *keep, *tokens, *transport, *tier, *device;
    struct sl_option_list recipes;
    int64_t threads, steps, layers;
    bool json;
};

static const struct sl_option option_table[] = {
    {"geometry", 0, SL_OPTION_STRING, "1b", "NAME", "random model: " SL_GEOMETRY_HELP, SL_FIELD(options, geometry)},
    {"layers", 0, SL_OPTION_INT, "0", "N", "layers of the random model; 0: as many as that has",
     SL_FIELD(options, layers), 0, SL_MAX_LAYERS},
    {"model", 'm', SL_OPTION_MODEL, NULL, "MODEL", "a model folder instead", SL_FIELD(options, model)},
    {"recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",
     "beside full; may be given several times [tailorkv; tailorkv-near,ahead=0; tailorkv-near]",
     SL_FIELD(options, recipes)},
    {"tokens", 0, SL_OPTION_STRING, "8192,32768,131072", "N,N,...", "lengths of the prompt, ascending",
     SL_FIELD(options, tokens)},
    {"transport", 't', SL_OPTION_STRING, "shm", "NAME", "transport to the store: shm, tcp or rdma",
     SL_FIELD(options, transport)},
    {"steps", 0, SL_OPTION_INT, "24", "N", "steps of a measurement", SL_FIELD(options, steps), 4, 4096},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use", SL_FIELD(options, tier)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    SL_DEVICE_OPTION(options, device),
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    const char *recipes[SL_MAX_OPTION_LIST];
    int n_recipes;
    int64_t lengths[MAX_LENGTHS];
    int n_lengths;
    struct sl_signals signals;
    struct sl_team *team;
    struct sl_model_config geometry; // geometry of the random model
    struct sl_rig rig;
    struct sl_store_rig store;
    const char *recipe; // of the current measurement
    int64_t n_tokens;
    double full_ms, full_bytes; // full's values at the current length
};

// A session whose offloaded layers are in the store.
struct remote {
    struct sl_plan plan;
    struct sl_writer writer;
    int64_t n_lost;
};

// --- opening ---------------------------------------------------------------------------------------------------------

static void on_fallback(void *arg, int, const char *) {
    struct remote *r = arg;
    r->n_lost++;
}

static enum sl_status open_remote(struct bench *b, struct remote *r, struct sl_error *err) {
    const struct sl_plan *plan = &r->plan;
    int64_t n_new = b->options.steps + WARM_UP;
    // A resident layer is held in f16 before it is packed.
    size_t bytes = sl_plan_decode_bytes(plan, n_new) + 2 * sl_recipe_cell_unpacked_bytes(plan) + (1 << 22);
    b->rig.cell = (struct sl_cell){.n = plan->n_prompt, .batch = 1};
    enum sl_status status = sl_rig_open_arena(&b->rig, bytes / SL_ARENA_UNIT * SL_ARENA_UNIT, err);
    SL_THEN(status, sl_recipe_cell_fill(&b->rig, plan, n_new, &r->writer.session, err));
    SL_THEN(status, sl_store_rig_source(&b->store, plan, &r->writer.retrieval.source, err));
    struct sl_writer_config writing = {.plan = plan,
                                       .n_read = plan->n_prompt,
                                       .is_remote = true,
                                       .deadline_ms = DEADLINE_MS,
                                       .lost_ms = 3 * DEADLINE_MS,
                                       .on_fallback = on_fallback,
                                       .arg = r};
    return status == SL_OK ? sl_writer_open(&r->writer, &b->rig.runtime, &writing, err) : status;
}

static void close_remote(struct bench *b, struct remote *r) {
    sl_writer_close(&r->writer);
    sl_rig_close_cell(&b->rig);
    free(r);
}

// --- steps -----------------------------------------------------------------------------------------------------------

static enum sl_status run_steps(struct bench *b, struct remote *r, int64_t n_steps, struct sl_error *err) {
    int32_t token = 1;
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n_steps && status == SL_OK; i++) {
        sl_writer_feed(&r->writer, &token, 1, NULL);
        r->writer.input.logits = b->rig.logits;
        status = sl_writing_step(&b->rig.runtime, &r->writer, err);
        SL_THEN(status, sl_signals_check(&b->signals, err));
    }
    return status;
}

// Prints a value of the current measurement; with full > 0 the factor by which it is less than full's.
static void print(const struct bench *b, const char *what, double value, const char *unit, double full, double aim) {
    char name[160];
    snprintf(name, sizeof name, "%s %s %" PRId64, what, b->recipe, b->n_tokens);
    struct sl_bench_result result = {.bench = "decode", .test = name, .value = value, .unit = unit};
    if (full > 0) {
        result.reference = "less than full";
        result.reference_value = value;
        result.ratio_value = full;
        result.as_factor = true;
        result.aim = aim;
    }
    sl_bench_print(&result, b->options.json);
}

// Prints the peak device memory, including weights. CPUs have no such line.
static void print_memory(const struct bench *b) {
    if (sl_rig_most_bytes(&b->rig) > 0) {
        print(b, "memory", (double)sl_rig_most_bytes(&b->rig) / 1e9, "GB", 0, 0);
    }
}

static void print_remote(const struct bench *b, const struct remote *r, double ms) {
    bool longest = b->n_tokens == b->lengths[b->n_lengths - 1];
    struct sl_session_stats session;
    struct sl_retriever_stats stats;
    sl_session_get_stats(r->writer.session, &session);
    sl_retriever_get_stats(r->writer.retrieval.retriever, &stats);
    double n_steps = (double)stats.n_steps;
    print(b, "ms/token", ms, "ms", b->full_ms, 0);
    print(b, "resident", (double)(session.resident_bytes + stats.hot_cache_bytes) / (1 << 20), "MiB",
          b->full_bytes / (1 << 20), longest ? AIM_RESIDENT : 0);
    print(b, "received", (double)stats.bytes_received / n_steps, "bytes/step", 0, 0);
    print(b, "waited", (double)stats.wait_ns / 1e6 / n_steps, "ms/token", 0, 0);
    print_memory(b);
    print(b, "hidden", stats.round_ns > 0 ? 100.0 * (1.0 - (double)stats.wait_ns / (double)stats.round_ns) : 0.0, "%",
          0, 0);
}

static void start(struct bench *b, const char *recipe, int64_t n_tokens) {
    b->recipe = recipe;
    b->n_tokens = n_tokens;
    sl_bench_progress("%s at %" PRId64 " tokens", recipe, n_tokens);
}

static enum sl_status measure_remote(struct bench *b, const char *recipe, int64_t n_tokens, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct remote, r, err, "out of memory");
    start(b, recipe, n_tokens);
    enum sl_status status = sl_recipe_cell_plan(b->rig.runtime.config, recipe, n_tokens, &r->plan, err);
    SL_THEN(status, open_remote(b, r, err));
    SL_THEN(status, run_steps(b, r, WARM_UP, err));
    int64_t begin_ns = sl_now_ns();
    SL_THEN(status, run_steps(b, r, b->options.steps, err));
    double ms = (double)(sl_now_ns() - begin_ns) / 1e6 / (double)b->options.steps;
    sl_rig_look_at_memory(&b->rig);
    SL_THEN_FAIL_IF(status, r->n_lost > 0, err, SL_ERR_DEADLINE, "%" PRId64 " layers were not answered within %d ms",
                    r->n_lost, DEADLINE_MS);
    if (status == SL_OK) {
        print_remote(b, r, ms);
    }
    close_remote(b, r);
    return status;
}

static enum sl_status measure_full(struct bench *b, int64_t n_tokens, struct sl_error *err) {
    struct sl_cell cell = {.n = n_tokens, .batch = 1};
    double seconds = 0;
    snprintf(cell.name, sizeof cell.name, "decode:%" PRId64, n_tokens);
    start(b, "full", n_tokens);
    enum sl_status status = sl_rig_open_cell(&b->rig, &cell, err);
    SL_THEN(status, sl_rig_warm_up(&b->rig, err));
    SL_THEN(status, sl_rig_run(&b->rig, &seconds, err));
    if (status == SL_OK) {
        struct sl_session_stats stats;
        sl_session_get_stats(b->rig.sessions[0], &stats);
        b->full_ms = seconds * 1e3 / (double)b->options.steps;
        b->full_bytes = (double)stats.resident_bytes;
        print(b, "ms/token", b->full_ms, "ms", 0, 0);
        print(b, "resident", b->full_bytes / (1 << 20), "MiB", 0, 0);
        print_memory(b);
    }
    sl_rig_close_cell(&b->rig);
    return status;
}

// Fills the store with random rows of the layers that the recipe offloads; this releases the previous filling.
static enum sl_status fill_store(struct bench *b, const char *recipe, int64_t n_tokens, struct sl_error *err) {
    struct sl_plan *plan = malloc(sizeof *plan);
    SL_FAIL_IF(plan == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_recipe_cell_plan(b->rig.runtime.config, recipe, n_tokens, plan, err);
    if (status == SL_OK) {
        struct sl_offloaded_heads offloaded_heads;
        sl_offloaded_heads_init(&offloaded_heads, &plan->recipe.offload, &plan->geometry);
        struct sl_store_filling filling = {.n_offloaded_heads = sl_offloaded_heads_count(&offloaded_heads),
                                           .head_dim = plan->geometry.head_dim,
                                           .n_tokens = n_tokens,
                                           .segment_tokens = 512,
                                           .rows = sl_plan_row_format(plan),
                                           .scan = sl_plan_scan_format(plan)};
        double seconds;
        status = sl_store_rig_fill(&b->store, &filling, &b->signals, &seconds, err);
    }
    free(plan);
    return status;
}

static enum sl_status measure_length(struct bench *b, int64_t n_tokens, struct sl_error *err) {
    enum sl_status status = measure_full(b, n_tokens, err);
    for (int i = 0; i < b->n_recipes && status == SL_OK; i++) {
        status = fill_store(b, b->recipes[i], n_tokens, err);
        SL_THEN(status, measure_remote(b, b->recipes[i], n_tokens, err));
    }
    return status;
}

// --- the whole -------------------------------------------------------------------------------------------------------

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    static const char *const defaults[] = {"tailorkv", "tailorkv-near,ahead=0", "tailorkv-near"};
    enum sl_status status = sl_store_rig_lengths(b->options.tokens, b->lengths, MAX_LENGTHS, &b->n_lengths, err);
    for (int i = 0; i < b->options.recipes.n; i++) {
        b->recipes[b->n_recipes++] = b->options.recipes.items[i];
    }
    for (size_t i = 0; b->options.recipes.n == 0 && i < sizeof defaults / sizeof defaults[0]; i++) {
        b->recipes[b->n_recipes++] = defaults[i];
    }
    for (int i = 0; i < b->n_recipes && status == SL_OK; i++) { // before a model is created
        struct sl_recipe recipe;
        status = sl_recipe_parse(b->recipes[i], &recipe, err);
        if (status == SL_OK && !sl_recipe_offloads(&recipe)) {
            status = sl_fail(err, SL_ERR_INVALID, "--recipe %s: offloads no layer; full is measured in any case",
                             b->recipes[i]);
        }
    }
    return status;
}

static enum sl_status open_rig(struct bench *b, struct sl_error *err) {
    struct sl_rig_config config = {.model_dir = b->options.model,
                                   .geometry = b->options.model == NULL ? &b->geometry : NULL,
                                   .device = b->options.device,
                                   .tier = b->options.tier,
                                   .chunk = SL_CELL_MAX_BATCH,
                                   .n_steps = b->options.steps,
                                   .signals = &b->signals};
    enum sl_status status = sl_team_create((int)b->options.threads, &b->team, err);
    config.team = b->team;
    return status == SL_OK ? sl_rig_open(&config, &b->rig, err) : status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    const struct sl_model_config *geometry = &b->geometry;
    enum sl_status status = b->options.model != NULL
                                ? sl_model_config_load(b->options.model, &b->geometry, err)
                                : sl_synthetic_config(b->options.geometry, b->options.layers, &b->geometry, err);
    if (status == SL_OK) { // all offloaded heads of the longest prompt, pages and key indexes, and an arriving segment
        int64_t numbers = b->lengths[b->n_lengths - 1] * geometry->n_layers * geometry->n_kv_heads * geometry->head_dim;
        char arena[32];
        snprintf(arena, sizeof arena, "%" PRId64 "M", (numbers * 7 >> 20) + 512);
        status = sl_store_rig_start(&b->store, b->options.transport, arena, &b->signals, err); // forks: before threads
    }
    if (status == SL_OK) {
        sl_rpc_init();
        status = sl_store_rig_connect(&b->store, b->options.transport, err);
        SL_THEN(status, open_rig(b, err));
        for (int i = 0; i < b->n_lengths && status == SL_OK; i++) {
            status = measure_length(b, b->lengths[i], err);
        }
        sl_rig_close(&b->rig);
        sl_team_destroy(&b->team);
    }
    sl_store_rig_close(&b->store);
    if (status == SL_OK) {
        sl_rpc_shutdown();
    }
    return status;
}

SL_BENCH(decode, "[options]",
         "Measure steps of decode whose layers are in a kvstore, beside steps with the full cache.", .check = check);
