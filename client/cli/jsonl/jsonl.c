// SPDX-License-Identifier: Apache-2.0
// Purpose: see jsonl.h. Read from the bottom up: the run, one line, one answer.
#include "client/cli/jsonl/jsonl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/cli/jsonl/ask.h"
#include "client/cli/line_reader.h"
#include "client/cli/local_job.h"
#include "engine/compress/plan/plan.h"
#include "engine/job/job_budget.h"
#include "engine/job/job_chat.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "engine/kvcache/capsule.h"
#include "gateway/openai/answer.h"

#define SPARE_BYTES ((size_t)64 << 20)

struct run {
    const struct sl_jsonl_config *config;
    struct sl_model_config model;
    struct sl_tokenizer *tokenizer; // of `local` as soon as that is open
    uint64_t fingerprint;
    struct sl_local *local; // NULL: no line has asked for an answer yet
    size_t arena_bytes;     // for the longest sequence that a line has announced; 0: as the config says
    struct sl_chat_template *chat_template;
    struct sl_conversation *document; // the text that lines ask about; NULL: none
    char *document_name, *document_text;
    int32_t *document_ids;      // [n_document] of the text alone
    size_t n_document, n_begin; // n_begin: those of them that questions begin with, and that were read
    char document_recipe[SL_RECIPE_TEXT_BYTES];
    struct sl_local_result result; // of the line that is being answered
};

// --- one answer ---------------------------------------------------------------------------------------------------

struct asking {
    const struct run *run;
    int64_t deadline_ns;
    int64_t shipped_bytes, offloaded_bytes, resident_bytes; // for recipes that offload; else 0
};

static enum sl_status go_on(const struct asking *asking) {
    if (sl_signals_received(asking->run->config->signals) > 0) {
        return SL_ERR_CANCELLED;
    }
    return sl_deadline_left_ms(asking->deadline_ns) == 0 ? SL_ERR_DEADLINE : SL_OK;
}

static enum sl_status on_progress(void *arg, int64_t tokens_done, int64_t tokens_total) {
    (void)tokens_done;
    (void)tokens_total;
    return go_on(arg);
}

static enum sl_status on_token(void *arg, const struct sl_output_token *written) {
    (void)written;
    return go_on(arg);
}

// Computes what a cluster would ship and hold: one process keeps offloaded layers in the session.
static enum sl_status on_prefilled(void *arg, const struct sl_session *session, const struct sl_recipe *recipe,
                                   const int32_t *tokens, struct sl_error *err) {
    (void)tokens;
    struct asking *asking = arg;
    if (!sl_recipe_offloads(recipe)) {
        return SL_OK;
    }
    for (int l = 0; l < session->geometry.n_layers; l++) {
        if (!sl_layers_has(&recipe->offload, l)) {
            asking->shipped_bytes += (int64_t)sl_capsule_layer_bytes(session, l);
        }
    }
    struct sl_plan *plan = malloc(sizeof *plan);
    SL_FAIL_IF(!plan, err, SL_ERR_EXHAUSTED, "no memory for a plan");
    enum sl_status status = sl_plan_make(recipe, &session->geometry, session->n_tokens, session->rope_set, plan, err);
    if (status == SL_OK) {
        asking->offloaded_bytes = (int64_t)sl_plan_offloaded_bytes(plan);
        asking->resident_bytes = (int64_t)sl_plan_decode_bytes(plan, 1);
    }
    free(plan);
    return status;
}

static enum sl_status encode_joined(struct run *run, const char *text, const char *rest, int32_t **ids_out,
                                    size_t *n_out, struct sl_error *err) {
    char *whole = NULL;
    SL_FAIL_IF(asprintf(&whole, "%s%s", text, rest) < 0, err, SL_ERR_EXHAUSTED, "no memory for a document");
    enum sl_status status = sl_tokenizer_encode(run->tokenizer, whole, strlen(whole), true, ids_out, n_out, err);
    free(whole);
    return status;
}

// Encodes what follows the tokens of the document that were read: as a cluster does, in one text with the document.
static enum sl_status encode_question(struct run *run, const char *text, int32_t **ids_out, size_t *n_out,
                                      struct sl_error *err) {
    const size_t n_begin = run->n_begin, n_rest = run->n_document - n_begin;
    SL_TRY(encode_joined(run, run->document_text, text, ids_out, n_out, err));
    if (*n_out >= n_begin && memcmp(*ids_out, run->document_ids, n_begin * sizeof **ids_out) == 0) {
        *n_out -= n_begin;
        memmove(*ids_out, *ids_out + n_begin, *n_out * sizeof **ids_out);
        return SL_OK;
    }
    free(*ids_out); // it changes tokens that were read
    int32_t *asked = NULL;
    size_t n_asked = 0;
    *ids_out = NULL;
    SL_TRY(sl_tokenizer_encode(run->tokenizer, text, strlen(text), false, &asked, &n_asked, err));
    *n_out = n_rest + n_asked;
    *ids_out = malloc((*n_out + 1) * sizeof **ids_out);
    SL_FAIL_OR(!*ids_out, free(asked), err, SL_ERR_EXHAUSTED, "no memory for %zu tokens", *n_out);
    memcpy(*ids_out, run->document_ids + n_begin, n_rest * sizeof **ids_out);
    memcpy(*ids_out + n_rest, asked, n_asked * sizeof **ids_out);
    free(asked);
    return SL_OK;
}

static enum sl_status encode(struct run *run, const struct sl_openai_request *request, int32_t **ids_out,
                             int64_t *n_ids_out, struct sl_error *err) {
    const Sluice__V1__GenerateRequest *message = &request->message;
    size_t n = message->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS ? request->one.tokens.n_ids : 0;
    enum sl_status status = SL_OK;
    if (message->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT) {
        status = message->document[0] ? encode_question(run, message->text, ids_out, &n, err)
                                      : sl_tokenizer_encode(run->tokenizer, message->text, strlen(message->text), true,
                                                            ids_out, &n, err);
    } else if (request->is_chat) {
        status =
            run->chat_template ? SL_OK : sl_chat_template_load(run->config->local.model_dir, &run->chat_template, err);
        status = status == SL_ERR_NOT_FOUND ? SL_ERR_PRECONDITION : status; // the line asks what this model cannot do
        SL_THEN(status, sl_job_chat(run->chat_template, run->tokenizer, message->chat, ids_out, &n, err));
    } else {
        status = sl_job_check_ids(&run->model, "prompt", &request->one.tokens, err);
        *ids_out = status == SL_OK ? malloc((n + 1) * sizeof **ids_out) : NULL;
        if (status == SL_OK && !*ids_out) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu tokens", n);
        } else if (status == SL_OK) {
            memcpy(*ids_out, request->one.tokens.ids, n * sizeof **ids_out);
        }
    }
    *n_ids_out = (int64_t)n;
    return status == SL_OK && n == 0 ? sl_fail(err, SL_ERR_INVALID, "prompt: it has no tokens") : status;
}

// Chooses the recipe in its canonical form, and the number of tokens if the request has none.
static enum sl_status choose(const struct run *run, const struct sl_openai_request *request,
                             struct sl_local_request *asked, char *recipe_out, struct sl_error *err) {
    bool asks_document = request->message.document[0] != '\0'; // then the conversation chooses how many tokens to write
    const char *text = request->message.recipe[0] ? request->message.recipe
                       : asks_document            ? run->document_recipe
                                                  : sl_job_default_recipe(&run->model);
    struct sl_recipe recipe;
    enum sl_status status = sl_recipe_parse(text, &recipe, err);
    if (status == SL_OK) {
        asked->recipe = sl_recipe_format(&recipe, recipe_out, SL_RECIPE_TEXT_BYTES);
        asked->max_new_tokens = request->message.max_new_tokens;
    }
    SL_FAIL_IF(status == SL_OK && asks_document && strcmp(recipe_out, run->document_recipe) != 0, err, SL_ERR_INVALID,
               "recipe: document %.100s was read under %.300s; leave recipe out, or read the document again",
               run->document_name, run->document_recipe);
    if (status == SL_OK && asked->max_new_tokens == 0 && !asks_document) {
        status = sl_job_recipe(text, &run->model, &recipe, err);
        struct sl_job_budget budget = {.model = &run->model,
                                       .recipe = &recipe,
                                       .n_tokens = asked->n_prompt,
                                       .is_chat = request->is_chat,
                                       .in_one_process = true,
                                       .arena_bytes = (int64_t)run->config->local.arena_bytes,
                                       .share = 1};
        SL_THEN(status, sl_job_budget(&budget, &asked->max_new_tokens, err));
    }
    return status;
}

static char *answer_json(const struct sl_openai_request *request, const struct sl_local_request *asked,
                         const struct sl_local_result *result, const struct asking *asking, size_t number) {
    bool offloads = result->offloads;
    Sluice__V1__Statistics statistics = sl_local_statistics(result, asked->recipe);
    statistics.not_cached =
        asked->no_reuse ? SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF : SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID;
    statistics.capsule_bytes = offloads ? asking->shipped_bytes : statistics.capsule_bytes;
    statistics.decode_resident_bytes = offloads ? asking->resident_bytes : statistics.decode_resident_bytes;
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&asked->sampling);
    statistics.sampling = &sampling;
    Sluice__V1__Retrieval retrieval;
    if (offloads) {
        sl_retrieval_statistics_attach(&result->retrieval, &retrieval, &statistics);
        retrieval.offloaded_bytes = asking->offloaded_bytes;
    }
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.reason = result->stop == SL_STOP_LENGTH ? SLUICE__V1__FINISHED__REASON__LENGTH
                                                     : SLUICE__V1__FINISHED__REASON__STOP_TOKEN;
    finished.text = result->text;
    finished.statistics = &statistics;
    char id[32];
    snprintf(id, sizeof id, "local-%zu", number);
    struct sl_openai_answer answer = {.request = request,
                                      .model = request->model ? request->model : asking->run->config->local.model_dir,
                                      .job_id = id,
                                      .created = sl_wall_ms() / 1000};
    return sl_openai_whole(&answer, &finished);
}

// Answers a request of which everything but the tokens is known. *json_out: malloc'd.
static enum sl_status generate(struct run *run, const struct sl_openai_request *request, size_t number, char **json_out,
                               struct sl_error *err) {
    const Sluice__V1__GenerateRequest *message = &request->message;
    int64_t deadline_ms = message->deadline_ms ? message->deadline_ms : run->config->deadline_ms;
    struct asking asking = {.run = run, .deadline_ns = sl_deadline_in_ms(deadline_ms)};
    struct sl_local_request asked = {.sampling = sl_job_sampling(message->sampling, &run->model),
                                     .is_chat = request->is_chat,
                                     .ignore_eos = message->ignore_eos,
                                     .no_reuse = message->no_reuse,
                                     .stops = (const char *const *)message->stop,
                                     .n_stops = message->n_stop,
                                     .progress_fn = on_progress,
                                     .token_fn = on_token,
                                     .prefilled_fn = on_prefilled,
                                     .arg = &asking};
    struct sl_local_result *result = &run->result;
    memset(result, 0, sizeof *result);
    char recipe[SL_RECIPE_TEXT_BYTES];
    int32_t *ids = NULL;
    enum sl_status status = sl_sampling_check(&asked.sampling, err);
    SL_THEN(status, encode(run, request, &ids, &asked.n_prompt, err));
    SL_THEN(status, choose(run, request, &asked, recipe, err));
    if (status == SL_OK) {
        asked.prompt = ids;
        status = sl_job_choose_seed(message->sampling, NULL, &asked.sampling.seed, err);
    }
    SL_THEN(status, message->document[0] ? sl_conversation_turn(run->document, &asked, result, err)
                                         : sl_local_generate(run->local, &asked, result, err));
    if (status == SL_OK) {
        *json_out = answer_json(request, &asked, result, &asking, number);
        status = *json_out ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answer");
    }
    free(result->text);
    free(ids);
    return status;
}

// --- one line -----------------------------------------------------------------------------------------------------

// Loads the weights before the first answer. Its failure ends the run: every further line would fail too.
static enum sl_status load(struct run *run, struct sl_error *err) {
    if (run->local) {
        return SL_OK;
    }
    struct sl_local_config config = run->config->local;
    config.arena_bytes = config.arena_bytes ? config.arena_bytes : run->arena_bytes;
    SL_TRY(sl_local_open(&config, &run->local, err));
    sl_tokenizer_destroy(&run->tokenizer);
    run->tokenizer = (struct sl_tokenizer *)sl_local_tokenizer(run->local);
    return SL_OK;
}

// Rejects fields that need a stream or alternatives of tokens.
static bool check_request(const struct run *run, const struct sl_openai_request *request, struct sl_refusal *refusal) {
    const char *document = request->message.document;
    if (request->stream) {
        sl_refuse_field(refusal, "stream", "stream: a line has one answer; leave it out");
    } else if (request->wants_logprobs) {
        sl_refuse_field(refusal, "logprobs", "logprobs: only a cluster reports them");
    } else if (request->n_prompts > 1) {
        sl_refuse_field(refusal, "prompt", "prompt: a line has one answer; give each prompt a line");
    } else if (request->message.n_documents > 0) {
        sl_refuse_field(refusal, "documents", "documents: only a cluster joins them; name one by `document`");
    } else if (document[0] != '\0' && (!run->document || strcmp(document, run->document_name) != 0)) {
        sl_refuse_field(refusal, "document",
                        "document: the last one that this process has read is %.100s; read it by "
                        "{\"operation\": \"document\"}",
                        run->document ? run->document_name : "none");
    } else if (document[0] != '\0' && request->is_chat) {
        sl_refuse_field(refusal, "messages", "messages: one process asks a document by `prompt`; use a cluster");
    } else {
        return true;
    }
    return false;
}

// Answers a request for text. An error of the line becomes *json_out; a status other than SL_OK ends the run.
static enum sl_status answer_request(struct run *run, bool is_chat, const struct sl_input_line *line, char **json_out,
                                     struct sl_error *err) {
    struct sl_refusal refusal = {0};
    struct sl_openai_request *request = NULL;
    if (sl_openai_request_parse(is_chat, line->text, line->n_bytes, NULL, &request, &refusal) != SL_OK ||
        !check_request(run, request, &refusal)) {
        *json_out = sl_refusal_json(&refusal);
        sl_openai_request_destroy(&request);
        return SL_OK;
    }
    enum sl_status status = load(run, err);
    if (status == SL_OK) {
        struct sl_error why = {0};
        enum sl_status asked = generate(run, request, line->number, json_out, &why);
        if (asked == SL_ERR_CANCELLED) {
            status = sl_fail(err, SL_ERR_CANCELLED, "stopped by a signal at line %zu", line->number);
        } else if (asked != SL_OK) {
            why.status = asked;
            sl_refuse_error(&refusal, &why);
            *json_out = sl_refusal_json(&refusal);
        }
    }
    sl_openai_request_destroy(&request);
    return status;
}

/*
 * Reserves address space for one sequence at a time of this many tokens, including what a recipe holds beside keys and
 * values: scores of a slot, search indexes of offloaded layers, pages that are being repacked. Pages are touched as they
 * are used. Returns the reply; NULL: *refusal has the reason.
 */
static json_t *reserve(struct run *run, const json_t *line, struct sl_refusal *refusal) {
    const struct sl_model_config *m = &run->model;
    int64_t n_tokens = json_integer_value(json_object_get(line, "tokens"));
    if (n_tokens < 1 || n_tokens > m->max_positions) {
        sl_refuse_field(refusal, "tokens", "tokens: expected an integer from 1 to %lld", (long long)m->max_positions);
        return NULL;
    }
    if (run->local) {
        sl_refuse_field(refusal, "operation", "operation: reserve must come before the first answer");
        return NULL;
    }
    size_t token_bytes = (size_t)m->n_layers * (size_t)m->n_kv_heads * (size_t)m->head_dim * 2 * sizeof(float);
    run->arena_bytes = 2 * ((size_t)n_tokens + SL_PAGE_SLOTS) * token_bytes + SPARE_BYTES;
    return json_pack("{s:I}", "arena_bytes", (json_int_t)run->arena_bytes);
}

static void close_document(struct run *run) {
    sl_conversation_close(&run->document);
    free(run->document_name);
    free(run->document_text);
    free(run->document_ids);
    run->document_name = run->document_text = NULL;
    run->document_ids = NULL;
}

// Encodes the document's text, and finds which of its tokens a question after a line break begins with, as a cluster does.
static enum sl_status encode_document(struct run *run, struct sl_error *err) {
    int32_t *asked = NULL;
    size_t n_asked = 0, n = 0;
    SL_TRY(encode_joined(run, run->document_text, "", &run->document_ids, &run->n_document, err));
    SL_TRY(encode_joined(run, run->document_text, "\nQ", &asked, &n_asked, err));
    while (n < run->n_document && n < n_asked && asked[n] == run->document_ids[n]) {
        n++;
    }
    run->n_begin = n;
    free(asked);
    return SL_OK;
}

// Opens a conversation about the document's text and reads that. *n_tokens_out: its tokens, as `sluice doc show` counts them.
static enum sl_status open_document(struct run *run, const char *recipe, int64_t *n_tokens_out, struct sl_error *err) {
    struct sl_recipe parsed;
    enum sl_status status = load(run, err);
    SL_THEN(status, encode_document(run, err));
    SL_THEN(status, sl_conversation_open(run->local, recipe, 0, &run->document, err));
    struct asking asking = {.run = run, .deadline_ns = SL_NO_DEADLINE};
    struct sl_local_request request = {
        .prompt = run->document_ids, .n_prompt = (int64_t)run->n_begin, .progress_fn = on_progress, .arg = &asking};
    SL_THEN(status, sl_conversation_read_document(run->document, &request, &run->result, err));
    SL_THEN(status, sl_recipe_parse(recipe, &parsed, err));
    if (status == SL_OK) {
        sl_recipe_format(&parsed, run->document_recipe, sizeof run->document_recipe);
        *n_tokens_out = (int64_t)run->n_begin;
    }
    return status == SL_ERR_CANCELLED ? sl_fail(err, status, "stopped by a signal") : status;
}

// Reads a text under a recipe, in the place of the last one. Returns the reply; NULL: *refusal has the reason.
static json_t *read_document(struct run *run, const json_t *line, struct sl_refusal *refusal) {
    const char *name = json_string_value(json_object_get(line, "name")),
               *text = json_string_value(json_object_get(line, "text"));
    const char *recipe = json_string_value(json_object_get(line, "recipe"));
    struct sl_error err = {0};
    int64_t n_tokens = 0;
    const bool has_wrong_recipe = !recipe && json_object_get(line, "recipe");
    if (!name || !name[0] || !text || has_wrong_recipe) {
        const char *field = has_wrong_recipe ? "recipe" : name && name[0] ? "text" : "name";
        sl_refuse_field(refusal, field, "document: expected a name, a text and perhaps a recipe, all of them strings");
        return NULL;
    }
    close_document(run);
    run->document_name = strdup(name);
    run->document_text = strdup(text);
    recipe = recipe ? recipe : sl_job_default_recipe(&run->model);
    if (!run->document_name || !run->document_text || open_document(run, recipe, &n_tokens, &err) != SL_OK) {
        close_document(run);
        sl_refuse_error(refusal, &err);
        return NULL;
    }
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:f}", "name", name, "recipe", recipe, "n_tokens", (json_int_t)n_tokens,
                     "capsule_bytes", (json_int_t)run->result.capsule_bytes, "full_bytes",
                     (json_int_t)run->result.full_bytes, "prefill_ms", run->result.prefill_ms);
}

static json_t *operate(struct run *run, const json_t *line, struct sl_refusal *refusal) {
    const char *name = json_string_value(json_object_get(line, "operation"));
    if (name && strcmp(name, "reserve") == 0) {
        return reserve(run, line, refusal);
    }
    if (name && strcmp(name, "document") == 0) {
        return read_document(run, line, refusal);
    }
    struct sl_jsonl_model model = {.dir = run->config->local.model_dir,
                                   .weights = run->config->weights,
                                   .fingerprint = run->fingerprint,
                                   .config = &run->model,
                                   .tokenizer = run->tokenizer};
    return sl_jsonl_ask(&model, line, refusal);
}

static enum sl_status answer_line(struct run *run, const struct sl_input_line *line, char **json_out,
                                  struct sl_error *err) {
    struct sl_refusal refusal = {0};
    if (line->is_too_long) {
        sl_refuse(&refusal, 413, "a line has at most %zu MiB", SL_JSONL_MAX_LINE_BYTES >> 20);
        *json_out = sl_refusal_json(&refusal);
        return SL_OK;
    }
    json_t *json = json_loadb(line->text, line->n_bytes, JSON_REJECT_DUPLICATES, NULL);
    bool is_operation = json_object_get(json, "operation"), is_chat = json_object_get(json, "messages");
    json_t *reply = NULL;
    if (is_operation) {
        reply = operate(run, json, &refusal);
        *json_out = reply ? json_dumps(reply, JSON_COMPACT) : sl_refusal_json(&refusal);
    }
    json_decref(reply);
    json_decref(json);
    return is_operation ? SL_OK : answer_request(run, is_chat, line, json_out, err);
}

static enum sl_status print_line(FILE *out, char *json, struct sl_error *err) {
    SL_FAIL_IF(!json, err, SL_ERR_EXHAUSTED, "no memory for an answer");
    bool printed = fprintf(out, "%s\n", json) > 0 && fflush(out) == 0;
    free(json);
    return printed ? SL_OK : sl_fail(err, SL_ERR_IO, "standard output cannot be written: %s", strerror(errno));
}

// --- the run ------------------------------------------------------------------------------------------------------

static enum sl_status open_model(struct run *run, struct sl_error *err) {
    const struct sl_local_config *local = &run->config->local;
    SL_TRY(sl_model_config_load(local->model_dir, &run->model, err));
    SL_TRY(sl_model_fingerprint(local->model_dir, local->weights, &run->fingerprint, err));
    return sl_tokenizer_load(local->model_dir, &run->tokenizer, err);
}

static void close_model(struct run *run) {
    close_document(run);
    if (!run->local) {
        sl_tokenizer_destroy(&run->tokenizer);
    }
    sl_local_close(&run->local);
    sl_chat_template_destroy(&run->chat_template);
}

static bool is_blank(const struct sl_input_line *line) {
    for (size_t i = 0; i < line->n_bytes; i++) {
        if (line->text[i] == '\0' || !strchr(" \t\r", line->text[i])) {
            return false;
        }
    }
    return !line->is_too_long;
}

enum sl_status sl_jsonl_run(const struct sl_jsonl_config *config, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct run, run, err, "no memory to answer lines");
    run->config = config;
    struct sl_line_reader lines = {.fd = config->in, .max_bytes = SL_JSONL_MAX_LINE_BYTES, .signals = config->signals};
    enum sl_status status = open_model(run, err);
    while (status == SL_OK) {
        struct sl_input_line line;
        status = sl_line_reader_next(&lines, &line, err);
        if (status != SL_OK || line.is_end) {
            break;
        }
        if (!is_blank(&line)) {
            char *json = NULL;
            status = answer_line(run, &line, &json, err);
            SL_THEN(status, print_line(config->out, json, err));
        }
    }
    sl_line_reader_cleanup(&lines);
    close_model(run);
    free(run);
    return status;
}
