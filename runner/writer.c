// SPDX-License-Identifier: Apache-2.0
// Sampling, streaming text, stop conditions. See writer.h.
#include "runner/writer.h"

#include <stdlib.h>
#include <string.h>

struct sl_writer {
    struct sl_writer_config config; // pointers into it are replaced by our copies below
    struct sl_sampler *sampler;
    struct sl_detokenizer detokenizer;
    char *stops[SL_MAX_STOPS];
    size_t stop_bytes[SL_MAX_STOPS];
    int32_t *history; // prompt, then output
    int64_t n_history, n_output;
    char *text; // everything decoded; [0, shown) has been handed out, the rest is held back
    size_t n_text, cap_text, n_shown;
};

static bool is_end_token(const struct sl_writer *writer, int32_t id) {
    for (int i = 0; i < writer->config.model->n_eos; i++) {
        if (writer->config.model->eos_ids[i] == id) {
            return true;
        }
    }
    return false;
}

// Decode one more token onto writer->text.
static void push_text(struct sl_writer *writer, int32_t id) {
    writer->n_text +=
        sl_detokenizer_push(&writer->detokenizer, id, writer->text + writer->n_text, writer->cap_text - writer->n_text);
    writer->text[writer->n_text] = 0;
}

// Where the earliest stop string begins in the text that has not been shown, or n_text.
static size_t find_stop(const struct sl_writer *writer) {
    size_t earliest = writer->n_text;
    for (size_t s = 0; s < writer->config.n_stops; s++) {
        char *at = memmem(writer->text + writer->n_shown, writer->n_text - writer->n_shown, writer->stops[s],
                          writer->stop_bytes[s]);
        if (at && (size_t)(at - writer->text) < earliest) {
            earliest = (size_t)(at - writer->text);
        }
    }
    return earliest;
}

// How much of the text can be shown although a stop string may still be forming at its end.
static size_t safe_to_show(const struct sl_writer *writer) {
    size_t safe = writer->n_text;
    for (size_t s = 0; s < writer->config.n_stops; s++) {
        size_t unseen = writer->n_text - writer->n_shown;
        size_t longest = writer->stop_bytes[s] - 1 < unseen ? writer->stop_bytes[s] - 1 : unseen;
        for (size_t n = longest; n > 0; n--) {
            if (memcmp(writer->text + writer->n_text - n, writer->stops[s], n) == 0) {
                safe = writer->n_text - n < safe ? writer->n_text - n : safe;
                break;
            }
        }
    }
    return safe;
}

/*
 * The text that is new and sure; "" while its end may be the beginning of a stop string (the text is NUL-terminated in
 * place, so it is all or nothing). With `final` nothing is held back.
 */
static const char *reveal(struct sl_writer *writer, bool final) {
    const char *text = writer->text + writer->n_shown;
    if (!final && safe_to_show(writer) < writer->n_text) {
        return "";
    }
    writer->n_shown = writer->n_text;
    return text;
}

static enum sl_status check(const struct sl_writer_config *config, struct sl_error *err) {
    if (config->max_new_tokens < 1) {
        return sl_fail(err, SL_ERR_INVALID, "max_new_tokens is %lld; it must be at least 1",
                       (long long)config->max_new_tokens);
    }
    if (config->n_stops > SL_MAX_STOPS) {
        return sl_fail(err, SL_ERR_INVALID, "%zu stop strings; at most %d are allowed", config->n_stops, SL_MAX_STOPS);
    }
    for (size_t s = 0; s < config->n_stops; s++) {
        size_t n = strlen(config->stops[s]);
        if (n == 0 || n > SL_MAX_STOP_BYTES) {
            return sl_fail(err, SL_ERR_INVALID, "stop string %zu has %zu bytes; 1 to %d are allowed", s, n,
                           SL_MAX_STOP_BYTES);
        }
    }
    return sl_sampling_check(&config->sampling, err);
}

enum sl_status sl_writer_create(const struct sl_writer_config *config, struct sl_writer **writer_out,
                                struct sl_error *err) {
    enum sl_status status = check(config, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_writer *writer = calloc(1, sizeof *writer);
    if (!writer) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "writer: out of memory");
    }
    writer->config = *config;
    sl_detokenizer_init(&writer->detokenizer, config->tokenizer);
    // Once and for all, so that no step allocates: every token of the answer may take the longest text there is.
    size_t token_bytes = sl_detokenizer_max_bytes(config->tokenizer);
    writer->cap_text = ((size_t)config->max_new_tokens + (size_t)config->n_resumed + 2) * token_bytes;
    writer->text = malloc(writer->cap_text + 1);
    writer->history =
        malloc(sizeof(int32_t) * (size_t)(config->n_prompt + config->max_new_tokens + config->n_resumed + 1));
    bool copied = writer->text && writer->history;
    for (size_t s = 0; copied && s < config->n_stops; s++) {
        writer->stops[s] = strdup(config->stops[s]);
        writer->stop_bytes[s] = strlen(config->stops[s]);
        copied = writer->stops[s] != NULL;
    }
    status = copied ? sl_sampler_create(config->model->n_vocab, &writer->sampler, err)
                    : sl_fail(err, SL_ERR_EXHAUSTED, "writer: out of memory");
    if (status != SL_OK) {
        sl_writer_destroy(&writer);
        return status;
    }
    writer->text[0] = 0;
    memcpy(writer->history, config->prompt, sizeof(int32_t) * (size_t)config->n_prompt);
    writer->n_history = config->n_prompt;
    for (int64_t i = 0; i < config->n_resumed; i++) {
        writer->history[writer->n_history++] = config->resumed[i];
        push_text(writer, config->resumed[i]);
        reveal(writer, false); // as the earlier attempt did
    }
    writer->n_output = config->n_resumed;
    *writer_out = writer;
    return SL_OK;
}

void sl_writer_destroy(struct sl_writer **writer_inout) {
    struct sl_writer *writer = *writer_inout;
    if (!writer) {
        return;
    }
    for (size_t s = 0; s < writer->config.n_stops; s++) {
        free(writer->stops[s]);
    }
    sl_sampler_destroy(&writer->sampler);
    free(writer->history);
    free(writer->text);
    free(writer);
    *writer_inout = NULL;
}

enum sl_status sl_writer_next(struct sl_writer *writer, const float *logits, struct sl_written *written_out,
                              struct sl_error *err) {
    struct sl_written written = {.index = writer->n_output};
    enum sl_status status = sl_sampler_next(writer->sampler, &writer->config.sampling, logits, writer->history,
                                            writer->n_history, writer->n_output, &written.token);
    if (status != SL_OK) {
        return sl_fail(err, status, "step %lld: the model's logits are not finite", (long long)writer->n_output);
    }
    bool ends = !writer->config.ignore_eos && is_end_token(writer, written.token.id);
    if (!ends) {
        push_text(writer, written.token.id);
    }
    writer->history[writer->n_history++] = written.token.id;
    writer->n_output++;

    size_t stop_at = find_stop(writer);
    if (stop_at < writer->n_text) {
        writer->n_text = stop_at;
        written.stop = SL_STOP_STRING;
    } else if (ends || writer->n_output >= writer->config.max_new_tokens) {
        writer->n_text += sl_detokenizer_finish(&writer->detokenizer, writer->text + writer->n_text,
                                                writer->cap_text - writer->n_text);
        written.stop = ends ? SL_STOP_TOKEN : SL_STOP_LENGTH;
    }
    writer->text[writer->n_text] = 0;

    written.text = reveal(writer, written.stop != SL_STOP_NONE);
    *written_out = written;
    return SL_OK;
}

const char *sl_writer_text(const struct sl_writer *writer) {
    return writer->text;
}
int64_t sl_writer_n_tokens(const struct sl_writer *writer) {
    return writer->n_output;
}
