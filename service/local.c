// SPDX-License-Identifier: Apache-2.0
// Read, compress, write, in one process. See local.h.
#include "service/local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "kvcache/kvcache.h"
#include "service/reader.h"

struct sl_local {
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    struct sl_engine *engine;
    void *memory;
    size_t memory_bytes;
    struct sl_arena *arena;
    float *logits;
    int max_chunk_tokens;
};

enum sl_status sl_local_open(const struct sl_local_config *config, struct sl_local **local_out, struct sl_error *err) {
    struct sl_local *local = calloc(1, sizeof *local);
    if (!local) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "local: out of memory");
    }
    local->max_chunk_tokens = config->max_chunk_tokens ? config->max_chunk_tokens : 2048;
    local->memory_bytes = config->arena_bytes ? config->arena_bytes : (size_t)1 << 30;
    local->memory =
        mmap(NULL, local->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (local->memory == MAP_FAILED) {
        local->memory = NULL;
        sl_local_close(&local);
        return sl_fail(err, SL_ERR_EXHAUSTED, "local: no address space for an arena of %zu bytes", config->arena_bytes);
    }
    enum sl_status status = sl_ops_select(config->tier, &local->ops, err);
    if (status == SL_OK) {
        status = sl_team_create(config->threads, &local->team, err);
    }
    if (status == SL_OK) {
        status = sl_model_load(config->model_dir, local->ops, local->team, &local->model, err);
    }
    if (status == SL_OK) {
        status = sl_tokenizer_load(config->model_dir, &local->tokenizer, err);
    }
    if (status == SL_OK) {
        status = sl_engine_create(local->model, local->team, local->max_chunk_tokens, &local->engine, err);
    }
    if (status == SL_OK) {
        status = sl_arena_create(local->memory, local->memory_bytes, &local->arena, err);
    }
    if (status == SL_OK) {
        size_t n_vocab = (size_t)sl_model_get_config(local->model)->n_vocab;
        local->logits = aligned_alloc(64, (n_vocab * sizeof(float) + 63) / 64 * 64);
        status = local->logits ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "local: out of memory");
    }
    if (status != SL_OK) {
        sl_local_close(&local);
        return status;
    }
    *local_out = local;
    return SL_OK;
}

void sl_local_close(struct sl_local **local_inout) {
    struct sl_local *local = *local_inout;
    if (!local) {
        return;
    }
    free(local->logits);
    sl_arena_destroy(&local->arena);
    sl_engine_destroy(&local->engine);
    sl_tokenizer_destroy(&local->tokenizer);
    sl_model_destroy(&local->model);
    sl_team_destroy(&local->team);
    if (local->memory) {
        munmap(local->memory, local->memory_bytes);
    }
    free(local);
    *local_inout = NULL;
}

const struct sl_tokenizer *sl_local_tokenizer(const struct sl_local *local) {
    return local->tokenizer;
}
const struct sl_model_config *sl_local_model(const struct sl_local *local) {
    return sl_model_get_config(local->model);
}

static enum sl_status check(const struct sl_local *local, const struct sl_local_request *request,
                            struct sl_error *err) {
    const struct sl_model_config *model = sl_local_model(local);
    if (request->n_prompt < 1) {
        return sl_fail(err, SL_ERR_INVALID, "prompt: empty");
    }
    if (request->n_prompt + request->max_new_tokens > model->max_positions) {
        return sl_fail(
            err, SL_ERR_INVALID, "prompt of %lld tokens and max_new_tokens %lld exceed the model's %lld positions",
            (long long)request->n_prompt, (long long)request->max_new_tokens, (long long)model->max_positions);
    }
    return SL_OK;
}

// All but the last prompt token, through the recipe. *session_out is the caller's.
static enum sl_status read_prompt(struct sl_local *local, const struct sl_local_request *request,
                                  struct sl_local_result *result, struct sl_session **session_out,
                                  struct sl_error *err) {
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_kv_geometry geometry = sl_model_geometry(sl_local_model(local));
    int64_t n_read = request->n_prompt - 1;
    enum sl_status status = sl_recipe_parse(request->recipe, &recipe, err);
    if (status == SL_OK && recipe.chunk_tokens > local->max_chunk_tokens) {
        status = sl_fail(err, SL_ERR_INVALID, "recipe: chunk=%d is more than %d", recipe.chunk_tokens,
                         local->max_chunk_tokens);
    }
    if (status == SL_OK) {
        status = sl_plan_make(&recipe, &geometry, n_read > 0 ? n_read : 1, &plan, err);
    }
    if (status != SL_OK) {
        return status;
    }
    result->full_bytes = (size_t)n_read * (size_t)geometry.n_layers * (size_t)geometry.n_kv_heads *
                         (size_t)geometry.head_dim * 2 * sizeof(uint16_t);
    if (n_read == 0) {
        return sl_plan_create_session(&plan, request->max_new_tokens + 1, local->arena, session_out, err);
    }
    struct sl_reader *reader;
    struct sl_reader_config config = {.plan = &plan,
                                      .arena = local->arena,
                                      .ops = local->ops,
                                      .team = local->team,
                                      .tokens = request->prompt,
                                      .extra_slots = request->max_new_tokens + 1};
    status = sl_reader_create(&config, &reader, err);
    if (status != SL_OK) {
        return status;
    }
    for (bool done = false; status == SL_OK && !done;) {
        status = sl_reader_step(reader, local->engine, NULL, NULL, &done, err);
        if (status == SL_OK && request->progress_fn) {
            status = request->progress_fn(request->arg, sl_reader_session(reader)->n_tokens, n_read);
        }
    }
    if (status == SL_OK) {
        struct sl_compress_stats stats;
        sl_reader_get_stats(reader, &stats);
        result->slots_evicted = stats.slots_evicted;
        struct sl_session_stats session;
        sl_session_get_stats(sl_reader_session(reader), &session);
        result->slots_per_head = session.n_slots_mean;
        result->capsule_bytes = sl_capsule_body_bytes(sl_reader_session(reader));
        *session_out = sl_reader_take_session(reader);
    }
    sl_reader_destroy(&reader);
    return status;
}

static enum sl_status write_answer(struct sl_local *local, const struct sl_local_request *request,
                                   struct sl_writer *writer, struct sl_session *session, int64_t began_ns,
                                   struct sl_local_result *result, struct sl_error *err) {
    int32_t token = request->prompt[request->n_prompt - 1];
    int64_t first_ns = 0;
    struct sl_written written = {0};
    while (written.stop == SL_STOP_NONE) {
        struct sl_segment segment = {.session = session, .tokens = &token, .n_tokens = 1, .logits = local->logits};
        enum sl_status status = sl_engine_forward(local->engine, &segment, 1, NULL, err);
        if (status == SL_OK) {
            status = sl_writer_next(writer, local->logits, &written, err);
        }
        if (status == SL_OK && request->token_fn) {
            status = request->token_fn(request->arg, &written);
        }
        if (status != SL_OK) {
            return status;
        }
        first_ns = first_ns ? first_ns : sl_now_ns();
        token = written.token.id;
    }
    int64_t now = sl_now_ns();
    struct sl_session_stats stats;
    sl_session_get_stats(session, &stats);
    result->stop = written.stop;
    result->decode_resident_bytes = stats.resident_bytes;
    result->n_output_tokens = sl_writer_n_tokens(writer);
    result->ttft_ms = (double)(first_ns - began_ns) / SL_NS_PER_MS;
    result->total_ms = (double)(now - began_ns) / SL_NS_PER_MS;
    result->tpot_ms = result->n_output_tokens > 1
                          ? (double)(now - first_ns) / SL_NS_PER_MS / (double)(result->n_output_tokens - 1)
                          : 0;
    result->text = strdup(sl_writer_text(writer));
    return result->text ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "local: out of memory");
}

enum sl_status sl_local_generate(struct sl_local *local, const struct sl_local_request *request,
                                 struct sl_local_result *result_out, struct sl_error *err) {
    struct sl_local_result result = {0};
    struct sl_writer *writer = NULL;
    struct sl_session *session = NULL;
    struct sl_writer_config config = {.tokenizer = local->tokenizer,
                                      .model = sl_local_model(local),
                                      .sampling = request->sampling,
                                      .max_new_tokens = request->max_new_tokens,
                                      .ignore_eos = request->ignore_eos,
                                      .stops = request->stops,
                                      .n_stops = request->n_stops,
                                      .prompt = request->prompt,
                                      .n_prompt = request->n_prompt};
    int64_t began_ns = sl_now_ns();
    enum sl_status status = check(local, request, err);
    if (status == SL_OK) {
        status = sl_writer_create(&config, &writer, err);
    }
    if (status == SL_OK) {
        sl_arena_reset_high_water(local->arena);
        status = read_prompt(local, request, &result, &session, err);
    }
    if (status == SL_OK) {
        struct sl_arena_stats arena;
        sl_arena_get_stats(local->arena, &arena);
        result.prefill_peak_bytes = arena.high_water_bytes;
        result.prefill_ms = (double)(sl_now_ns() - began_ns) / SL_NS_PER_MS;
        status = write_answer(local, request, writer, session, began_ns, &result, err);
    }
    sl_session_destroy(&session);
    sl_writer_destroy(&writer);
    if (status == SL_OK) {
        *result_out = result;
    }
    return status;
}
