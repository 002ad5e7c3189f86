// SPDX-License-Identifier: Apache-2.0
#include "client/cli/local_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/job/job_chat.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "engine/kvcache/capsule_file.h"
#include "engine/model/model.h"
#include "base/options/config.h"
#include "engine/runner/local.h"
#include "engine/text/tokenizer/tokenizer.h"

#define JOB_ID    "local"
#define MIN_ARENA (INT64_C(1) << 20)

struct job {
    struct sl_local *local; // this and the next are NULL for the turns of a talk
    const struct sl_request *request;
    const struct sl_watch *watch;
    const char *model_dir, *capsule_path; // capsule_path: NULL when no capsule is wanted
    enum sl_weight_format weights;
    int64_t sequence;
    int64_t deadline_ns;
    char recipe[SL_RECIPE_TEXT_BYTES]; // canonical
    uint64_t seed;                     // for all its turns
};

// Sends an event. It points to its content, so the caller sets `what` and `case` and this function does the rest.
static void tell(struct job *job, Sluice__V1__Event *event) {
    event->sequence = ++job->sequence;
    event->time_ms = sl_wall_ms();
    event->job_id = (char *)JOB_ID;
    job->watch->on_event(job->watch->arg, event);
}

static void tell_state(struct job *job, Sluice__V1__JobState state) {
    Sluice__V1__StateChange change = SLUICE__V1__STATE_CHANGE__INIT;
    change.state = state;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_STATE;
    event.state = &change;
    tell(job, &event);
}

static enum sl_status go_on(const struct job *job) {
    if (job->watch->stopped && job->watch->stopped(job->watch->arg)) {
        return SL_ERR_CANCELLED;
    }
    return sl_deadline_left_ms(job->deadline_ns) == 0 ? SL_ERR_DEADLINE : SL_OK;
}

static enum sl_status on_progress(void *arg, int64_t tokens_done, int64_t tokens_total) {
    struct job *job = arg;
    Sluice__V1__PrefillProgress progress = SLUICE__V1__PREFILL_PROGRESS__INIT;
    progress.tokens_done = tokens_done;
    progress.tokens_total = tokens_total;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_PREFILL;
    event.prefill = &progress;
    tell(job, &event);
    return go_on(job);
}

static enum sl_status on_token(void *arg, const struct sl_output_token *written) {
    struct job *job = arg;
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.id = written->token.id;
    token.text = (char *)written->text;
    token.index = written->index;
    token.logprob = written->token.logprob;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
    event.token = &token;
    tell(job, &event);
    return go_on(job);
}

static enum sl_status save_capsule(void *arg, const struct sl_session *session, const struct sl_recipe *recipe,
                                   const int32_t *tokens, struct sl_error *err) {
    _Static_assert(SL_RECIPE_TEXT_BYTES <= SL_CAPSULE_LABEL_BYTES, "every recipe can be a label");
    static const struct sl_hash128 nobodys = {{0}}; // the salt if there are no tenants
    const struct job *job = arg;
    struct sl_capsule_id id = {.recipe_fingerprint = sl_recipe_fingerprint(recipe),
                               .prefix_hash = sl_prefix_hash(&nobodys, tokens, session->n_tokens)};
    char text[SL_RECIPE_TEXT_BYTES];
    enum sl_status status = sl_model_fingerprint(job->model_dir, job->weights, &id.model_fingerprint, err);
    id.model_fingerprint = sl_model_set_fingerprint(id.model_fingerprint, session->rope_set);
    return status == SL_OK ? sl_capsule_file_write(job->capsule_path, session, &id,
                                                   sl_recipe_format(recipe, text, sizeof text), err)
                           : status;
}

Sluice__V1__Statistics sl_local_statistics(const struct sl_local_result *result, const char *recipe) {
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.n_prompt_tokens = result->n_tokens;
    statistics.n_reused_tokens = result->n_tokens - result->n_read; // tokens of earlier turns
    statistics.n_output_tokens = result->n_output_tokens;
    statistics.prefill_ms = result->prefill_ms;
    statistics.ttft_ms = result->ttft_ms;
    statistics.tpot_ms = result->tpot_ms;
    statistics.total_ms = result->total_ms;
    statistics.capsule_bytes = (int64_t)result->capsule_bytes;
    statistics.full_bytes = (int64_t)result->full_bytes;
    statistics.decode_resident_bytes = (int64_t)result->decode_resident_bytes;
    statistics.slots_per_head = result->slots_per_head;
    statistics.transport = (char *)"nothing: one process";
    statistics.recipe = (char *)recipe;
    return statistics;
}

static void tell_end(struct job *job, const struct sl_local_request *request, struct sl_local_result *result) {
    static const Sluice__V1__Finished__Reason reasons[] = {
        [SL_STOP_TOKEN] = SLUICE__V1__FINISHED__REASON__STOP_TOKEN,
        [SL_STOP_STRING] = SLUICE__V1__FINISHED__REASON__STOP_STRING,
        [SL_STOP_LENGTH] = SLUICE__V1__FINISHED__REASON__LENGTH,
    };
    Sluice__V1__Statistics statistics = sl_local_statistics(result, job->recipe);
    statistics.prefill_peak_bytes = (int64_t)result->prefill_peak_bytes;
    statistics.slots_evicted = result->slots_evicted;
    statistics.slots_merged = result->slots_merged;
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&request->sampling);
    statistics.sampling = &sampling;
    sl_slot_statistics_attach(&result->slots, &statistics);
    sl_error_statistics_attach(&result->errors, &statistics);
    Sluice__V1__Retrieval retrieval;
    if (result->offloads) {
        sl_retrieval_statistics_attach(&result->retrieval, &retrieval, &statistics);
    }

    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.reason = result->cut ? SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT : reasons[result->stop];
    finished.text = result->text;
    finished.statistics = &statistics;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_FINISHED;
    event.finished = &finished;
    tell(job, &event);
}

static bool is_chat(const Sluice__V1__GenerateRequest *request) {
    return request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
}

// Encodes a turn's text. For the first turn of a chat request, the model's template renders the text.
static enum sl_status encode_turn(const struct job *job, const char *text, bool first, int32_t **ids_out,
                                  size_t *n_ids_out, struct sl_error *err) {
    const struct sl_tokenizer *tokenizer = sl_local_tokenizer(job->local);
    if (!is_chat(&job->request->message)) {
        return sl_tokenizer_encode(tokenizer, text, strlen(text), first, ids_out, n_ids_out, err);
    }
    struct sl_chat_template *chat_template = NULL;
    SL_TRY(sl_chat_template_load(job->model_dir, &chat_template, err));
    enum sl_status status = sl_job_chat(chat_template, tokenizer, job->request->message.chat, ids_out, n_ids_out, err);
    sl_chat_template_destroy(&chat_template);
    return status;
}

// Makes the request for the conversation; job->seed has been chosen.
static struct sl_local_request local_request(const struct sl_local *local, const Sluice__V1__GenerateRequest *message,
                                             const int32_t *ids, size_t n_ids, struct job *job) {
    struct sl_local_request request = {
        .prompt = ids,
        .n_prompt = (int64_t)n_ids,
        .sampling = sl_job_sampling(message->sampling, sl_local_model(local)),
        .max_new_tokens = message->max_new_tokens, // 0 if the message has none
        .is_chat = is_chat(message),
        .ignore_eos = message->ignore_eos,
        .estimate_errors = message->estimate_errors,
        .stops = (const char *const *)message->stop,
        .n_stops = message->n_stop,
        .progress_fn = on_progress,
        .token_fn = on_token,
        .arg = job,
    };
    request.sampling.seed = job->seed;
    return request;
}

// Runs a turn, from its tokens to its last event; the caller frees result_out->text.
static enum sl_status ask(struct sl_conversation *conversation, const struct sl_local_request *request, struct job *job,
                          struct sl_local_result *result_out, struct sl_error *err) {
    tell_state(job, SLUICE__V1__JOB_STATE__PREFILLING);
    struct sl_error why = {0};
    enum sl_status status = sl_conversation_turn(conversation, request, result_out, &why);
    SL_FAIL_IF(status != SL_OK, err, status, "%s", why.text[0] ? why.text : sl_status_text(status));
    tell_end(job, request, result_out);
    return SL_OK;
}

// Warns before the text is read, which may take minutes.
static void warn_of_length(const char *recipe, int64_t n_tokens) {
    char caution[SL_CAUTION_BYTES];
    sl_recipe_caution(recipe, n_tokens, caution);
    if (caution[0]) {
        sl_log_warn("client", "the text has %lld tokens: %s", (long long)n_tokens, caution);
    }
}

static enum sl_status run_turn(struct job *job, struct sl_conversation *conversation, const char *text, bool first,
                               struct sl_error *err) {
    int32_t *ids = NULL;
    size_t n_ids;
    SL_TRY(encode_turn(job, text, first, &ids, &n_ids, err));
    if (first && job->request->n_turns > 0) {
        warn_of_length(job->recipe, (int64_t)n_ids);
    }
    struct sl_local_request turn = local_request(job->local, &job->request->message, ids, n_ids, job);
    turn.prefilled_fn = first && job->capsule_path ? save_capsule : NULL;
    struct sl_local_result *result = calloc(1, sizeof *result); // it has every head's slots: too large for the stack
    enum sl_status status =
        result ? ask(conversation, &turn, job, result, err) : sl_fail(err, SL_ERR_EXHAUSTED, "local: out of memory");
    free(result ? result->text : NULL);
    free(result);
    free(ids);
    return status;
}

// Runs a later question, which starts on a line of its own, as the first one does.
static enum sl_status run_question(struct job *job, struct sl_conversation *conversation, const char *question,
                                   struct sl_error *err) {
    char *text;
    SL_FAIL_IF(asprintf(&text, "\n%s", question) < 0, err, SL_ERR_EXHAUSTED, "local: out of memory");
    enum sl_status status = run_turn(job, conversation, text, false, err);
    free(text);
    return status;
}

static enum sl_status run_turns(struct job *job, struct sl_error *err) {
    const struct sl_request *request = job->request;
    const char *named = request->message.recipe;
    const char *text = named[0] ? named : sl_job_default_recipe(sl_local_model(job->local));
    struct sl_recipe recipe;
    struct sl_conversation *conversation;
    SL_TRY(sl_recipe_parse(text, &recipe, err));
    SL_TRY(sl_conversation_open(job->local, text, 0, &conversation, err));
    sl_recipe_format(&recipe, job->recipe, sizeof job->recipe);
    if (request->n_turns > 0 && !sl_recipe_serves_later(&recipe)) {
        sl_log_warn("client",
                    "%s chooses slots for the first question: others may find nothing. See `sluice recipes "
                    "--recommended`",
                    job->recipe);
    }
    enum sl_status status = sl_job_choose_seed(request->message.sampling, NULL, &job->seed, err);
    SL_THEN(status, run_turn(job, conversation, request->prompt, true, err));
    for (int i = 0; status == SL_OK && i < request->n_turns; i++) {
        status = run_question(job, conversation, request->turns[i], err);
    }
    sl_conversation_close(&conversation);
    return status;
}

static enum sl_status open_local(const struct sl_local_config *config, struct sl_local **local_out,
                                 struct sl_error *err) {
    SL_TRY(sl_local_open(config, local_out, err));
    sl_model_sampling_log(&sl_local_model(*local_out)->sampling, "client");
    return SL_OK;
}

enum sl_status sl_local_arena_parse(const char *text, size_t *bytes_out, struct sl_error *err) {
    int64_t bytes = 0;
    SL_FAIL_IF(text[0] != '\0' && strcmp(text, "auto") != 0 &&
                   (sl_parse_size(text, &bytes) != SL_OK || bytes < MIN_ARENA),
               err, SL_ERR_INVALID, "--arena: '%s' is neither auto nor a size of 1M or more, such as 64M or 2G", text);
    *bytes_out = (size_t)bytes;
    return SL_OK;
}

static struct sl_chat_template *load_template(const char *model_dir) {
    struct sl_chat_template *chat_template = NULL;
    struct sl_error err;
    enum sl_status status = sl_chat_template_load(model_dir, &chat_template, &err);
    if (status != SL_OK && status != SL_ERR_NOT_FOUND) {
        sl_log_warn("client", "no chats with this model: %s", err.text);
    }
    return status == SL_OK ? chat_template : NULL;
}

bool sl_local_takes_chats(const char *model_dir) {
    struct sl_chat_template *chat_template = load_template(model_dir);
    const bool takes = chat_template != NULL;
    sl_chat_template_destroy(&chat_template);
    return takes;
}

enum sl_status sl_local_job(const struct sl_local_config *config, const struct sl_request *request,
                            const char *capsule_path, const struct sl_watch *watch, struct sl_error *err) {
    struct sl_local *local = NULL;
    SL_TRY(open_local(config, &local, err));
    struct job job = {.local = local,
                      .request = request,
                      .watch = watch,
                      .model_dir = config->model_dir,
                      .weights = config->weights,
                      .capsule_path = capsule_path,
                      .deadline_ns = watch->deadline_ns};
    enum sl_status status = run_turns(&job, err);
    sl_local_close(&local);
    return status;
}

// ---- a conversation whose turns come one by one ---------------------------------------------------------------------

struct sl_local_talk {
    struct sl_local *local;
    struct sl_chat_template *chat_template; // NULL: the model only takes texts
    struct sl_conversation *conversation;   // NULL: no tokens have been read
    char recipe[SL_RECIPE_TEXT_BYTES];      // its canonical text
    size_t n_before;                        // for a chat: messages before its last answer
    char *before;                           // for a text: all of it, with its last answer
    bool ended_by_token;                    // the model ended its last answer with a token
    uint64_t seed;                          // seed of the last turn, kept by a turn that continues it
    struct sl_local_result result;          // of the last turn, without its text
};

enum sl_status sl_local_talk_open(const struct sl_local_config *config, struct sl_local_talk **talk_out,
                                  struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_local_talk, talk, err, "local: out of memory");
    SL_TRY_OR(open_local(config, &talk->local, err), sl_local_talk_close(&talk));
    talk->chat_template = load_template(config->model_dir);
    *talk_out = talk;
    return SL_OK;
}

void sl_local_talk_forget(struct sl_local_talk *talk) {
    sl_conversation_close(&talk->conversation);
    free(talk->before);
    talk->before = NULL;
    talk->n_before = 0;
}

void sl_local_talk_close(struct sl_local_talk **talk_inout) {
    SL_TAKE_OR_RETURN(talk, talk_inout);
    sl_local_talk_forget(talk);
    sl_chat_template_destroy(&talk->chat_template);
    sl_local_close(&talk->local);
    free(talk);
}

bool sl_local_talk_takes_chats(const struct sl_local_talk *talk) {
    return talk->chat_template != NULL;
}

// Encodes the new part of a request that continues the conversation. SL_ERR_PRECONDITION: it does not continue it.
static enum sl_status encode_new(const struct sl_local_talk *talk, const Sluice__V1__GenerateRequest *request,
                                 int32_t **ids_out, size_t *n_ids_out, struct sl_error *err) {
    const struct sl_tokenizer *tokenizer = sl_local_tokenizer(talk->local);
    if (!talk->conversation || (talk->n_before == 0 && !talk->before)) {
        return SL_ERR_PRECONDITION;
    }
    if (is_chat(request)) {
        // Then the last question was left out, because its answer was empty
        if (request->chat->n_messages < talk->n_before + 2) {
            return SL_ERR_PRECONDITION;
        }
        return sl_job_chat_turn(talk->chat_template, tokenizer, request->chat, talk->n_before, ids_out, n_ids_out, err);
    }
    size_t n = talk->before ? strlen(talk->before) : 0;
    bool same = n > 0 && strncmp(request->text, talk->before, n) == 0 && request->text[n] != '\0';
    return same ? sl_tokenizer_encode(tokenizer, request->text + n, strlen(request->text + n), false, ids_out,
                                      n_ids_out, err)
                : SL_ERR_PRECONDITION;
}

static enum sl_status encode_all(const struct sl_local_talk *talk, const Sluice__V1__GenerateRequest *request,
                                 int32_t **ids_out, size_t *n_ids_out, struct sl_error *err) {
    const struct sl_tokenizer *tokenizer = sl_local_tokenizer(talk->local);
    if (!is_chat(request)) {
        return sl_tokenizer_encode(tokenizer, request->text, strlen(request->text), true, ids_out, n_ids_out, err);
    }
    return talk->chat_template ? sl_job_chat(talk->chat_template, tokenizer, request->chat, ids_out, n_ids_out, err)
                               : sl_fail(err, SL_ERR_INVALID, "the model has no chat template");
}

// Chooses the session for a recipe: the current one, or a new one.
static enum sl_status choose_recipe(struct sl_local_talk *talk, const Sluice__V1__GenerateRequest *request,
                                    struct sl_error *err) {
    const char *text = request->recipe[0] ? request->recipe : sl_job_default_recipe(sl_local_model(talk->local));
    struct sl_recipe recipe;
    char canonical[SL_RECIPE_TEXT_BYTES];
    SL_TRY(sl_recipe_parse(text, &recipe, err));
    if (strcmp(sl_recipe_format(&recipe, canonical, sizeof canonical), talk->recipe) != 0) {
        sl_local_talk_forget(talk);
        strcpy(talk->recipe, canonical);
    }
    return SL_OK;
}

// Stores data of this turn for the next one. Without memory for it, the next turn reads the whole conversation.
static void remember(struct sl_local_talk *talk, const Sluice__V1__GenerateRequest *request) {
    free(talk->before);
    talk->before = NULL;
    talk->ended_by_token = talk->result.stop == SL_STOP_TOKEN;
    talk->n_before = is_chat(request) ? request->chat->n_messages : 0;
    if (!is_chat(request) && asprintf(&talk->before, "%s%s", request->text, talk->result.text) < 0) {
        talk->before = NULL;
    }
}

enum sl_status sl_local_talk_turn(struct sl_local_talk *talk, const Sluice__V1__GenerateRequest *request,
                                  const struct sl_watch *watch, struct sl_error *err) {
    struct job job = {.watch = watch, .deadline_ns = watch->deadline_ns};
    int32_t *ids = NULL;
    size_t n_ids;
    SL_TRY(choose_recipe(talk, request, err));
    strcpy(job.recipe, talk->recipe);
    enum sl_status status = encode_new(talk, request, &ids, &n_ids, err);
    const uint64_t *known = status == SL_OK ? &talk->seed : NULL;
    if (status == SL_ERR_PRECONDITION) {
        sl_local_talk_forget(talk);
        status = encode_all(talk, request, &ids, &n_ids, err);
        SL_THEN(status, sl_conversation_open(talk->local, talk->recipe, 0, &talk->conversation, err));
    }
    SL_THEN(status, sl_job_choose_seed(request->sampling, known, &job.seed, err));
    if (status == SL_OK) {
        talk->seed = job.seed;
        struct sl_local_request turn = local_request(talk->local, request, ids, n_ids, &job);
        turn.may_cut = true;
        turn.replaces_last = talk->ended_by_token;
        memset(&talk->result, 0, sizeof talk->result);
        status = ask(talk->conversation, &turn, &job, &talk->result, err);
        // After a stop string the session contains it, but the answer does not
        if (status == SL_OK && talk->result.stop != SL_STOP_STRING) {
            remember(talk, request);
        } else if (status != SL_ERR_INVALID) {
            sl_local_talk_forget(talk);
        }
        free(talk->result.text);
        talk->result.text = NULL;
    }
    free(ids);
    return status;
}
