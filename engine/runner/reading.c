// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/reading.h"

#include <assert.h>

#include "engine/runner/join.h"
#include "engine/runner/reader_internal.h"
#include "engine/runner/repeat.h"

enum sl_status sl_reading_begin(struct sl_reading *reading, const struct sl_runtime *runtime,
                                struct sl_activations *activations, struct sl_reader *const *readers, int n,
                                struct sl_error *err) {
    assert(n >= 1 && n <= SL_READING_MAX_PROMPTS);
    *reading = (struct sl_reading){.runtime = runtime, .n = n};
    struct sl_pass_wants wants = {.reading = true};
    for (int i = 0; i < n; i++) {
        struct sl_reader *r = readers[i];
        int64_t begin = r->session->n_tokens, n_tokens = sl_reader_next_tokens(r);
        r->last = r->n_fed == 0 && !r->repeating && begin + n_tokens == r->plan->n_prompt;
        reading->readers[i] = r;
        reading->inputs[i] = (struct sl_input){.session = r->session,
                                               .tokens = r->repeating ? sl_repeat_tokens(r) : r->tokens + begin,
                                               .n_tokens = (int)n_tokens,
                                               .all_logits = r->all_logits};
        r->n_fed = 0;
        r->all_logits = NULL;
        wants.lse |= r->wants.lse;
        wants.importance |= r->wants.importance;
    }
    sl_stream_hold(runtime->stream);
    enum sl_status status = sl_pass_begin(activations, reading->inputs, n, wants, &reading->pass, err);
    return sl_stream_release_after(runtime->stream, status, err);
}

// ---- a layer --------------------------------------------------------------------------------------------------------

static bool all_failed(const struct sl_reading *reading) {
    int n_failed = 0;
    for (int i = 0; i < reading->n; i++) {
        n_failed += reading->readers[i]->status != SL_OK;
    }
    return n_failed == reading->n;
}

// Returns whether the current layer must attend: the last layer's attention only feeds logits and the recipe's
// measurements.
static bool needs_attention(const struct sl_reading *reading, const struct sl_reader *reader, int i) {
    int layer = reading->pass.layer;
    int64_t begin = reader->session->n_tokens, end = begin + reading->inputs[i].n_tokens;
    return layer + 1 < reader->session->geometry.n_layers || reading->inputs[i].all_logits != NULL ||
           sl_compressor_reads_attention(reader->compressor, layer, begin, end, reader->last);
}

// Attends to resident layers. The results of a failed reader are not used, but its rows must hold numbers.
static void attend_resident(struct sl_reading *reading) {
    bool is_wanted[SL_READING_MAX_PROMPTS];
    int layer = reading->pass.layer;
    for (int i = 0; i < reading->n; i++) {
        const struct sl_reader *r = reading->readers[i];
        bool elsewhere = r->status == SL_OK && r->attends_elsewhere && sl_plan_is_offloaded(r->plan, layer);
        is_wanted[i] = !elsewhere && needs_attention(reading, r, i) &&
                       (r->status != SL_OK || !sl_compressor_attend(r->compressor, layer, &reading->pass.attends[i]));
    }
    sl_pass_attend_some(&reading->pass, is_wanted);
}

// Releases the stream; returns whether the pass continues.
static bool release(struct sl_reading *reading, enum sl_status status) {
    reading->status = sl_stream_release_after(reading->runtime->stream, status, &reading->err);
    return reading->status == SL_OK && !all_failed(reading);
}

bool sl_reading_attend(struct sl_reading *reading) {
    if (reading->status != SL_OK || reading->next_layer == reading->runtime->config->n_layers || all_failed(reading)) {
        return false;
    }
    assert(!reading->attended);
    if (reading->runtime->progress_counter) {
        sl_progress_counter_tick(reading->runtime->progress_counter);
    }
    sl_stream_hold(reading->runtime->stream);
    sl_pass_project(&reading->pass, reading->next_layer);
    enum sl_status status = sl_pass_append(&reading->pass, &reading->err);
    if (status == SL_OK) {
        attend_resident(reading);
        reading->attended = true;
    }
    return release(reading, status);
}

static void note_peak(struct sl_reader *r) {
    struct sl_session_stats stats;
    sl_session_get_stats(r->session, &stats);
    r->peak_bytes = stats.resident_bytes > r->peak_bytes ? stats.resident_bytes : r->peak_bytes;
}

bool sl_reading_layer(struct sl_reading *reading) {
    if (!reading->attended && !sl_reading_attend(reading)) {
        return false;
    }
    int layer = reading->pass.layer;
    sl_stream_hold(reading->runtime->stream);
    for (int i = 0; i < reading->n; i++) {
        struct sl_reader *r = reading->readers[i];
        if (r->status == SL_OK) {
            note_peak(r);
            r->status = sl_compressor_layer(r->compressor, r->session, layer, &reading->pass.attends[i], r->last,
                                            &r->final[layer], &r->err);
        }
    }
    if (!all_failed(reading)) {
        sl_pass_finish(&reading->pass);
    }
    reading->attended = false;
    reading->next_layer = layer + 1;
    return release(reading, SL_OK);
}

// ---- the end --------------------------------------------------------------------------------------------------------

// Finishes the prompt: recipes that need the attention of every layer now decide. Does nothing while a part of the prompt
// has not been read, or is to be read a second time.
static void end_prompt(struct sl_reader *r) {
    if (r->repeating) {
        r->status = sl_repeat_end_segment(r, &r->err);
    } else if (r->last && sl_recipe_repeats(&r->plan->recipe)) {
        sl_repeat_begin(r);
    }
    if (r->status != SL_OK || (r->repeating ? sl_repeat_next_rows(r) > 0 : !r->last)) {
        return;
    }
    r->repeating = false;
    r->status = sl_compressor_end(r->compressor, r->session, &r->err);
    for (int layer = 0; r->status == SL_OK && layer < r->session->geometry.n_layers; layer++) {
        r->final[layer] = true;
    }
    r->finished = r->status == SL_OK;
}

enum sl_status sl_reading_end(struct sl_reading *reading, struct sl_error *err) {
    if (reading->status != SL_OK && err) {
        *err = reading->err;
    }
    if (reading->status != SL_OK || all_failed(reading)) {
        return reading->status;
    }
    assert(reading->next_layer == reading->runtime->config->n_layers);
    sl_stream_hold(reading->runtime->stream);
    enum sl_status status = sl_pass_end(&reading->pass, err);
    for (int i = 0; status == SL_OK && i < reading->n; i++) {
        if (reading->readers[i]->status == SL_OK) {
            end_prompt(reading->readers[i]);
        }
    }
    return sl_stream_release_after(reading->runtime->stream, status, err);
}

enum sl_status sl_reading_step(struct sl_reader *reader, bool *done_out, struct sl_error *err) {
    const struct sl_runtime *runtime = reader->runtime;
    if (sl_reader_joins(reader)) {
        *done_out = false;
        return sl_reader_join(reader, err);
    }
    if (sl_reader_next_tokens(reader) == 0) {
        enum sl_status status = reader->finished ? SL_OK : sl_reader_finish(reader, err);
        *done_out = status == SL_OK;
        return status;
    }
    struct sl_reading reading;
    SL_TRY(sl_reading_begin(&reading, runtime, sl_engine_activations(runtime->engine), &reader, 1, err));
    while (sl_reading_layer(&reading)) {
    }
    enum sl_status status = sl_reading_end(&reading, err);
    SL_THEN(status, sl_reader_status(reader, err));
    *done_out = status == SL_OK && reader->finished;
    return status;
}
