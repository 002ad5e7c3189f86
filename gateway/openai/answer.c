// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"
#include "proto/kept.h"

// Logarithms and milliseconds have no more digits than this.
#define FORM              (JSON_COMPACT | JSON_REAL_PRECISION(7))
#define MAX_CHOICES_BYTES ((size_t)64 << 20) // of the prompts that are answered, before another one is

// ---- tokens ---------------------------------------------------------------------------------------------------------

// Returns the text of bytes that may be a part of a character. Such bytes, and zeros, which many JSON readers cannot
// handle, become "bytes:\xNN" as OpenAI writes them.
static json_t *text_of(ProtobufCBinaryData raw) {
    bool has_zero = raw.len > 0 && memchr(raw.data, 0, raw.len);
    json_t *text = has_zero ? NULL : json_stringn(raw.data ? (const char *)raw.data : "", raw.len);
    if (text) {
        return text;
    }
    char spelled[1024];
    size_t n = (size_t)snprintf(spelled, sizeof spelled, "bytes:");
    for (size_t i = 0; i < raw.len && n + 5 < sizeof spelled; i++) {
        n += (size_t)snprintf(spelled + n, sizeof spelled - n, "\\x%02x", raw.data[i]);
    }
    return json_string(spelled);
}

static json_t *bytes_of(ProtobufCBinaryData raw) {
    json_t *bytes = json_array();
    for (size_t i = 0; i < raw.len; i++) {
        json_array_append_new(bytes, json_integer(raw.data[i]));
    }
    return bytes;
}

static json_t *describe(ProtobufCBinaryData raw, double logprob) {
    return json_pack("{s:o, s:f, s:o}", "token", text_of(raw), "logprob", logprob, "bytes", bytes_of(raw));
}

static size_t n_shown(const struct sl_openai_answer *answer, const Sluice__V1__Token *token) {
    size_t most = (size_t)answer->request->n_top_logprobs;
    return token->n_alternatives < most ? token->n_alternatives : most;
}

static json_t *chat_logprob(const struct sl_openai_answer *answer, const Sluice__V1__Token *token) {
    json_t *one = describe(token->raw, (double)token->logprob), *top = json_array();
    for (size_t i = 0; i < n_shown(answer, token); i++) {
        json_array_append_new(top, describe(token->alternatives[i]->raw, (double)token->alternatives[i]->logprob));
    }
    json_object_set_new(one, "top_logprobs", top);
    return one;
}

static json_t *completion_logprob(const struct sl_openai_answer *answer, const Sluice__V1__Token *token) {
    json_t *top = json_object(), *text = text_of(token->raw);
    for (size_t i = 0; i < n_shown(answer, token); i++) {
        json_t *name = text_of(token->alternatives[i]->raw);
        json_object_set_new(top, json_string_value(name), json_real((double)token->alternatives[i]->logprob));
        json_decref(name);
    }
    return json_pack("{s:o, s:f, s:o, s:I}", "token", text, "logprob", (double)token->logprob, "top", top, "offset",
                     (json_int_t)answer->n_text);
}

// Returns the log probabilities of tokens, in the format of a chat or a completion.
static json_t *logprobs_of(const struct sl_openai_answer *answer, json_t *heard) {
    if (!answer->request->wants_logprobs) {
        return json_null();
    }
    if (answer->request->is_chat) {
        return json_pack("{s:O?, s:n}", "content", heard, "refusal"); // NULL: there was no token
    }
    json_t *tokens = json_array(), *logprobs = json_array(), *top = json_array(), *offsets = json_array(), *one;
    size_t i;
    json_array_foreach(heard, i, one) {
        json_array_append(tokens, json_object_get(one, "token"));
        json_array_append(logprobs, json_object_get(one, "logprob"));
        json_array_append(top, json_object_get(one, "top"));
        json_array_append(offsets, json_object_get(one, "offset"));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", top,
                     "text_offset", offsets);
}

static size_t n_characters(const char *text) {
    size_t n = 0;
    for (; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

static json_t *hear(struct sl_openai_answer *answer, const Sluice__V1__Token *token) {
    json_t *one = answer->request->is_chat ? chat_logprob(answer, token) : completion_logprob(answer, token);
    answer->n_text += n_characters(token->text);
    return one;
}

// ---- common to streams and objects ----------------------------------------------------------------------------------

static const char *finish_reason(const Sluice__V1__Finished *finished) {
    return finished->reason == SLUICE__V1__FINISHED__REASON__LENGTH ? "length" : "stop";
}

// Returns the statistics; zeros where a coordinator reports none.
static const Sluice__V1__Statistics *statistics_of(const Sluice__V1__Finished *finished) {
    static const Sluice__V1__Statistics none = SLUICE__V1__STATISTICS__INIT;
    return finished->statistics ? finished->statistics : &none;
}

static void count(struct sl_openai_answer *answer, const Sluice__V1__Statistics *s) {
    answer->n_prompt_tokens += s->n_prompt_tokens;
    answer->n_output_tokens += s->n_output_tokens;
    answer->n_reused_tokens += s->n_reused_tokens;
}

static json_t *usage_of(const struct sl_openai_answer *answer) {
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)answer->n_prompt_tokens,
                     "completion_tokens", (json_int_t)answer->n_output_tokens, "total_tokens",
                     (json_int_t)(answer->n_prompt_tokens + answer->n_output_tokens), "prompt_tokens_details",
                     "cached_tokens", (json_int_t)answer->n_reused_tokens);
}

static void advance(struct sl_openai_answer *answer) {
    json_decref(answer->tokens);
    answer->tokens = NULL;
    answer->n_text = 0;
    answer->index++;
}

// Returns the sampling settings. NULL: the coordinator does not report them.
static json_t *drawn(const Sluice__V1__Sampling *s) {
    return s ? json_pack("{s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:I}", "temperature", (double)s->temperature, "top_k",
                         (int)s->top_k, "top_p", (double)s->top_p, "min_p", (double)s->min_p, "repetition_penalty",
                         (double)s->repetition_penalty, "frequency_penalty", (double)s->frequency_penalty,
                         "presence_penalty", (double)s->presence_penalty, "seed", (json_int_t)s->seed)
             : NULL;
}

static json_t *measured(const struct sl_openai_answer *answer, const Sluice__V1__Statistics *s) {
    const Sluice__V1__Retrieval *r = s->retrieval; // NULL: nothing was offloaded
    char caution[SL_CAUTION_BYTES] = "";
    if (answer->request->message.document[0] || answer->request->message.n_documents > 0) {
        sl_recipe_caution(s->recipe, s->n_prompt_tokens, caution);
    }
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:s, s:s*, s:s*, s:s*, "
        "s:s*, s:f, s:o*, s:s*}",
        "job_id", answer->job_id, "recipe", s->recipe, "read_tokens",
        (json_int_t)(s->n_prompt_tokens - s->n_reused_tokens), "reused_tokens", (json_int_t)s->n_reused_tokens,
        "queue_ms", s->queue_ms, "prefill_ms", s->prefill_ms, "ship_ms", s->ship_ms, "ttft_ms", s->ttft_ms, "tpot_ms",
        s->tpot_ms, "total_ms", s->total_ms, "capsule_bytes", (json_int_t)s->capsule_bytes, "full_bytes",
        (json_int_t)s->full_bytes, "decode_resident_bytes", (json_int_t)s->decode_resident_bytes, "slots_per_head",
        s->slots_per_head, "offloaded_bytes", (json_int_t)(r ? r->offloaded_bytes : 0), "stored_tokens",
        (json_int_t)(r ? r->reused_tokens : 0), "retries", (json_int_t)s->retries, "transport", s->transport, "kept",
        sl_kept_word(s->kept), "kept_state", sl_kept_word(s->kept_state), "not_cached",
        sl_not_cached_word(s->not_cached), "not_joined", sl_not_joined_word(s->not_joined), "restore_ms", s->restore_ms,
        "sampling", drawn(s->sampling), "caution", caution[0] ? caution : NULL);
}

static json_t *object_with(const struct sl_openai_answer *answer, const char *kind, json_t *choices) {
    char id[128];
    snprintf(id, sizeof id, "%s-%s", answer->request->is_chat ? "chatcmpl" : "cmpl",
             answer->first_job_id ? answer->first_job_id : answer->job_id);
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", id, "object", kind, "created", (json_int_t)answer->created,
                     "model", answer->model, "choices", choices);
}

static char *event_of(json_t *object) {
    char *json = object ? json_dumps(object, FORM) : NULL, *event = NULL;
    json_decref(object);
    if (json && asprintf(&event, "data: %s\n\n", json) < 0) {
        event = NULL;
    }
    free(json);
    return event;
}

// ---- streams --------------------------------------------------------------------------------------------------------

static json_t *chunk(const struct sl_openai_answer *answer, json_t *choices) {
    return object_with(answer, answer->request->is_chat ? "chat.completion.chunk" : "text_completion", choices);
}

// Returns a chunk: the delta of a chat, or the text of a completion. reason: NULL before the end.
static json_t *chunk_with(const struct sl_openai_answer *answer, const char *role, const char *text, json_t *logprobs,
                          const char *reason) {
    json_t *choice;
    if (answer->request->is_chat) {
        json_t *delta = json_object();
        if (role) {
            json_object_set_new(delta, "role", json_string(role));
        }
        if (text) {
            json_object_set_new(delta, "content", json_string(text));
        }
        choice = json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)answer->index, "delta", delta, "logprobs", logprobs,
                           "finish_reason", reason);
    } else {
        choice = json_pack("{s:i, s:s, s:o, s:s?}", "index", (int)answer->index, "text", text ? text : "", "logprobs",
                           logprobs, "finish_reason", reason);
    }
    json_t *made = chunk(answer, json_pack("[o]", choice));
    if (answer->request->include_usage) {
        json_object_set_new(made, "usage", json_null());
    }
    return made;
}

char *sl_openai_begin(struct sl_openai_answer *answer) {
    return answer->request->is_chat ? event_of(chunk_with(answer, "assistant", "", json_null(), NULL)) : strdup("");
}

char *sl_openai_token(struct sl_openai_answer *answer, const Sluice__V1__Token *token) {
    if (!answer->request->wants_logprobs && token->text[0] == '\0') {
        return strdup("");
    }
    json_t *heard = answer->request->wants_logprobs ? json_pack("[o]", hear(answer, token)) : NULL;
    char *event = event_of(chunk_with(answer, NULL, token->text, logprobs_of(answer, heard), NULL));
    json_decref(heard);
    return event;
}

static bool has_more(const struct sl_openai_answer *answer) {
    return answer->index + 1 < answer->request->n_prompts;
}

char *sl_openai_end(struct sl_openai_answer *answer, const Sluice__V1__Finished *finished) {
    json_t *last = chunk_with(answer, NULL, NULL, json_null(), finish_reason(finished)), *usage = NULL;
    const bool is_over = !has_more(answer);
    count(answer, statistics_of(finished));
    if (is_over && answer->request->include_usage) {
        usage = chunk(answer, json_array());
        json_object_set_new(usage, "usage", usage_of(answer));
    }
    json_object_set_new(usage && answer->request->n_prompts == 1 ? usage : last, "sluice",
                        measured(answer, statistics_of(finished)));
    char *first = event_of(last), *second = usage ? event_of(usage) : strdup(""), *end = NULL;
    if (!first || !second || asprintf(&end, "%s%s%s", first, second, is_over ? "data: [DONE]\n\n" : "") < 0) {
        end = NULL;
    }
    free(first);
    free(second);
    advance(answer);
    return end;
}

// ---- one object -----------------------------------------------------------------------------------------------------

enum sl_status sl_openai_keep(struct sl_openai_answer *answer, const Sluice__V1__Token *token) {
    if (!answer->request->wants_logprobs) {
        return SL_OK;
    }
    if (!answer->tokens && !(answer->tokens = json_array())) {
        return SL_ERR_EXHAUSTED;
    }
    return json_array_append_new(answer->tokens, hear(answer, token)) == 0 ? SL_OK : SL_ERR_EXHAUSTED;
}

// Keeps the choice as text, because its JSON takes ten times as much memory. Takes the reference. False: no memory.
static bool keep_choice(struct sl_openai_answer *answer, json_t *choice) {
    char *text = choice ? json_dumps(choice, FORM) : NULL;
    const size_t n = text ? strlen(text) : 0;
    char *choices = text ? realloc(answer->choices, answer->n_choices + n + 2) : NULL;
    if (choices) {
        answer->choices = choices;
        answer->n_choices +=
            (size_t)snprintf(choices + answer->n_choices, n + 2, "%s%s", answer->n_choices ? "," : "", text);
    }
    free(text);
    json_decref(choice);
    return choices != NULL;
}

// Prints the object with the choices that were kept. Takes the reference.
static char *print_with_choices(struct sl_openai_answer *answer, json_t *object) {
    static const char begin[] = "\"choices\":["; // no text within the object has it: its quotes would be escaped
    char *frame = object ? json_dumps(object, FORM) : NULL, *json = NULL;
    const char *at = frame ? strstr(frame, begin) : NULL;
    const int n = at ? (int)(at - frame) + (int)sizeof begin - 1 : 0;
    if (at && asprintf(&json, "%.*s%s%s", n, frame, answer->choices, frame + n) < 0) {
        json = NULL;
    }
    free(frame);
    json_decref(object);
    return json;
}

enum sl_status sl_openai_check_room(const struct sl_openai_answer *answer, struct sl_refusal *refusal) {
    if (answer->n_choices <= MAX_CHOICES_BYTES) {
        return SL_OK;
    }
    sl_refuse(refusal, 413,
              "prompt: the answers to the first %zu have %zu bytes, too many for one reply: set stream, or "
              "send fewer prompts",
              answer->index, answer->n_choices);
    return SL_ERR_RANGE;
}

char *sl_openai_whole(struct sl_openai_answer *answer, const Sluice__V1__Finished *finished) {
    json_t *logprobs = logprobs_of(answer, answer->tokens), *choice;
    const bool is_chat = answer->request->is_chat, is_over = !has_more(answer);
    if (is_chat) {
        choice = json_pack("{s:i, s:{s:s, s:s, s:n}, s:o, s:s}", "index", 0, "message", "role", "assistant", "content",
                           finished->text, "refusal", "logprobs", logprobs, "finish_reason", finish_reason(finished));
    } else {
        choice = json_pack("{s:i, s:s, s:o, s:s}", "index", (int)answer->index, "text", finished->text, "logprobs",
                           logprobs, "finish_reason", finish_reason(finished));
    }
    json_t *sluice = measured(answer, statistics_of(finished));
    count(answer, statistics_of(finished));
    if (answer->request->n_prompts > 1) {
        json_object_set_new(choice, "sluice", sluice);
    }
    const bool is_kept = keep_choice(answer, choice);
    advance(answer);
    if (!is_kept || !is_over) {
        return is_kept ? strdup("") : NULL;
    }
    json_t *object = object_with(answer, is_chat ? "chat.completion" : "text_completion", json_array());
    json_object_set_new(object, "usage", usage_of(answer));
    if (answer->request->n_prompts == 1) {
        json_object_set_new(object, "sluice", sluice);
    }
    char *json = print_with_choices(answer, object);
    sl_openai_answer_cleanup(answer);
    return json;
}

void sl_openai_answer_cleanup(struct sl_openai_answer *answer) {
    json_decref(answer->tokens);
    free(answer->choices);
    answer->tokens = NULL;
    answer->choices = NULL;
    answer->n_choices = 0;
}
