// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reports the peak device memory of reading a prompt, without a device and without computing: weights,
 *          scratch, and pages, chunk by chunk as the recipe evicts them.
 *
 * Design: the workers' own code runs on an emulated device that only counts requests. So the result is what the code
 *         allocates, independent of any formula. The arena has the size that admission reserves for the prompt
 *         (sl_plan.prefill_peak_bytes). --compute runs everything on the emulated device, for a test that compares
 *         the two. Not included: memory that the driver and its libraries use on a GPU.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message_json.h"
#include "engine/job/job_recipe.h"
#include "engine/kvcache/capsule.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/recipe_cell.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/random.h"
#include "base/options/config.h"
#include "engine/runtime/plugin.h"
#include "engine/runtime/transfer.h"

struct options {
    const char *model, *geometry, *weights, *recipe;
    int64_t n_tokens, retaining, threads;
    bool compute, json;
};

static const struct sl_option option_table[] = {
    SL_MODEL_OPTION(options, model, "demo"),
    {"geometry", 0, SL_OPTION_STRING, NULL, "NAME", "a model of that size instead, all of its layers: 135m, 1b or 8b",
     SL_FIELD(options, geometry)},
    {"retaining-heads", 0, SL_OPTION_INT, "1024", "N", "with --geometry: rows of its retaining heads; 0: no heads",
     SL_FIELD(options, retaining), 0, 65536},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "stored, int8 or int4", SL_FIELD(options, weights)},
    {"recipe", 'r', SL_OPTION_STRING, "full", "RECIPE", "recipe of the prompt", SL_FIELD(options, recipe)},
    {"tokens", 0, SL_OPTION_INT, "131072", "N", "length of the prompt", SL_FIELD(options, n_tokens), 1, 1 << 24},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one per processor", SL_FIELD(options, threads), 0, 1024},
    {"compute", 0, SL_OPTION_FLAG, "no", NULL, "do it all, on the emulated device: small models and short prompts",
     SL_FIELD(options, compute)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "as JSON", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    const struct sl_plugin_counts *device; // of the emulated device
    struct sl_runtime runtime;
    struct sl_recipe recipe; // as written: determines the engine's rows
    struct sl_plan *plan;
    int32_t *tokens;
    size_t weights; // and everything else allocated before the arena, except the engine's activations
    size_t held;    // most bytes of the session's pages
    size_t capsule; // bytes that are shipped
    struct sl_signals signals;
};

static enum sl_status open_model(struct bench *b, const char *dir, struct sl_error *err) {
    struct sl_runtime_config config = {
        .model_dir = dir, .device = "emulated", .threads = (int)b->options.threads, .max_rows = b->recipe.chunk_tokens};
    SL_TRY(sl_weight_format_parse(b->options.weights, &config.weights, err));
    SL_TRY(sl_runtime_open(&config, &b->runtime, err));
    b->weights = b->device->bytes() - sl_engine_bytes(b->runtime.engine);
    return SL_OK;
}

static enum sl_status make_plan(struct bench *b, struct sl_error *err) {
    const struct sl_model_config *model = b->runtime.config;
    SL_FAIL_IF(b->options.n_tokens > model->max_positions, err, SL_ERR_INVALID,
               "--tokens %" PRId64 ": the model has %" PRId64 " positions", b->options.n_tokens, model->max_positions);
    enum sl_status status = sl_job_recipe(b->options.recipe, model, &b->recipe, err);
    SL_FAIL_IF(status == SL_OK && sl_recipe_offloads(&b->recipe), err, SL_ERR_UNSUPPORTED,
               "%s: what is offloaded needs stores", b->options.recipe);
    b->plan = malloc(sizeof *b->plan);
    SL_FAIL_IF(b->plan == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    return status == SL_OK ? sl_recipe_cell_plan(model, b->options.recipe, b->options.n_tokens, b->plan, err) : status;
}

static enum sl_status make_tokens(struct bench *b, struct sl_error *err) {
    uint64_t random = 1;
    b->tokens = calloc((size_t)b->options.n_tokens, sizeof *b->tokens);
    SL_FAIL_IF(b->tokens == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    for (int64_t i = 0; i < b->options.n_tokens; i++) {
        b->tokens[i] = (int32_t)((sl_random_mmix(&random) >> 33) % (uint64_t)b->runtime.config->n_vocab);
    }
    return SL_OK;
}

// Ships to the decode worker: that data also passes through device blocks.
static enum sl_status ship(struct bench *b, const struct sl_session *session, struct sl_error *err) {
    b->capsule = sl_capsule_body_bytes(session);
    void *body = sl_device_alloc(b->runtime.device, SL_MEMORY_SHARED, b->capsule);
    SL_FAIL_IF(body == NULL, err, SL_ERR_EXHAUSTED, "no %zu bytes of host memory for the capsule", b->capsule);
    enum sl_status status = sl_transfer_body_out(&b->runtime, session, body, err);
    sl_device_free(b->runtime.device, SL_MEMORY_SHARED, body);
    return status;
}

static enum sl_status read_prompt(struct bench *b, struct sl_error *err) {
    struct sl_reader_config config = {
        .plan = b->plan, .runtime = &b->runtime, .arena = b->runtime.arena, .tokens = b->tokens};
    struct sl_reader *reader;
    enum sl_status status = sl_recipe_cell_read(&config, &b->signals, &reader, err);
    if (status == SL_OK) {
        b->held = sl_reader_peak_bytes(reader);
        status = ship(b, sl_reader_session(reader), err);
    }
    sl_reader_destroy(&reader);
    return status;
}

static void print(const struct bench *b) {
    size_t weights = b->weights, engine = sl_engine_bytes(b->runtime.engine);
    size_t arena = b->plan->prefill_peak_bytes, peak = b->device->most_bytes();
    size_t rest = peak - weights - engine - arena;
    if (b->options.json) {
        json_t *line = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "bench", "memory", "model",
                                 b->options.geometry != NULL ? b->options.geometry : b->options.model, "recipe",
                                 b->options.recipe, "tokens", b->options.n_tokens, "weight_bytes", (json_int_t)weights,
                                 "engine_bytes", (json_int_t)engine, "arena_bytes", (json_int_t)arena, "held_bytes",
                                 (json_int_t)b->held, "capsule_bytes", (json_int_t)b->capsule, "other_bytes",
                                 (json_int_t)rest, "peak_bytes", (json_int_t)peak);
        sl_json_print(line, 0, stdout);
        return;
    }
    printf("%s, %" PRId64 " tokens, %s: %.3f GB of device memory\n", b->options.recipe, b->options.n_tokens,
           b->options.geometry != NULL ? b->options.geometry : b->options.model, (double)peak / 1e9);
    printf("  weights %.3f, activations %.3f, arena %.3f (%.3f of it held), scratch and blocks on their way out %.3f; "
           "the capsule has %.3f\n",
           (double)weights / 1e9, (double)engine / 1e9, (double)arena / 1e9, (double)b->held / 1e9, (double)rest / 1e9,
           (double)b->capsule / 1e9);
}

static enum sl_status run_model(struct bench *b, const char *dir, struct sl_error *err) {
    enum sl_status status = open_model(b, dir, err);
    SL_THEN(status, make_plan(b, err));
    SL_THEN(status, sl_runtime_open_arena(&b->runtime, b->plan->prefill_peak_bytes, err));
    SL_THEN(status, make_tokens(b, err));
    SL_THEN(status, read_prompt(b, err));
    if (status == SL_OK) {
        print(b);
    }
    free(b->tokens);
    free(b->plan);
    sl_runtime_close(&b->runtime);
    return status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    char dir[SL_SYNTHETIC_PATH_BYTES];
    const struct sl_plugin *plugin;
    SL_TRY(sl_plugin_find("emulated", &plugin, err));
    b->device = plugin->counts;
    if (!b->options.compute) {
        b->device->only();
    }
    if (b->options.geometry == NULL) {
        return run_model(b, b->options.model, err);
    }
    struct sl_model_config config;
    SL_TRY(sl_synthetic_config(b->options.geometry, 0, &config, err));
    config.n_layers = sl_synthetic_find(b->options.geometry)->all_layers;
    config.retaining_hidden = (int)b->options.retaining;
    SL_TRY(sl_synthetic_create(&config, SL_SYNTHETIC_EMPTY, NULL, dir, err));
    enum sl_status status = run_model(b, dir, err);
    sl_synthetic_remove(dir);
    return status;
}

static enum sl_status check(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    return sl_recipe_parse(b->options.recipe, &b->recipe, err);
}

SL_BENCH(memory, "[options]",
         "How much of a device's memory the reading of a prompt takes at most. Nothing is computed.", .counts = true,
         .check = check);
