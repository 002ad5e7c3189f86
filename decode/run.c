// SPDX-License-Identifier: Apache-2.0
// The handler of Decode.Run: one answer from its received capsule to its last token.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "compress/evict/compressor.h"
#include "compress/plan/plan.h"
#include "decode/internal.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "service/error_statistics.h"
#include "service/job_recipe.h"
#include "service/retrieval_statistics.h"
#include "service/slot_statistics.h"

#define ALIVE_MS  300  // between two signs of life; callers take seconds of silence for death
#define NOTICE_MS 1000 // at least, between two notices of a job

// ---- the request ---------------------------------------------------------------------------------------------------

static enum sl_status check_ids(const struct sl_model_config *model, const char *field, const Sluice__V1__TokenIds *ids,
                                struct sl_error *err) {
    for (size_t i = 0; ids && i < ids->n_ids; i++) {
        if (ids->ids[i] < 0 || ids->ids[i] >= model->n_vocab) {
            return sl_fail(err, SL_ERR_INVALID, "%s: id %d at index %zu is not below the vocabulary's %d", field,
                           ids->ids[i], i, model->n_vocab);
        }
    }
    return SL_OK;
}

static enum sl_status check_request(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                    struct sl_error *err) {
    const struct sl_model_config *model = sl_model_get_config(decode->node.model);
    if (!request->prompt || request->prompt->n_ids == 0) {
        return sl_fail(err, SL_ERR_INVALID, "prompt: empty");
    }
    int64_t n_resumed = request->resumed ? (int64_t)request->resumed->n_ids : 0;
    if (n_resumed >= request->max_new_tokens) {
        return sl_fail(err, SL_ERR_INVALID, "max_new_tokens is %d but %lld tokens are resumed", request->max_new_tokens,
                       (long long)n_resumed);
    }
    if ((int64_t)request->prompt->n_ids + request->max_new_tokens > model->max_positions) {
        return sl_fail(err, SL_ERR_INVALID,
                       "prompt of %zu tokens and max_new_tokens %d exceed the model's %lld positions",
                       request->prompt->n_ids, request->max_new_tokens, (long long)model->max_positions);
    }
    enum sl_status status = check_ids(model, "prompt", request->prompt, err);
    return status == SL_OK ? check_ids(model, "resumed", request->resumed, err) : status;
}

static enum sl_status create_writer(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                    struct sl_writer **writer_out, struct sl_error *err) {
    const Sluice__V1__Sampling *sampling = request->sampling;
    struct sl_writer_config config = {
        .tokenizer = decode->node.tokenizer,
        .model = sl_model_get_config(decode->node.model),
        .sampling = {.top_p = 1, .repetition_penalty = 1},
        .max_new_tokens = request->max_new_tokens,
        .ignore_eos = request->ignore_eos,
        .stops = (const char *const *)request->stop,
        .n_stops = request->n_stop,
        .prompt = request->prompt->ids,
        .n_prompt = (int64_t)request->prompt->n_ids,
        .resumed = request->resumed ? request->resumed->ids : NULL,
        .n_resumed = request->resumed ? (int64_t)request->resumed->n_ids : 0,
    };
    if (sampling) {
        config.sampling.temperature = sampling->temperature;
        config.sampling.top_k = sampling->top_k;
        config.sampling.seed = sampling->seed;
        config.sampling.n_logprobs = sampling->logprobs;
        if (sampling->top_p_present_case == SLUICE__V1__SAMPLING__TOP_P_PRESENT_TOP_P) {
            config.sampling.top_p = sampling->top_p;
        }
        if (sampling->repetition_penalty_present_case ==
            SLUICE__V1__SAMPLING__REPETITION_PENALTY_PRESENT_REPETITION_PENALTY) {
            config.sampling.repetition_penalty = sampling->repetition_penalty;
        }
    }
    return sl_writer_create(&config, writer_out, err);
}

// ---- the capsule --------------------------------------------------------------------------------------------------

static enum sl_status send_alive(struct sl_rpc_call *call) {
    Sluice__V1__DecodeAlive alive = SLUICE__V1__DECODE_ALIVE__INIT;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_ALIVE;
    event.alive = &alive;
    return sl_rpc_call_send(call, &event.base);
}

// By all tokens that the job may reach, as for prefill.
static int rope_set(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request) {
    return sl_model_rope_set(sl_model_get_config(decode->node.model),
                             (int64_t)request->prompt->n_ids + request->max_new_tokens);
}

// Open what has arrived as a session, if it is what this job waits for.
static enum sl_status open_capsule(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   const struct sl_recipe *recipe, struct sl_received *received,
                                   struct sl_session **session_out, struct sl_error *err) {
    int64_t n_prompt = (int64_t)request->prompt->n_ids;
    struct sl_capsule_info info;
    enum sl_status status = sl_capsule_read_header(received->header, received->header_bytes, &info, err);
    if (status == SL_OK && info.n_tokens >= n_prompt) {
        status = sl_fail(err, SL_ERR_PEER_CORRUPT, "a capsule of %lld tokens does not fit a prompt of %lld",
                         (long long)info.n_tokens, (long long)n_prompt);
    }
    if (status != SL_OK) {
        sl_arena_free(decode->node.arena, received->body);
        free(received->header);
        return status;
    }
    struct sl_kv_geometry geometry = sl_model_geometry(sl_model_get_config(decode->node.model));
    struct sl_capsule_id id = {.model_fingerprint =
                                   sl_model_set_fingerprint(decode->node.model_fingerprint, rope_set(decode, request)),
                               .recipe_fingerprint = sl_recipe_fingerprint(recipe),
                               .prefix_hash = sl_prefix_hash(request->prompt->ids, info.n_tokens)};
    int64_t max_slots = n_prompt + request->max_new_tokens; // enough whatever was evicted
    return sl_received_open(decode->node.inbound, received, &geometry, &id, max_slots, session_out, err);
}

// Wait for the capsule, as long as its lease lives and the caller listens.
static enum sl_status receive(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                              const struct sl_recipe *recipe, struct sl_rpc_call *call, struct sl_sequence *sequence,
                              struct sl_error *err) {
    struct sl_received received;
    enum sl_status status;
    do {
        status = sl_inbound_take(decode->node.inbound, request->lease_id, sl_deadline_in_ms(ALIVE_MS), &received,
                                 &sequence->promised_bytes, err);
        if (status == SL_AGAIN && (send_alive(call) != SL_OK || sl_rpc_call_cancelled(call))) {
            return sl_fail(err, SL_ERR_CANCELLED, "job %s was cancelled while its capsule was on its way",
                           request->job_id);
        }
    } while (status == SL_AGAIN);
    if (status == SL_OK) {
        sequence->session_bytes = sequence->promised_bytes;
        status = open_capsule(decode, request, recipe, &received, &sequence->session, err);
    }
    return status;
}

static void on_fallback(void *arg, int layer, const char *why) {
    struct sl_sequence *sequence = arg;
    pthread_mutex_lock(&sequence->mutex);
    sequence->n_fallbacks++;
    snprintf(sequence->fallback, sizeof sequence->fallback, "layer %d: %s", layer, why);
    pthread_mutex_unlock(&sequence->mutex);
}

// sl_retriever_create() by a thread of its own: it fetches, and may have to wait for stores.
struct opening {
    const struct sl_retriever_config *config;
    pthread_mutex_t mutex; // over what follows
    pthread_cond_t changed;
    bool ended;
    struct sl_retriever *retriever;
    enum sl_status status;
    struct sl_error err;
};

static void *opening_main(void *arg) {
    struct opening *opening = arg;
    struct sl_retriever *retriever = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_retriever_create(opening->config, &retriever, &err);
    pthread_mutex_lock(&opening->mutex);
    opening->retriever = retriever;
    opening->status = status;
    opening->err = err;
    opening->ended = true;
    pthread_cond_signal(&opening->changed);
    pthread_mutex_unlock(&opening->mutex);
    return NULL;
}

// As long as the stores take, which config.lost_ms bounds, the caller hears that we live.
static enum sl_status create_retriever(const struct sl_retriever_config *config, struct sl_rpc_call *call,
                                       struct sl_retriever **retriever_out, struct sl_error *err) {
    struct opening opening = {.config = config};
    pthread_t thread;
    pthread_mutex_init(&opening.mutex, NULL);
    sl_cond_init(&opening.changed);
    enum sl_status status = sl_thread_start("opening", opening_main, &opening, &thread, err);
    if (status == SL_OK) {
        bool heard = true;
        pthread_mutex_lock(&opening.mutex);
        while (!opening.ended) {
            int64_t deadline_ns = sl_deadline_in_ms(ALIVE_MS);
            if (sl_cond_wait_until(&opening.changed, &opening.mutex, deadline_ns) == SL_ERR_DEADLINE && heard) {
                pthread_mutex_unlock(&opening.mutex);
                heard = send_alive(call) == SL_OK;
                pthread_mutex_lock(&opening.mutex);
            }
        }
        pthread_mutex_unlock(&opening.mutex);
        pthread_join(thread, NULL);
        status = opening.status;
        if (status == SL_OK) {
            *retriever_out = opening.retriever;
        } else {
            *err = opening.err;
        }
    }
    pthread_cond_destroy(&opening.changed);
    pthread_mutex_destroy(&opening.mutex);
    return status;
}

/*
 * Offloaded layers: the slots that are always attended to come here now. The promise counts row caches, which are in the
 * arena from here on.
 */
static enum sl_status open_annexes(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   struct sl_rpc_call *call, const struct sl_plan *plan, int64_t n_read,
                                   struct sl_sequence *sequence, struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (n_read > 0) {
        status = sl_remote_source_create(decode->lines, request->annex, request->n_annex, plan, &sequence->source, err);
    }
    struct sl_retriever_config config = {
        .plan = plan,
        .ops = decode->node.ops,
        .team = decode->node.team,
        .arena = decode->node.arena,
        .session = sequence->session,
        .source = sequence->source,
        .n_prompt = sl_plan_offloaded_slots(plan, n_read),
        .resident_only = true,
        .deadline_ms = decode->retrieve_deadline_ms,
        .lost_ms = decode->retrieve_lost_ms,
        .on_fallback = on_fallback,
        .arg = sequence,
    };
    status = status == SL_OK ? create_retriever(&config, call, &sequence->retriever, err) : status;
    if (status != SL_OK) {
        return status;
    }
    sequence->wants_next_q = sl_retriever_wants_next_q(&plan->recipe);
    struct sl_retriever_stats stats;
    sl_retriever_get_stats(sequence->retriever, &stats);
    size_t taken = stats.row_cache_bytes < sequence->session_bytes ? stats.row_cache_bytes : sequence->session_bytes;
    sequence->session_bytes -= taken;
    size_t promised = sequence->promised_bytes > taken ? sequence->promised_bytes - taken : 0;
    sl_ledger_settle(decode->node.ledger, &sequence->promised_bytes, promised);
    return SL_OK;
}

// Without a lease the session begins empty. Then, or behind a capsule, what the recipe does while decoding.
static enum sl_status open_session(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   struct sl_rpc_call *call, struct sl_sequence *sequence, struct sl_error *err) {
    const struct sl_model_config *model = sl_model_get_config(decode->node.model);
    struct sl_kv_geometry geometry = sl_model_geometry(model);
    struct sl_recipe recipe;
    struct sl_plan plan;
    enum sl_status status = sl_job_recipe(request->recipe, model, &recipe, err);
    if (status == SL_OK && request->lease_id[0]) {
        status = receive(decode, request, &recipe, call, sequence, err);
    }
    int64_t n_read = sequence->session ? sequence->session->n_tokens : 0; // by prefill
    if (status == SL_OK) {
        // Behind nothing that prefill has read there is no annex: every slot stays here.
        status = n_read > 0 ? sl_plan_make(&recipe, &geometry, n_read, &plan, err)
                            : sl_plan_make_local(&recipe, &geometry, 1, &plan, err);
        plan.rope_set = rope_set(decode, request);
    }
    if (status == SL_OK && sequence->session) {
        status = sl_job_check_session(&plan, sequence->session, err);
    } else if (status == SL_OK) {
        int64_t extra_slots = (int64_t)request->prompt->n_ids + request->max_new_tokens;
        status = sl_plan_create_session(&plan, extra_slots, decode->node.arena, &sequence->session, err);
    }
    if (status == SL_OK && sl_recipe_offloads(&recipe)) {
        return open_annexes(decode, request, call, &plan, n_read, sequence, err);
    }
    if (status == SL_OK) {
        status = sl_compressor_create(&plan, decode->node.ops, decode->node.team, &sequence->compressor, err);
    }
    if (status != SL_OK) {
        return status;
    }
    if (!sl_compressor_steps(sequence->compressor)) {
        sl_compressor_destroy(&sequence->compressor);
        return SL_OK;
    }
    status = sl_compressor_estimate(sequence->compressor, request->estimate_errors, err);
    if (status != SL_OK) {
        return status;
    }
    sequence->wants = sl_compressor_wants(sequence->compressor, true);
    return sl_compressor_begin_steps(sequence->compressor, sequence->session, n_read, err);
}

// ---- the answer ---------------------------------------------------------------------------------------------------

static enum sl_status send_token(struct sl_rpc_call *call, const struct sl_decoded *decoded) {
    Sluice__V1__Alternative alternatives[SL_MAX_LOGPROBS], *pointers[SL_MAX_LOGPROBS];
    for (int i = 0; i < decoded->token.n_alternatives; i++) {
        alternatives[i] = (Sluice__V1__Alternative)SLUICE__V1__ALTERNATIVE__INIT;
        alternatives[i].id = decoded->token.alternatives[i].id;
        alternatives[i].logprob = decoded->token.alternatives[i].logprob;
        pointers[i] = &alternatives[i];
    }
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.id = decoded->token.id;
    token.text = (char *)decoded->text;
    token.index = decoded->index;
    token.logprob = decoded->token.logprob;
    token.n_alternatives = (size_t)decoded->token.n_alternatives;
    token.alternatives = pointers;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_TOKEN;
    event.token = &token;
    return sl_rpc_call_send(call, &event.base);
}

// What fallbacks have not been told, at most once in NOTICE_MS and behind the last token.
static enum sl_status send_notice(struct sl_sequence *sequence, struct sl_rpc_call *call, int64_t *next_ns_inout,
                                  bool last) {
    char fallback[sizeof sequence->fallback], text[sizeof fallback + 128];
    int64_t now = sl_now_ns();
    if (now < *next_ns_inout && !last) {
        return SL_OK;
    }
    pthread_mutex_lock(&sequence->mutex);
    int64_t n = sequence->n_fallbacks;
    sequence->n_fallbacks = 0;
    memcpy(fallback, sequence->fallback, sizeof fallback);
    pthread_mutex_unlock(&sequence->mutex);
    if (n == 0) {
        return SL_OK;
    }
    *next_ns_inout = now + NOTICE_MS * SL_NS_PER_MS;
    snprintf(text, sizeof text, "%lld layers of steps had to do without offloaded tokens, the last one %s",
             (long long)n, fallback);
    sl_log_warn("decode", "job=%s %s", sequence->job_id, text);
    Sluice__V1__Notice notice = SLUICE__V1__NOTICE__INIT;
    notice.text = text;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_NOTICE;
    event.notice = &notice;
    return sl_rpc_call_send(call, &event.base);
}

static void on_cancel(void *arg) {
    struct sl_sequence *sequence = arg;
    atomic_store(&sequence->cancelled, true);
}

// Send what the engine's thread writes until it has let go of the sequence.
static void relay(struct sl_sequence *sequence, struct sl_rpc_call *call) {
    int64_t next_notice_ns = 0;
    for (bool ended = false; !ended;) {
        pthread_mutex_lock(&sequence->mutex);
        int64_t deadline = sl_deadline_in_ms(ALIVE_MS);
        while (!sequence->first && !sequence->ended &&
               sl_cond_wait_until(&sequence->changed, &sequence->mutex, deadline) == SL_OK) {
        }
        struct sl_decoded *decoded = sequence->first;
        sequence->first = NULL;
        sequence->last = &sequence->first;
        ended = sequence->ended;
        pthread_mutex_unlock(&sequence->mutex);

        enum sl_status status = decoded || ended ? SL_OK : send_alive(call);
        if (status == SL_OK) {
            status = send_notice(sequence, call, &next_notice_ns, ended);
        }
        while (decoded) {
            struct sl_decoded *next = decoded->next;
            if (status == SL_OK) {
                status = send_token(call, decoded);
            }
            free(decoded);
            decoded = next;
        }
        if (status != SL_OK) {
            atomic_store(&sequence->cancelled, true); // the engine's thread lets go at its next step
        }
    }
}

// What a job holds here is returned before its caller hears that it is done.
static void give_back(struct sl_decode *decode, struct sl_sequence *sequence) {
    sl_retriever_destroy(&sequence->retriever); // before the session that it knows; ends what is being asked
    if (sequence->source) {
        sequence->source->ops->destroy(&sequence->source);
    }
    sl_compressor_destroy(&sequence->compressor);
    sl_session_destroy(&sequence->session);
    sl_ledger_settle(decode->node.ledger, &sequence->promised_bytes, 0);
}

static enum sl_status send_done(struct sl_decode *decode, struct sl_sequence *sequence, bool estimate_errors,
                                struct sl_rpc_call *call) {
    static const Sluice__V1__Finished__Reason reasons[] = {
        [SL_STOP_TOKEN] = SLUICE__V1__FINISHED__REASON__STOP_TOKEN,
        [SL_STOP_STRING] = SLUICE__V1__FINISHED__REASON__STOP_STRING,
        [SL_STOP_LENGTH] = SLUICE__V1__FINISHED__REASON__LENGTH,
    };
    struct sl_session_stats stats;
    struct sl_slot_statistics slots;
    struct sl_compress_stats compressed = {0};
    struct sl_retriever_stats retrieved;
    bool retrieves = sequence->retriever != NULL;
    // Without anything to do while decoding there is nothing to estimate: zeros.
    struct sl_error_statistics errors = {.n_layers = estimate_errors ? sequence->session->geometry.n_layers : 0};
    sl_session_get_stats(sequence->session, &stats);
    sl_slot_statistics_measure(sequence->session, &slots);
    if (sequence->compressor) {
        sl_compressor_get_stats(sequence->compressor, &compressed);
        sl_error_statistics_read(sequence->compressor, &errors);
    }
    if (retrieves) {
        sl_retriever_get_stats(sequence->retriever, &retrieved);
    }
    give_back(decode, sequence);
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.n_output_tokens = sl_writer_n_tokens(sequence->writer);
    statistics.decode_resident_bytes = (int64_t)stats.resident_bytes;
    statistics.slots_evicted = compressed.slots_evicted;
    statistics.slots_merged = compressed.slots_merged;
    Sluice__V1__Retrieval retrieval;
    if (retrieves) {
        sl_retrieval_statistics_attach(&retrieved, &retrieval, &statistics);
    }
    sl_slot_statistics_attach(&slots, &statistics);
    sl_error_statistics_attach(&errors, &statistics);
    Sluice__V1__DecodeDone done = SLUICE__V1__DECODE_DONE__INIT;
    done.reason = reasons[sequence->stop];
    done.text = (char *)sl_writer_text(sequence->writer);
    done.statistics = &statistics;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_DONE;
    event.done = &done;
    return sl_rpc_call_send(call, &event.base);
}

// What the engine has to read before it can write: the prompt's tokens behind the capsule's, then the resumed ones.
static enum sl_status set_pending(struct sl_sequence *sequence, const Sluice__V1__DecodeRequest *request,
                                  int32_t n_vocab, struct sl_error *err) {
    size_t n_read = (size_t)sequence->session->n_tokens, n_prompt = request->prompt->n_ids - n_read;
    size_t n_resumed = request->resumed ? request->resumed->n_ids : 0;
    sequence->pending = malloc(sizeof(int32_t) * (n_prompt + n_resumed));
    sequence->logits = aligned_alloc(64, (sizeof(float) * (size_t)n_vocab + 63) / 64 * 64);
    if (!sequence->pending || !sequence->logits) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "decode: out of memory");
    }
    memcpy(sequence->pending, request->prompt->ids + n_read, sizeof(int32_t) * n_prompt);
    if (n_resumed > 0) {
        memcpy(sequence->pending + n_prompt, request->resumed->ids, sizeof(int32_t) * n_resumed);
    }
    sequence->n_pending = (int)(n_prompt + n_resumed);
    return SL_OK;
}

static enum sl_status write_answer(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   struct sl_sequence *sequence, struct sl_rpc_call *call, struct sl_error *err) {
    int32_t n_vocab = sl_model_get_config(decode->node.model)->n_vocab;
    enum sl_status status = set_pending(sequence, request, n_vocab, err);
    if (status != SL_OK) {
        return status;
    }
    pthread_mutex_init(&sequence->mutex, NULL);
    sl_cond_init(&sequence->changed);
    sequence->last = &sequence->first;
    sl_rpc_call_on_cancel(call, on_cancel, sequence);
    sl_decode_join(decode, sequence);
    relay(sequence, call);
    sl_rpc_call_on_cancel(call, NULL, NULL);
    status = sequence->status;
    if (status == SL_OK) {
        status = send_done(decode, sequence, request->estimate_errors, call);
    } else {
        sl_fail(err, status, "%s", sequence->err.text);
    }
    pthread_cond_destroy(&sequence->changed);
    pthread_mutex_destroy(&sequence->mutex);
    return status;
}

enum sl_status sl_decode_handle_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                    struct sl_error *err) {
    struct sl_decode *decode = service;
    const Sluice__V1__DecodeRequest *request = (const Sluice__V1__DecodeRequest *)message;
    struct sl_sequence *sequence = calloc(1, sizeof *sequence);
    if (!sequence) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "decode: out of memory");
    }
    sequence->job_id = request->job_id;
    atomic_fetch_add(&decode->n_jobs, 1);
    enum sl_status status = check_request(decode, request, err);
    if (status == SL_OK) {
        status = create_writer(decode, request, &sequence->writer, err);
    }
    if (status == SL_OK) {
        status = open_session(decode, request, call, sequence, err);
    }
    if (status == SL_OK) {
        status = write_answer(decode, request, sequence, call, err);
    }
    if (status == SL_ERR_PEER_LOST && request->n_annex > 0) {
        status = err->status = SL_ERR_PEER_STALE; // a store was lost: as our answer, PEER_LOST would say that we are
    }
    sl_log_info("decode", "job=%s status=%s tokens=%lld", request->job_id, sl_status_text(status),
                sequence->writer ? (long long)sl_writer_n_tokens(sequence->writer) : 0LL);
    give_back(decode, sequence);
    sl_inbound_release(decode->node.inbound, request->lease_id); // if it never got as far as taking it
    sl_writer_destroy(&sequence->writer);
    free(sequence->pending);
    free(sequence->logits);
    free(sequence);
    atomic_fetch_sub(&decode->n_jobs, 1);
    return status;
}
