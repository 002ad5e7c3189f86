// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>

#include "engine/runner/join.h"
#include "engine/runner/reader_internal.h"
#include "engine/runner/repeat.h"

static bool has_offloaded(const struct sl_plan *plan) {
    bool any = false;
    for (int layer = 0; layer < plan->geometry.n_layers; layer++) {
        any |= sl_plan_is_offloaded(plan, layer);
    }
    return any;
}

static enum sl_status open_reader(struct sl_reader *reader, const struct sl_reader_config *config,
                                  struct sl_error *err) {
    const struct sl_runtime *runtime = config->runtime;
    reader->plan = malloc(sizeof *reader->plan);
    SL_FAIL_IF(!reader->plan, err, SL_ERR_EXHAUSTED, "reader: out of memory");
    *reader->plan = *config->plan;
    SL_TRY(sl_compressor_create(reader->plan, runtime->ops, runtime->stream, &reader->compressor, err));
    SL_FAIL_IF(!config->attends_elsewhere && has_offloaded(reader->plan), err, SL_ERR_INVALID,
               "reader: the plan has offloaded layers, and there is nowhere to put them");
    SL_TRY(sl_compressor_estimate(reader->compressor, config->estimate_errors, err));
    if (sl_recipe_repeats(&reader->plan->recipe)) {
        SL_TRY(sl_repeat_open(reader, err));
    }
    if (config->n_joins > 0) {
        assert(config->resumed && config->n_joins <= SL_MAX_JOINS);
        SL_TRY(sl_join_check(config, config->resumed, err));
    }
    if (!config->resumed) {
        SL_TRY(sl_plan_create_session(reader->plan, config->extra_slots, config->arena, &reader->session, err));
    }
    struct sl_compressor_wants wants = sl_compressor_wants(reader->compressor, false);
    reader->wants = (struct sl_pass_wants){.lse = wants.lse, .importance = wants.importance, .reading = true};
    reader->session = config->resumed ? config->resumed : reader->session;
    for (; reader->n_joins < config->n_joins; reader->n_joins++) {
        reader->joins[reader->n_joins] = config->joins[reader->n_joins];
    }
    return SL_OK;
}

enum sl_status sl_reader_create(const struct sl_reader_config *config, struct sl_reader **reader_out,
                                struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_reader, reader, err, "reader: out of memory");
    reader->runtime = config->runtime;
    reader->tokens = config->tokens;
    reader->attends_elsewhere = config->attends_elsewhere;
    SL_TRY_OR(open_reader(reader, config, err), sl_reader_destroy(&reader));
    *reader_out = reader;
    return SL_OK;
}

void sl_reader_destroy(struct sl_reader **reader) {
    if (*reader) {
        sl_compressor_destroy(&(*reader)->compressor);
        sl_session_destroy(&(*reader)->session);
        sl_repeat_close(*reader);
        free((*reader)->plan);
        free(*reader);
        *reader = NULL;
    }
}

// --- where chunks end ------------------------------------------------------------------------------------------------

int64_t sl_reader_shared_tokens(const struct sl_plan *plan) {
    // The last chunk of the body is evicted finally, and its last rows may be the window that decides.
    int64_t shared = sl_plan_body_tokens(plan) - sl_recipe_observed_rows(&plan->recipe);
    return shared > 0 ? shared : 0;
}

double sl_reader_half_position(const struct sl_model_config *model) {
    double q = (double)model->n_heads * model->head_dim, kv = (double)model->n_kv_heads * model->head_dim;
    double weights = (double)model->hidden * (2 * q + 2 * kv + 3.0 * model->intermediate);
    return weights / (2 * q);
}

// Returns whether the bits of everything that is read are the same however the prompt is cut: no slot is evicted, and no
// statistics are summed chunk by chunk.
static bool cuts_freely(const struct sl_reader *reader) {
    bool free = !sl_recipe_evicts(&reader->plan->recipe) && !reader->attends_elsewhere && !reader->wants.lse &&
                !reader->wants.importance;
    for (int layer = 0; free && layer < reader->plan->geometry.n_layers; layer++) {
        free = reader->plan->work[layer].n_states == 0;
    }
    return free;
}

int64_t sl_reader_chunk_at(int64_t chunk, int64_t done, double half, int64_t full_rows) {
    for (double cost = 1 + (double)done / half; cost > 2 && chunk % 2 == 0 && chunk / 2 >= full_rows / 4; cost /= 2) {
        chunk /= 2;
    }
    return chunk;
}

static int64_t chunk_at(const struct sl_reader *reader, int64_t done) {
    int64_t chunk = reader->plan->recipe.chunk_tokens, full_rows = reader->runtime->device->ops->full_rows;
    double half = sl_reader_half_position(reader->runtime->config);
    return cuts_freely(reader) ? sl_reader_chunk_at(chunk, done, half, full_rows) : chunk;
}

/*
 * Returns where the next chunk ends. Chunks end at multiples of the chunk size even in a resumed job, so that it
 * repeats the original's chunks. A chunk ends where tokens are joined. A chunk also ends where the prompt's tail begins, which is not compressed like its
 * body. A chunk never ends inside the window of rows that decides what stays, so that one pass sees the whole window.
 * With offloaded layers no chunk crosses the end of a split: the tokens that its rows find in the stores must not
 * depend on how the prompt is cut. (If offloaded layers are thinned, a split is one of the chunks and counts slots,
 * and stores keep slots as they were read.)
 */
static int64_t next_end(const struct sl_reader *reader) {
    const struct sl_recipe *recipe = &reader->plan->recipe;
    int64_t done = reader->session->n_tokens, chunk = chunk_at(reader, done), body = sl_plan_body_tokens(reader->plan);
    int64_t shared = sl_reader_shared_tokens(reader->plan), end = (done / chunk + 1) * chunk;
    if (reader->n_fed > 0) {
        return done + reader->n_fed;
    }
    if (done < shared && shared < end && end < body) {
        end = shared;
    } else if (done < body && (body < end || (shared <= done && body - done <= chunk))) {
        end = body;
    }
    if (reader->attends_elsewhere && !sl_recipe_thins(recipe) && done / SL_ATTEND_SPLIT != end / SL_ATTEND_SPLIT) {
        end = (done / SL_ATTEND_SPLIT + 1) * SL_ATTEND_SPLIT;
    }
    if (reader->n_joined < reader->n_joins && reader->joins[reader->n_joined].at < end) {
        end = reader->joins[reader->n_joined].at;
    }
    return end < reader->plan->n_prompt ? end : reader->plan->n_prompt;
}

int64_t sl_reader_next_tokens(const struct sl_reader *reader) {
    return reader->repeating ? sl_repeat_next_rows(reader) : next_end(reader) - reader->session->n_tokens;
}

struct sl_reader_progress sl_reader_get_progress(const struct sl_reader *reader) {
    const struct sl_plan *plan = reader->plan;
    return (struct sl_reader_progress){
        .done = reader->session->n_tokens + reader->repeat.done - reader->repeat.first,
        .total = sl_plan_read_tokens(plan),
        .repeated_ns = reader->repeat.ns,
    };
}

void sl_reader_feed(struct sl_reader *reader, int n_tokens, float *all_logits) {
    reader->n_fed = n_tokens;
    reader->all_logits = all_logits;
}

// --- what is final ---------------------------------------------------------------------------------------------------

enum sl_status sl_reader_finish(struct sl_reader *reader, struct sl_error *err) {
    int n_layers = reader->session->geometry.n_layers;
    struct sl_stream *stream = reader->runtime->stream;
    struct sl_error why = {0};
    enum sl_status status = SL_OK;
    sl_stream_hold(stream);
    for (int layer = 0; status == SL_OK && layer < n_layers; layer++) {
        status = sl_compressor_finish_layer(reader->compressor, reader->session, layer, &why);
    }
    status = sl_stream_release_after(stream, status, &why);
    for (int layer = 0; status == SL_OK && layer < n_layers; layer++) {
        reader->final[layer] = true;
    }
    reader->finished = status == SL_OK;
    sl_reader_fail(reader, status, &why);
    return sl_reader_status(reader, err);
}

bool sl_reader_is_done(const struct sl_reader *reader) {
    return reader->finished;
}

int sl_reader_take_final(struct sl_reader *reader) {
    bool any = reader->n_taken < reader->session->geometry.n_layers && reader->final[reader->n_taken];
    return any ? reader->n_taken++ : -1;
}

void sl_reader_fail(struct sl_reader *reader, enum sl_status status, const struct sl_error *err) {
    if (status != SL_OK && reader->status == SL_OK) {
        reader->status = status;
        reader->err = *err;
    }
}

enum sl_status sl_reader_status(const struct sl_reader *reader, struct sl_error *err) {
    if (reader->status != SL_OK && err) {
        *err = reader->err;
    }
    return reader->status;
}

// --- what it holds ---------------------------------------------------------------------------------------------------

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
