// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/output.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct sl_output {
    struct sl_output_config config; // pointers in it are replaced by the copies below
    struct sl_sampler *sampler;
    struct sl_choice choice; // choice of the next token
    struct sl_detokenizer detokenizer;
    char *stops[SL_MAX_STOPS];
    size_t stop_bytes[SL_MAX_STOPS];
    int32_t *history; // prompt, then output
    int64_t n_history, n_output;
    int32_t said; // forced next token; -1: the chosen token
    char *text;   // all decoded text; [0, shown) has been returned, the rest is held back
    size_t n_text, cap_text, n_shown;
    // The text that stop strings are searched in, if there are any: text[shown..] with special tokens spelled out.
    char *spelled;
    unsigned char *is_hidden; // per byte of `spelled`: it is part of a special token and not of the text
    size_t n_spelled;
};

static bool is_end_token(const struct sl_output *output, int32_t id) {
    for (int i = 0; i < output->config.model->ends.n; i++) {
        if (output->config.model->ends.ids[i] == id) {
            return true;
        }
    }
    return false;
}

static void spell(struct sl_output *output, const char *bytes, size_t n, bool is_hidden) {
    if (output->spelled) {
        memcpy(output->spelled + output->n_spelled, bytes, n);
        memset(output->is_hidden + output->n_spelled, is_hidden, n);
        output->n_spelled += n;
    }
}

// Spells out a special token for stop strings; other tokens are in the text.
static void spell_special(struct sl_output *output, int32_t id) {
    size_t n = 0;
    const char *bytes = sl_tokenizer_is_special(output->config.tokenizer, id)
                            ? sl_tokenizer_token_bytes(output->config.tokenizer, id, &n)
                            : NULL;
    if (bytes) {
        spell(output, bytes, n, true);
    }
}

// Decodes one more token onto output->text.
static void push_text(struct sl_output *output, int32_t id) {
    size_t n =
        sl_detokenizer_push(&output->detokenizer, id, output->text + output->n_text, output->cap_text - output->n_text);
    spell(output, output->text + output->n_text, n, false);
    output->n_text += n;
    output->text[output->n_text] = 0;
    spell_special(output, id);
}

// Finds the earliest stop string. *text_out: the bytes of the text before the stop string.
static bool find_stop(const struct sl_output *output, size_t *text_out) {
    size_t earliest = SIZE_MAX;
    for (size_t s = 0; s < output->config.n_stops; s++) {
        char *at = memmem(output->spelled, output->n_spelled, output->stops[s], output->stop_bytes[s]);
        if (at && (size_t)(at - output->spelled) < earliest) {
            earliest = (size_t)(at - output->spelled);
        }
    }
    if (earliest == SIZE_MAX) {
        return false;
    }
    *text_out = output->n_shown;
    for (size_t i = 0; i < earliest; i++) {
        *text_out += !output->is_hidden[i];
    }
    return true;
}

// Returns whether a stop string may be forming at the end.
static bool may_stop(const struct sl_output *output) {
    for (size_t s = 0; s < output->config.n_stops; s++) {
        size_t longest = output->stop_bytes[s] - 1;
        for (size_t n = longest < output->n_spelled ? longest : output->n_spelled; n > 0; n--) {
            if (memcmp(output->spelled + output->n_spelled - n, output->stops[s], n) == 0) {
                return true;
            }
        }
    }
    return false;
}

/*
 * Returns the new text that is certain; "" while its end may be the beginning of a stop string (the text is
 * NUL-terminated in place, so it is all or nothing). With `final` nothing is held back.
 */
static const char *reveal(struct sl_output *output, bool final) {
    const char *text = output->text + output->n_shown;
    if (!final && may_stop(output)) {
        return "";
    }
    output->n_shown = output->n_text;
    output->n_spelled = 0;
    return text;
}

static enum sl_status check(const struct sl_output_config *config, struct sl_error *err) {
    SL_FAIL_IF(config->max_new_tokens < 1, err, SL_ERR_INVALID, "max_new_tokens is %lld; it must be at least 1",
               (long long)config->max_new_tokens);
    SL_FAIL_IF(config->n_stops > SL_MAX_STOPS, err, SL_ERR_INVALID, "%zu stop strings; at most %d are allowed",
               config->n_stops, SL_MAX_STOPS);
    for (size_t s = 0; s < config->n_stops; s++) {
        size_t n = strlen(config->stops[s]);
        SL_FAIL_IF(n == 0 || n > SL_MAX_STOP_BYTES, err, SL_ERR_INVALID,
                   "stop string %zu has %zu bytes; 1 to %d are allowed", s, n, SL_MAX_STOP_BYTES);
    }
    return sl_sampling_check(&config->sampling, err);
}

enum sl_status sl_output_create(const struct sl_output_config *config, struct sl_output **output_out,
                                struct sl_error *err) {
    SL_TRY(check(config, err));
    SL_NEW_OR_FAIL(struct sl_output, output, err, "output: out of memory");
    output->config = *config;
    sl_detokenizer_init(&output->detokenizer, config->tokenizer);
    // Allocates once, so that no step allocates: every token of the answer may have the longest text.
    size_t token_bytes = sl_detokenizer_max_bytes(config->tokenizer);
    output->cap_text = ((size_t)config->max_new_tokens + (size_t)config->n_resumed + 2) * token_bytes;
    output->text = malloc(output->cap_text + 1);
    output->history =
        malloc(sizeof(int32_t) * (size_t)(config->n_prompt + config->max_new_tokens + config->n_resumed + 1));
    bool copied = output->text && output->history;
    if (config->n_stops > 0) {
        output->spelled = malloc(output->cap_text);
        output->is_hidden = malloc(output->cap_text);
        copied = copied && output->spelled && output->is_hidden;
    }
    for (size_t s = 0; copied && s < config->n_stops; s++) {
        output->stops[s] = strdup(config->stops[s]);
        output->stop_bytes[s] = strlen(config->stops[s]);
        copied = output->stops[s] != NULL;
    }
    SL_TRY_OR(copied ? sl_sampler_create(config->model->n_vocab, &output->sampler, err)
                     : sl_fail(err, SL_ERR_EXHAUSTED, "output: out of memory"),
              sl_output_destroy(&output));
    output->text[0] = 0;
    memcpy(output->history, config->prompt, sizeof(int32_t) * (size_t)config->n_prompt);
    output->n_history = config->n_prompt;
    for (int64_t i = 0; i < config->n_resumed; i++) {
        output->history[output->n_history++] = config->resumed[i];
        push_text(output, config->resumed[i]);
        reveal(output, false); // the earlier attempt has returned this text
    }
    output->n_output = config->n_resumed;
    output->said = config->said != NULL ? *config->said : -1;
    *output_out = output;
    return SL_OK;
}

void sl_output_destroy(struct sl_output **output_inout) {
    struct sl_output *output = *output_inout;
    if (!output) {
        return;
    }
    for (size_t s = 0; s < output->config.n_stops; s++) {
        free(output->stops[s]);
    }
    sl_sampler_destroy(&output->sampler);
    free(output->history);
    free(output->text);
    free(output->spelled);
    free(output->is_hidden);
    free(output);
    *output_inout = NULL;
}

struct sl_choice *sl_output_choice(struct sl_output *output) {
    output->choice = (struct sl_choice){.sampler = output->sampler,
                                        .sampling = &output->config.sampling,
                                        .history = output->history,
                                        .n_history = output->n_history,
                                        .step = output->n_output,
                                        .status = SL_AGAIN}; // until the step has run
    return &output->choice;
}

enum sl_status sl_output_next(struct sl_output *output, struct sl_output_token *token_out, struct sl_error *err) {
    struct sl_output_token written = {.token = output->choice.token, .index = output->n_output};
    assert(output->choice.status != SL_AGAIN);
    SL_FAIL_IF(output->choice.status != SL_OK, err, output->choice.status,
               "step %lld: the model's logits are not finite", (long long)output->n_output);
    if (output->said >= 0) { // choices made without a late store may differ
        written.token.id = output->said;
        output->said = -1;
    }
    bool ends = !output->config.ignore_eos && is_end_token(output, written.token.id);
    if (ends) {
        spell_special(output, written.token.id);
    } else {
        push_text(output, written.token.id);
    }
    output->history[output->n_history++] = written.token.id;
    output->n_output++;

    size_t stop_at = 0;
    // A stop string that consists of the end token alone cuts nothing off: the token has ended the answer.
    if (find_stop(output, &stop_at) && (!ends || stop_at < output->n_text)) {
        output->n_text = stop_at;
        written.stop = SL_STOP_STRING;
    } else if (ends || output->n_output >= output->config.max_new_tokens) {
        output->n_text += sl_detokenizer_finish(&output->detokenizer, output->text + output->n_text,
                                                output->cap_text - output->n_text);
        written.stop = ends ? SL_STOP_TOKEN : SL_STOP_LENGTH;
    }
    output->text[output->n_text] = 0;

    written.text = reveal(output, written.stop != SL_STOP_NONE);
    *token_out = written;
    return SL_OK;
}

const char *sl_output_text(const struct sl_output *output) {
    return output->text;
}
int64_t sl_output_n_tokens(const struct sl_output *output) {
    return output->n_output;
}
