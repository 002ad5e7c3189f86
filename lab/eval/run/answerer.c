// SPDX-License-Identifier: Apache-2.0
// Purpose: asks a model in this process, or a cluster. See answerer.h.
#include "lab/eval/run/answerer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "engine/kvcache/capsule.h"
#include "client/libsluice/sluice.h"
#include "net/rpc/rpc.h"
#include "engine/runner/local.h"

#define REQUEST_MS  10000 // for a request to the coordinator other than a job
#define SPARE_BYTES ((size_t)64 << 20)

struct sl_answerer {
    struct sl_answerer_config config;
    uint64_t fingerprint;
    struct sl_local *local; // NULL: uses a cluster and the following members
    struct sl_client *client;
    struct sl_tokenizer *tokenizer;
    struct sl_model_config model;
};

// --- in this process --------------------------------------------------------------------------------------------

/*
 * Returns address space for one session at a time, including what a recipe holds beside keys and values: scores of a
 * slot, search indexes of offloaded layers, pages that are being repacked. Pages are touched as they are used.
 */
static size_t arena_bytes(const struct sl_model_config *model, int64_t max_tokens) {
    size_t tokens = (size_t)(max_tokens > 0 ? max_tokens : model->max_positions) + SL_PAGE_SLOTS;
    size_t token_bytes =
        (size_t)model->n_layers * (size_t)model->n_kv_heads * (size_t)model->head_dim * 2 * sizeof(float);
    return 2 * tokens * token_bytes + SPARE_BYTES;
}

// Returns memory for prefixes that recipes share, as a prompt is asked under many recipes: up to a quarter of the
// machine's memory.
static size_t trunk_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (size_t)pages / 4 * (size_t)page_bytes : 0;
}

static enum sl_status open_local(struct sl_answerer *a, struct sl_error *err) {
    struct sl_local_config config = {.model_dir = a->config.model_dir,
                                     .weights = a->config.weights,
                                     .device = a->config.device,
                                     .threads = a->config.threads,
                                     .arena_bytes = arena_bytes(&a->model, a->config.max_tokens),
                                     .trunk_bytes = trunk_bytes()};
    return sl_local_open(&config, &a->local, err);
}

static enum sl_status go_on(const struct sl_answerer *a) {
    return a->config.stopped && a->config.stopped(a->config.arg) ? SL_ERR_CANCELLED : SL_OK;
}

struct asking {
    const struct sl_answerer *answerer;
    int64_t shipped_bytes, offloaded_bytes, resident_bytes; // for recipes that offload; else 0
};

static enum sl_status on_progress(void *arg, int64_t tokens_done, int64_t tokens_total) {
    (void)tokens_done;
    (void)tokens_total;
    return go_on(((const struct asking *)arg)->answerer);
}

static enum sl_status on_token(void *arg, const struct sl_output_token *written) {
    (void)written;
    return go_on(((const struct asking *)arg)->answerer);
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
    struct sl_plan plan;
    enum sl_status status = sl_plan_make(recipe, &session->geometry, session->n_tokens, session->rope_set, &plan, err);
    if (status == SL_OK) {
        asking->offloaded_bytes = (int64_t)sl_plan_offloaded_bytes(&plan);
        asking->resident_bytes = (int64_t)sl_plan_decode_bytes(&plan, 1);
    }
    return status;
}

static enum sl_status ask_local(struct sl_answerer *a, const struct sl_question *question, struct sl_reply *reply,
                                struct sl_error *err) {
    struct asking asking = {.answerer = a};
    struct sl_local_request request = {.recipe = question->recipe,
                                       .prompt = question->ids,
                                       .n_prompt = question->n_ids,
                                       .sampling = {.top_p = 1, .repetition_penalty = 1}, // temperature 0: greedy
                                       .max_new_tokens = question->max_new_tokens,
                                       .progress_fn = on_progress,
                                       .token_fn = on_token,
                                       .prefilled_fn = on_prefilled,
                                       .arg = &asking};
    struct sl_local_result result;
    enum sl_status status = sl_local_generate(a->local, &request, &result, err);
    if (status == SL_OK) {
        bool offloads = result.offloads;
        *reply = (struct sl_reply){
            .text = result.text,
            .n_output_tokens = result.n_output_tokens,
            .n_reused = result.n_tokens - result.n_read,
            .shipped_bytes = offloads ? asking.shipped_bytes : (int64_t)result.capsule_bytes,
            .offloaded_bytes = asking.offloaded_bytes,
            .full_bytes = (int64_t)result.full_bytes,
            .resident_bytes = offloads ? asking.resident_bytes : (int64_t)result.decode_resident_bytes,
            .slots_per_head = result.slots_per_head,
            .ttft_ms = result.ttft_ms,
            .tpot_ms = result.tpot_ms,
        };
    }
    return status;
}

// --- a cluster --------------------------------------------------------------------------------------------------

static enum sl_status check_workers(const struct sl_answerer *a, const Sluice__V1__WorkersReply *reply,
                                    struct sl_error *err) {
    size_t n = 0;
    for (size_t i = 0; i < reply->n_workers; i++) {
        const Sluice__V1__WorkerInfo *info = reply->workers[i]->info;
        if (!info || info->model_fingerprint == 0) { // kvstores accept capsules of any model
            continue;
        }
        n++;
        if (info->model_fingerprint != a->fingerprint) {
            return sl_fail(err, SL_ERR_PRECONDITION,
                           "%s at %s serves another model than %s, or with other --weights: give the folder and the "
                           "format that the cluster was started with",
                           info->name, a->config.coordinator, a->config.model_dir);
        }
    }
    return n > 0 ? SL_OK
                 : sl_fail(err, SL_ERR_PEER_LOST, "the cluster at %s has no workers that serve a model",
                           a->config.coordinator);
}

static enum sl_status open_cluster(struct sl_answerer *a, struct sl_error *err) {
    enum sl_status status = sl_tokenizer_load(a->config.model_dir, &a->tokenizer, err);
    if (status != SL_OK) {
        return status;
    }
    sl_rpc_init();
    status = sl_client_connect(a->config.coordinator, &a->config.tls, &a->client, err);
    if (status != SL_OK) {
        sl_rpc_shutdown();
        return status;
    }
    Sluice__V1__WorkersReply *reply;
    status = sl_client_workers(a->client, sl_deadline_in_ms(REQUEST_MS), &reply, err);
    if (status == SL_OK) {
        status = check_workers(a, reply, err);
        sluice__v1__workers_reply__free_unpacked(reply, NULL);
    }
    return status;
}

struct hearing {
    const struct sl_answerer *answerer;
    struct sl_reply reply;
    bool found_stored;     // stores already had part of the prompt: the statistics only cover the rest
    enum sl_status status; // of the job
    struct sl_error *err;
};

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct hearing *hearing = arg;
    if (event->what_case != SLUICE__V1__EVENT__WHAT_FINISHED) {
        return;
    }
    const Sluice__V1__Finished *finished = event->finished;
    const Sluice__V1__Statistics *s = finished->statistics;
    if (finished->status_code != 0) {
        hearing->status = sl_fail(hearing->err, sl_rpc_status_of_code(finished->status_code), "%s: %s",
                                  sl_rpc_code_name(finished->status_code), finished->status_text);
        return;
    }
    hearing->reply = (struct sl_reply){.text = strdup(finished->text)};
    if (!hearing->reply.text || !s) {
        hearing->status = sl_fail(hearing->err, SL_ERR_EXHAUSTED, "no memory for an answer");
        return;
    }
    hearing->reply.n_output_tokens = s->n_output_tokens;
    hearing->reply.n_reused = s->n_reused_tokens;
    hearing->reply.shipped_bytes = s->capsule_bytes;
    hearing->reply.offloaded_bytes = s->retrieval ? s->retrieval->offloaded_bytes : 0;
    hearing->found_stored = s->retrieval && s->retrieval->reused_tokens > 0;
    hearing->reply.full_bytes = s->full_bytes;
    hearing->reply.resident_bytes = s->decode_resident_bytes;
    hearing->reply.slots_per_head = s->slots_per_head;
    hearing->reply.ttft_ms = s->ttft_ms;
    hearing->reply.tpot_ms = s->tpot_ms;
    hearing->status = SL_OK;
}

static bool is_stopped(void *arg) {
    return go_on(((const struct hearing *)arg)->answerer) != SL_OK;
}

// Computes what stores would get of a prompt if they held none of it: all but its last token, which decode reads.
static enum sl_status plan_offloaded(const struct sl_answerer *a, const struct sl_question *question,
                                     int64_t *bytes_out, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(&a->model);
    struct sl_recipe recipe;
    struct sl_plan plan;
    enum sl_status status = sl_job_recipe(question->recipe, &a->model, &recipe, err);
    status = status == SL_OK ? sl_plan_make(&recipe, &geometry, question->n_ids - 1, 0, &plan, err) : status;
    if (status == SL_OK) {
        *bytes_out = (int64_t)sl_plan_offloaded_bytes(&plan);
    }
    return status;
}

static enum sl_status ask_cluster(struct sl_answerer *a, const struct sl_question *question, struct sl_reply *reply,
                                  struct sl_error *err) {
    Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT;
    tokens.ids = (int32_t *)question->ids;
    tokens.n_ids = (size_t)question->n_ids;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &tokens;
    request.recipe = (char *)question->recipe;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = (int32_t)question->max_new_tokens;
    request.deadline_ms = a->config.deadline_ms;
    request.label = (char *)"sluice eval";
    struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&greedy); // regardless of the model's own settings
    request.sampling = &sampling;

    struct hearing hearing = {.answerer = a, .status = SL_ERR_INTERNAL, .err = err};
    struct sl_watch watch = {
        .deadline_ns = a->config.deadline_ms ? sl_deadline_in_ms(a->config.deadline_ms + REQUEST_MS) : SL_NO_DEADLINE,
        .on_event = on_event,
        .stopped = is_stopped,
        .arg = &hearing};
    char job_id[SL_JOB_ID_BYTES] = "";
    enum sl_status status = sl_client_generate(a->client, &request, &watch, job_id, err);
    status = status == SL_OK ? hearing.status : status;
    if (status == SL_OK && hearing.found_stored) {
        status = plan_offloaded(a, question, &hearing.reply.offloaded_bytes, err);
    }
    if (status == SL_OK) {
        *reply = hearing.reply;
    } else {
        free(hearing.reply.text);
    }
    return status;
}

// --- either -----------------------------------------------------------------------------------------------------

enum sl_status sl_answerer_open(const struct sl_answerer_config *config, struct sl_answerer **answerer_out,
                                struct sl_error *err) {
    struct sl_answerer *a = calloc(1, sizeof *a);
    if (!a) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answerer");
    }
    a->config = *config;
    enum sl_status status = sl_model_config_load(config->model_dir, &a->model, err);
    if (status == SL_OK) {
        status = sl_model_fingerprint(config->model_dir, config->weights, &a->fingerprint, err);
    }
    if (status == SL_OK) {
        status = config->coordinator ? open_cluster(a, err) : open_local(a, err);
    }
    if (status != SL_OK) {
        sl_answerer_close(&a);
        return status;
    }
    *answerer_out = a;
    return SL_OK;
}

void sl_answerer_close(struct sl_answerer **answerer) {
    struct sl_answerer *a = *answerer;
    if (!a) {
        return;
    }
    if (a->client) {
        sl_client_close(&a->client);
        sl_rpc_shutdown();
    }
    sl_local_close(&a->local);
    sl_tokenizer_destroy(&a->tokenizer);
    free(a);
    *answerer = NULL;
}

const struct sl_tokenizer *sl_answerer_tokenizer(const struct sl_answerer *answerer) {
    return answerer->local ? sl_local_tokenizer(answerer->local) : answerer->tokenizer;
}
const struct sl_model_config *sl_answerer_model(const struct sl_answerer *answerer) {
    return answerer->local ? sl_local_model(answerer->local) : &answerer->model;
}
uint64_t sl_answerer_fingerprint(const struct sl_answerer *answerer) {
    return answerer->fingerprint;
}

enum sl_status sl_answerer_ask(struct sl_answerer *answerer, const struct sl_question *question,
                               struct sl_reply *reply_out, struct sl_error *err) {
    return answerer->local ? ask_local(answerer, question, reply_out, err)
                           : ask_cluster(answerer, question, reply_out, err);
}
