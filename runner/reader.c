// SPDX-License-Identifier: Apache-2.0
// One prompt, chunk by chunk. See reader.h.
#include "runner/reader.h"

#include <stdlib.h>

#include "runner/step.h"

struct sl_reader {
    struct sl_sequence sequence;
    const struct sl_runtime *runtime;
    const int32_t *tokens;
    bool finished;       // every layer is final
    int64_t most_tokens; // of a step that may end anywhere; 0: a chunk
};

enum sl_status sl_reader_create(const struct sl_reader_config *config, struct sl_reader **reader_out,
                                struct sl_error *err) {
    struct sl_reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "reader: out of memory");
    }
    reader->runtime = config->sequence.runtime;
    reader->tokens = config->tokens;
    enum sl_status status = sl_sequence_open(&config->sequence, &reader->sequence, err);
    if (status != SL_OK) {
        free(reader);
        return status;
    }
    *reader_out = reader;
    return SL_OK;
}

void sl_reader_destroy(struct sl_reader **reader) {
    if (*reader) {
        sl_sequence_close(&(*reader)->sequence);
        free(*reader);
        *reader = NULL;
    }
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
    const struct sl_sequence *s = &reader->sequence;
    const struct sl_recipe *recipe = &s->plan->recipe;
    int64_t done = s->session->n_tokens, chunk = recipe->chunk_tokens, body = sl_plan_body_tokens(s->plan);
    int64_t shared = sl_reader_shared_tokens(s->plan), end = (done / chunk + 1) * chunk;
    if (done < shared && shared < end && end < body) {
        end = shared;
    } else if (done < body && (body < end || (shared <= done && body - done <= chunk))) {
        end = body;
    }
    if (s->offload && !sl_recipe_thins(recipe) && done / SL_ATTEND_SPLIT != end / SL_ATTEND_SPLIT) {
        end = (done / SL_ATTEND_SPLIT + 1) * SL_ATTEND_SPLIT;
    }
    end = end < s->plan->n_prompt ? end : s->plan->n_prompt;
    bool anywhere = reader->most_tokens > 0 && !sl_recipe_evicts(recipe);
    return anywhere && end - done > reader->most_tokens ? done + reader->most_tokens : end;
}

void sl_reader_limit_step(struct sl_reader *reader, int64_t n_tokens) {
    reader->most_tokens = n_tokens;
}

int64_t sl_reader_next_tokens(const struct sl_reader *reader) {
    return next_end(reader) - reader->sequence.session->n_tokens;
}

enum sl_status sl_reader_step(struct sl_reader *reader, bool *done_out, struct sl_error *err) {
    struct sl_sequence *sequence = &reader->sequence;
    int64_t begin = sequence->session->n_tokens, end = next_end(reader), n_prompt = sequence->plan->n_prompt;
    enum sl_status status = SL_OK;
    sequence->last = end == n_prompt;
    if (begin < n_prompt) {
        sl_sequence_feed(sequence, reader->tokens + begin, (int)(end - begin), NULL);
        status = sl_step(reader->runtime, &sequence, 1, err);
    } else if (!reader->finished) {
        sl_step_finish_reading(reader->runtime, sequence);
    }
    status = status == SL_OK ? sl_sequence_status(sequence, err) : status;
    if (status == SL_OK) {
        reader->finished = sequence->last;
        *done_out = sequence->last;
    }
    return status;
}

struct sl_session *sl_reader_session(struct sl_reader *reader) {
    return reader->sequence.session;
}

struct sl_session *sl_reader_take_session(struct sl_reader *reader) {
    return sl_sequence_take_session(&reader->sequence);
}

size_t sl_reader_peak_bytes(const struct sl_reader *reader) {
    return reader->sequence.peak_bytes;
}

void sl_reader_get_stats(const struct sl_reader *reader, struct sl_compress_stats *stats_out) {
    sl_compressor_get_stats(reader->sequence.compressor, stats_out);
}

void sl_reader_get_errors(const struct sl_reader *reader, struct sl_error_statistics *errors_out) {
    sl_error_statistics_read(reader->sequence.compressor, errors_out);
}
