// SPDX-License-Identifier: Apache-2.0
#include "lab/measure/perplexity.h"

#include <stdlib.h>

#include "engine/compress/plan/plan.h"
#include "lab/measure/fidelity.h"
#include "engine/runner/reading.h"
#include "engine/runner/writing.h"

// --- which recipes stream --------------------------------------------------------------------------------------------

static enum sl_status check_formats(const struct sl_recipe *recipe, struct sl_error *err) {
    enum sl_kv_format quantized = recipe->format;
    for (int i = 0; i < recipe->n_ranges && !sl_kv_format_is_quantized(quantized); i++) {
        quantized = recipe->ranges[i].format;
    }
    if (!sl_kv_format_is_quantized(quantized)) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID,
                   "format=%s is what a prompt becomes when all of it has been read, and a stream has no end; use "
                   "format=f32, f16 or bf16",
                   sl_kv_format_name(quantized));
}

static enum sl_status check(const struct sl_recipe *recipe, int chunk, struct sl_error *err) {
    SL_FAIL_IF(sl_recipe_offloads(recipe), err, SL_ERR_INVALID,
               "place=offload searches a prompt that has been read, and a stream has none; use place=resident");
    enum sl_status status = check_formats(recipe, err);
    if (status != SL_OK || !sl_recipe_evicts(recipe)) {
        return status;
    }
    SL_FAIL_IF(!(recipe->when & (SL_WHEN_CHUNK | SL_WHEN_STEP)), err, SL_ERR_INVALID,
               "when=end evicts at the end of a prompt alone, and a stream has no end; use when=chunk, or "
               "when=end+step");
    SL_FAIL_IF(recipe->layers != SL_LAYERS_UNIFORM && recipe->layers != SL_LAYERS_PYRAMID, err, SL_ERR_INVALID,
               "layers=d2o divides the budget at the end of a prompt, and a stream has no end; use "
               "layers=uniform or pyramid");
    SL_FAIL_IF(sl_recipe_observed_rows(recipe) > chunk, err, SL_ERR_INVALID,
               "window=%d is longer than the stream's chunks of %d tokens; lower window, or raise --chunk",
               recipe->window, chunk);
    return SL_OK;
}

// --- the stream ------------------------------------------------------------------------------------------------------

struct stream {
    const struct sl_perplexity_config *config;
    // If the recipe evicts only at steps, the writer reads the text; otherwise the reader does, without an end.
    struct sl_reader *reader;
    struct sl_writer writer;
    struct sl_session *session; // of the reader or the writer
    float *logits;              // [chunk][n_vocab]
};

static enum sl_status stream_open(struct stream *s, const struct sl_recipe *recipe, struct sl_error *err) {
    const struct sl_perplexity_config *c = s->config;
    const struct sl_eval_model *m = c->model;
    struct sl_kv_geometry geometry = sl_model_geometry(m->runtime.config);
    struct sl_recipe streaming = *recipe;
    streaming.tail = 0;
    streaming.chunk_tokens = (c->chunk + SL_PAGE_SLOTS - 1) / SL_PAGE_SLOTS * SL_PAGE_SLOTS; // room for one chunk
    bool writes = sl_recipe_evicts(recipe) && !(recipe->when & SL_WHEN_CHUNK);
    struct sl_plan *plan = malloc(sizeof *plan);
    s->logits = malloc((size_t)c->chunk * (size_t)m->runtime.config->n_vocab * sizeof *s->logits);
    enum sl_status status =
        plan && s->logits ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for %d rows of logits", c->chunk);
    if (status == SL_OK) {
        int rope_set = sl_model_rope_set(m->runtime.config, c->n_tokens);
        status = sl_plan_make_local(&streaming, &geometry, c->n_tokens, rope_set, plan, err);
    }
    if (status == SL_OK && !writes) {
        struct sl_reader_config config = {.plan = plan, .runtime = &m->runtime, .arena = m->arena, .tokens = c->tokens};
        status = sl_reader_create(&config, &s->reader, err);
    } else if (status == SL_OK) {
        status = sl_plan_create_session(plan, 0, m->arena, &s->writer.session, err);
        SL_THEN(status, sl_writer_open(&s->writer, &m->runtime, &(struct sl_writer_config){.plan = plan}, err));
    }
    if (status == SL_OK) {
        s->session = s->reader ? sl_reader_session(s->reader) : s->writer.session;
    }
    free(plan);
    return status;
}

static void stream_close(struct stream *s) {
    sl_reader_destroy(&s->reader);
    sl_writer_close(&s->writer);
    free(s->logits);
}

static enum sl_status read_chunk(struct stream *s, int n, double *nll_out, struct sl_error *err) {
    const struct sl_perplexity_config *c = s->config;
    int64_t n_vocab = c->model->runtime.config->n_vocab;
    const int32_t *tokens = c->tokens + s->session->n_tokens;
    enum sl_status status;
    if (s->reader) {
        bool done;
        sl_reader_feed(s->reader, n, s->logits);
        status = sl_reading_step(s->reader, &done, err);
    } else {
        sl_writer_feed(&s->writer, tokens, n, NULL);
        s->writer.input.all_logits = s->logits;
        status = sl_writing_step(&c->model->runtime, &s->writer, err);
    }
    for (int r = 0; r < n && status == SL_OK; r++) {
        nll_out[r] = sl_negative_log_likelihood(s->logits + r * n_vocab, n_vocab, tokens[r + 1]);
    }
    return status;
}

enum sl_status sl_perplexity_measure(const struct sl_perplexity_config *config, const struct sl_recipe *recipe,
                                     double *nll_out, struct sl_perplexity_result *result_out, struct sl_error *err) {
    struct stream s = {.config = config};
    struct sl_session_stats stats = {0};
    int64_t most = 0;
    enum sl_status status = check(recipe, config->chunk, err);
    SL_THEN(status, stream_open(&s, recipe, err));
    for (int64_t i = 0; i < config->n_tokens && status == SL_OK; i += config->chunk) {
        int n = (int)(config->n_tokens - i < config->chunk ? config->n_tokens - i : config->chunk);
        most = stats.n_slots_max + n > most ? stats.n_slots_max + n : most;
        status = read_chunk(&s, n, nll_out + i, err);
        if (status == SL_OK) {
            sl_session_get_stats(s.session, &stats);
            status = config->progress_fn ? config->progress_fn(config->arg, i + n, config->n_tokens) : SL_OK;
        }
    }
    stream_close(&s);
    if (status == SL_OK) {
        *result_out = (struct sl_perplexity_result){stats.n_slots_mean, most};
    }
    return status;
}
