// SPDX-License-Identifier: Apache-2.0
// One prompt, chunk by chunk. See reader.h.
#include "service/reader.h"

#include <stdlib.h>

#include "service/offload.h"

struct sl_reader {
    struct sl_plan plan;
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_offload *offload;
    const int32_t *tokens;
    struct sl_session *session;
    struct sl_compressor *compressor;
    bool finished; // every layer is final
    bool final[SL_MAX_LAYERS];
    int n_handed; // layers handed on: always the first ones, because a capsule has them in order
    size_t peak_bytes;
    int64_t most_tokens; // of a step that may end anywhere; 0: a chunk

    // Of the step that is running:
    sl_layer_final_fn layer_final;
    void *layer_final_arg;
    bool last_chunk;
    struct sl_error *err;
};

static bool has_offloaded(const struct sl_plan *plan) {
    bool any = false;
    for (int layer = 0; layer < plan->geometry.n_layers; layer++) {
        any |= sl_plan_is_offloaded(plan, layer);
    }
    return any;
}

enum sl_status sl_reader_create(const struct sl_reader_config *config, struct sl_reader **reader_out,
                                struct sl_error *err) {
    struct sl_reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "reader: out of memory");
    }
    reader->plan = *config->plan;
    reader->ops = config->ops;
    reader->team = config->team;
    reader->offload = config->offload;
    reader->tokens = config->tokens;
    enum sl_status status = sl_compressor_create(config->plan, config->ops, config->team, &reader->compressor, err);
    if (status == SL_OK && !config->offload && has_offloaded(config->plan)) {
        status =
            sl_fail(err, SL_ERR_INVALID, "reader: the plan has offloaded layers, and there is nowhere to put them");
    }
    if (status == SL_OK) {
        status = sl_compressor_estimate(reader->compressor, config->estimate_errors, err);
    }
    if (status == SL_OK && !config->resumed) {
        status = sl_plan_create_session(config->plan, config->extra_slots, config->arena, &reader->session, err);
    }
    if (status != SL_OK) {
        sl_reader_destroy(&reader);
        return status;
    }
    if (config->resumed) {
        reader->session = config->resumed;
    }
    *reader_out = reader;
    return SL_OK;
}

void sl_reader_destroy(struct sl_reader **reader) {
    if (*reader) {
        sl_session_destroy(&(*reader)->session);
        sl_compressor_destroy(&(*reader)->compressor);
        free(*reader);
        *reader = NULL;
    }
}

// Hand on every layer that is final and has no layer before it that is not.
static enum sl_status hand_on(struct sl_reader *reader) {
    enum sl_status status = SL_OK;
    while (status == SL_OK && reader->n_handed < reader->session->geometry.n_layers &&
           reader->final[reader->n_handed]) {
        if (reader->layer_final) {
            status = reader->layer_final(reader->layer_final_arg, reader->session, reader->n_handed);
        }
        reader->n_handed++;
    }
    return status;
}

static enum sl_status all_final(struct sl_reader *reader) {
    for (int layer = 0; layer < reader->session->geometry.n_layers; layer++) {
        reader->final[layer] = true;
    }
    return hand_on(reader);
}

// The engine's hook: compress the layer and, behind the last chunk, hand it on.
static enum sl_status after_attention(void *arg, int segment, int layer, const struct sl_attend *attend) {
    (void)segment; // a reader forwards one segment at a time
    struct sl_reader *reader = arg;
    struct sl_session_stats stats;
    sl_session_get_stats(reader->session, &stats);
    size_t bytes = stats.resident_bytes + (reader->offload ? sl_offload_arena_bytes(reader->offload) : 0);
    reader->peak_bytes = bytes > reader->peak_bytes ? bytes : reader->peak_bytes;
    enum sl_status status = sl_compressor_layer(reader->compressor, reader->session, layer, attend, reader->last_chunk,
                                                &reader->final[layer], reader->err);
    return status == SL_OK ? hand_on(reader) : status;
}

// A session that was resumed complete needs no chunk, only the finishing touches.
static enum sl_status finish_layers(struct sl_reader *reader) {
    enum sl_status status = SL_OK;
    for (int layer = 0; status == SL_OK && layer < reader->session->geometry.n_layers; layer++) {
        status = sl_compressor_finish_layer(reader->compressor, reader->session, layer, reader->err);
    }
    return status == SL_OK ? all_final(reader) : status;
}

// Of offloaded layers the session holds the newest slots alone.
static enum sl_status attend(void *arg, int layer, const struct sl_attend *attends, int n_segments) {
    struct sl_reader *reader = arg;
    if (sl_plan_is_offloaded(&reader->plan, layer)) {
        return sl_offload_attend(reader->offload, layer, attends, reader->err);
    }
    reader->ops->attend(reader->team, attends, n_segments);
    return SL_OK;
}

static enum sl_status read_chunk(struct sl_reader *reader, struct sl_engine *engine, int64_t end) {
    int64_t begin = reader->session->n_tokens;
    struct sl_compressor_wants wants = sl_compressor_wants(reader->compressor, false);
    struct sl_segment segment = {
        .session = reader->session, .tokens = reader->tokens + begin, .n_tokens = (int)(end - begin)};
    struct sl_layer_hook hook = {.fn = after_attention,
                                 .arg = reader,
                                 .want_lse = wants.lse,
                                 .want_importance = wants.importance,
                                 .attend_fn = reader->offload ? attend : NULL};
    enum sl_status status = sl_engine_forward(engine, &segment, 1, &hook, reader->err);
    if (status == SL_OK && reader->last_chunk) {
        status = sl_compressor_end(reader->compressor, reader->session, reader->err);
        status = status == SL_OK ? all_final(reader) : status;
    }
    return status;
}

int64_t sl_reader_shared_tokens(const struct sl_plan *plan) {
    // The chunk that ends the body is evicted for good, and its last rows may be the window that decides.
    int64_t shared = sl_plan_body_tokens(plan) - sl_recipe_observed_rows(&plan->recipe);
    return shared > 0 ? shared : 0;
}

/*
 * Chunks begin at multiples of the chunk size whatever was resumed, so that a resumed job repeats the original's steps;
 * where the prompt's tail begins, which is not compressed like its body; and never inside the window of rows that
 * decides what stays, so that it is seen whole. Where layers are offloaded no step goes over the end of a split: which
 * tokens its rows find in the stores is a matter of where they are, not of how the prompt is cut. (Where they are thinned it
 * is one of the chunks, splits are of slots, and stores keep them as they are read.)
 */
static int64_t next_end(const struct sl_reader *reader) {
    int64_t done = reader->session->n_tokens, total = reader->plan.n_prompt;
    int64_t chunk = reader->plan.recipe.chunk_tokens, body = sl_plan_body_tokens(&reader->plan);
    int64_t shared = sl_reader_shared_tokens(&reader->plan);
    int64_t end = (done / chunk + 1) * chunk;
    if (done < shared && shared < end && end < body) {
        end = shared;
    } else if (done < body && (body < end || (shared <= done && body - done <= chunk))) {
        end = body;
    }
    if (reader->offload && !sl_recipe_thins(&reader->plan.recipe) && done / SL_ATTEND_SPLIT != end / SL_ATTEND_SPLIT) {
        end = (done / SL_ATTEND_SPLIT + 1) * SL_ATTEND_SPLIT;
    }
    end = end < total ? end : total;
    bool anywhere = reader->most_tokens > 0 && !sl_recipe_evicts(&reader->plan.recipe);
    return anywhere && end - done > reader->most_tokens ? done + reader->most_tokens : end;
}

void sl_reader_limit_step(struct sl_reader *reader, int64_t n_tokens) {
    reader->most_tokens = n_tokens;
}

int64_t sl_reader_next_tokens(const struct sl_reader *reader) {
    return next_end(reader) - reader->session->n_tokens;
}

enum sl_status sl_reader_step(struct sl_reader *reader, struct sl_engine *engine, sl_layer_final_fn layer_final,
                              void *arg, bool *done_out, struct sl_error *err) {
    int64_t end = next_end(reader);
    reader->layer_final = layer_final;
    reader->layer_final_arg = arg;
    reader->last_chunk = end == reader->plan.n_prompt;
    reader->err = err;

    enum sl_status status = SL_OK;
    if (reader->session->n_tokens < reader->plan.n_prompt) {
        status = read_chunk(reader, engine, end);
    } else if (!reader->finished) {
        status = finish_layers(reader);
    }
    if (status == SL_OK) {
        reader->finished = reader->last_chunk;
        *done_out = reader->last_chunk;
    }
    return status;
}

struct sl_session *sl_reader_session(struct sl_reader *reader) {
    return reader->session;
}

struct sl_session *sl_reader_take_session(struct sl_reader *reader) {
    struct sl_session *session = reader->session;
    reader->session = NULL;
    return session;
}

size_t sl_reader_peak_bytes(const struct sl_reader *reader) {
    return reader->peak_bytes;
}

void sl_reader_get_stats(const struct sl_reader *reader, struct sl_compress_stats *stats_out) {
    sl_compressor_get_stats(reader->compressor, stats_out);
}

void sl_reader_get_errors(const struct sl_reader *reader, struct sl_error_statistics *errors_out) {
    sl_error_statistics_read(reader->compressor, errors_out);
}
