// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/recipe_cell.h"

#include <stdlib.h>

#include "base/clock.h"
#include "engine/compress/evict/compressor.h"
#include "engine/job/job_recipe.h"
#include "lab/result.h"
#include "engine/runner/reading.h"
#include "engine/runner/writing.h"
#include "engine/tensor/timed/timed.h"

#define WARM_UP_CHUNKS 2 // of a prompt
#define WARM_UP_STEPS  3

enum sl_status sl_recipe_chunk(const char *recipe, int64_t *tokens_out, struct sl_error *err) {
    struct sl_recipe parsed;
    SL_TRY(sl_recipe_parse(recipe, &parsed, err));
    *tokens_out = parsed.chunk_tokens;
    return SL_OK;
}

bool sl_recipe_cell_repeats(const char *recipe) {
    struct sl_recipe parsed;
    return sl_recipe_parse(recipe, &parsed, NULL) == SL_OK && sl_recipe_repeats(&parsed);
}

enum sl_status sl_recipe_cell_plan(const struct sl_model_config *model, const char *recipe, int64_t n_tokens,
                                   struct sl_plan *plan_out, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(model);
    struct sl_recipe parsed;
    enum sl_status status = sl_job_recipe(recipe, model, &parsed, err);
    return status == SL_OK
               ? sl_plan_make(&parsed, &geometry, n_tokens, sl_model_rope_set(model, n_tokens), plan_out, err)
               : status;
}

enum sl_status sl_recipe_cell_read(const struct sl_reader_config *config, struct sl_signals *signals,
                                   struct sl_reader **reader_out, struct sl_error *err) {
    *reader_out = NULL;
    enum sl_status status = sl_reader_create(config, reader_out, err);
    for (bool done = false; status == SL_OK && !done;) {
        status = sl_signals_check(signals, err);
        SL_THEN(status, sl_reading_step(*reader_out, &done, err));
    }
    return status;
}

// --- prefill -----------------------------------------------------------------------------------------------------------

static enum sl_status read_prompt(struct sl_rig *rig, const struct sl_plan *plan, double *seconds_out,
                                  struct sl_error *err) {
    struct sl_reader_config config = {
        .plan = plan, .runtime = &rig->runtime, .arena = rig->arena, .tokens = rig->tokens};
    struct sl_reader *reader;
    int64_t begin = sl_timed_now_ns();
    enum sl_status status = sl_recipe_cell_read(&config, rig->config.signals, &reader, err);
    SL_THEN(status, sl_stream_wait(rig->runtime.stream, err));
    *seconds_out = (double)(sl_timed_now_ns() - begin) / SL_NS_PER_S;
    sl_rig_look_at_memory(rig);
    sl_reader_destroy(&reader);
    return status;
}

static enum sl_status run_prefill(struct sl_rig *rig, const char *recipe, const struct sl_plan *plan, int64_t n_runs,
                                  double *seconds_out, struct sl_error *err) {
    int64_t n = plan->n_prompt, short_n = WARM_UP_CHUNKS * plan->recipe.chunk_tokens;
    double ignored;
    struct sl_plan *warm_up = malloc(sizeof *warm_up);
    SL_FAIL_IF(warm_up == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_rig_open_arena(rig, plan->prefill_peak_bytes, err);
    SL_THEN(status, sl_recipe_cell_plan(rig->runtime.config, recipe, n < short_n ? n : short_n, warm_up, err));
    SL_THEN(status,
            warm_up->prefill_peak_bytes <= plan->prefill_peak_bytes ? read_prompt(rig, warm_up, &ignored, err) : SL_OK);
    for (int64_t run = 0; run < n_runs && status == SL_OK; run++) {
        sl_bench_progress("%s %s: run %lld of %lld", rig->cell.name, recipe, (long long)run + 1, (long long)n_runs);
        status = read_prompt(rig, plan, &seconds_out[run], err);
    }
    free(warm_up);
    return status;
}

// --- decode ------------------------------------------------------------------------------------------------------------

size_t sl_recipe_cell_unpacked_bytes(const struct sl_plan *plan) {
    size_t most = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        size_t bytes = sl_plan_is_offloaded(plan, l)
                           ? 0
                           : (size_t)plan->geometry.n_kv_heads * (sl_pages_for(sl_plan_layer_slots(plan, l, 0)) + 1) *
                                 (plan->work[l].bytes + SL_ARENA_UNIT);
        most = bytes > most ? bytes : most;
    }
    return most;
}

enum sl_status sl_recipe_cell_fill(struct sl_rig *rig, const struct sl_plan *plan, int64_t n_new,
                                   struct sl_session **session_out, struct sl_error *err) {
    struct sl_compressor *compressor = NULL;
    enum sl_status status = sl_plan_create_session(plan, n_new, rig->arena, session_out, err);
    if (status == SL_OK) {
        (*session_out)->n_tokens = plan->n_prompt;
        status = sl_compressor_create(plan, rig->runtime.ops, rig->runtime.stream, &compressor, err);
    }
    for (int l = 0; l < plan->geometry.n_layers && status == SL_OK; l++) {
        if (!sl_plan_is_offloaded(plan, l)) {
            int64_t n_slots = sl_plan_layer_slots(plan, l, 0);
            status = sl_rig_fill_layer(rig, *session_out, l, n_slots, err);
            SL_THEN(status, sl_compressor_finish_layer(compressor, *session_out, l, err));
        }
    }
    sl_compressor_destroy(&compressor);
    return status;
}

static enum sl_status write_tokens(struct sl_rig *rig, struct sl_writer *const *writers, int64_t n_steps,
                                   struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n_steps && status == SL_OK; i++) {
        for (int s = 0; s < rig->cell.batch; s++) {
            sl_writer_feed(writers[s], rig->tokens + s, 1, NULL);
            writers[s]->input.logits = rig->logits + (int64_t)s * rig->runtime.config->n_vocab;
        }
        status = sl_writing_pass(&rig->runtime, writers, rig->cell.batch, err);
        for (int s = 0; s < rig->cell.batch && status == SL_OK; s++) {
            status = sl_writer_status(writers[s], err);
        }
        SL_THEN(status, sl_signals_check(rig->config.signals, err));
    }
    return status;
}

static enum sl_status open_writers(struct sl_rig *rig, const struct sl_plan *plan, int64_t n_new,
                                   struct sl_writer *const *writers, struct sl_error *err) {
    size_t bytes = (size_t)rig->cell.batch * (sl_plan_decode_bytes(plan, n_new) + SL_ARENA_UNIT) +
                   2 * sl_recipe_cell_unpacked_bytes(plan);
    struct sl_writer_config writing = {.plan = plan, .n_read = plan->n_prompt};
    bytes *=
        rig->runtime.device->ops->one_memory ? 2 : 1; // packing leaves gaps; pages that are not touched cost nothing
    enum sl_status status = sl_rig_open_arena(rig, (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT, err);
    for (int s = 0; s < rig->cell.batch && status == SL_OK; s++) {
        sl_bench_progress("%s: session %d of %d", rig->cell.name, s + 1, rig->cell.batch);
        status = sl_recipe_cell_fill(rig, plan, n_new, &writers[s]->session, err);
        SL_THEN(status, sl_writer_open(writers[s], &rig->runtime, &writing, err));
    }
    return status;
}

static enum sl_status run_decode(struct sl_rig *rig, const struct sl_plan *plan, int64_t n_runs, double *seconds_out,
                                 struct sl_error *err) {
    struct sl_writer *writers[SL_CELL_MAX_BATCH];
    int64_t n_new = WARM_UP_STEPS + n_runs * rig->config.n_steps;
    struct sl_writer *block = calloc((size_t)rig->cell.batch, sizeof *block);
    SL_FAIL_IF(block == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    for (int s = 0; s < rig->cell.batch; s++) {
        writers[s] = &block[s];
    }
    enum sl_status status = open_writers(rig, plan, n_new, writers, err);
    SL_THEN(status, write_tokens(rig, writers, WARM_UP_STEPS, err));
    for (int64_t run = 0; run < n_runs && status == SL_OK; run++) {
        int64_t begin = sl_timed_now_ns();
        status = write_tokens(rig, writers, rig->config.n_steps, err);
        seconds_out[run] = (double)(sl_timed_now_ns() - begin) / SL_NS_PER_S;
        sl_rig_look_at_memory(rig);
    }
    for (int s = 0; s < rig->cell.batch; s++) {
        sl_writer_close(writers[s]);
    }
    free(block);
    return status;
}

// --- either ------------------------------------------------------------------------------------------------------------

enum sl_status sl_recipe_cell_run(struct sl_rig *rig, const char *recipe, const struct sl_cell *cell, int64_t n_runs,
                                  double *seconds_out, struct sl_error *err) {
    struct sl_plan *plan = malloc(sizeof *plan);
    SL_FAIL_IF(plan == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    rig->cell = *cell;
    enum sl_status status = sl_recipe_cell_plan(rig->runtime.config, recipe, cell->n, plan, err);
    SL_THEN_FAIL_IF(status, sl_recipe_offloads(&plan->recipe), err, SL_ERR_UNSUPPORTED,
                    "%s: what is offloaded needs a store: `sluice bench decode`", recipe);
    SL_THEN(status, sl_rig_make_tokens(rig, err));
    SL_THEN(status, cell->prefill ? run_prefill(rig, recipe, plan, n_runs, seconds_out, err)
                                  : run_decode(rig, plan, n_runs, seconds_out, err));
    sl_rig_close_cell(rig);
    free(plan);
    return status;
}
