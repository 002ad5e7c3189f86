// SPDX-License-Identifier: Apache-2.0
// The handler of Decode.Run: one answer from its received capsule to its last token.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"
#include "decode/internal.h"
#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"
#include "engine/job/error_statistics.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "engine/job/retrieval_statistics.h"
#include "engine/job/slot_statistics.h"
#include "net/node/adopt.h"
#include "net/trace/trace.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define ALIVE_MS  300  // between two keepalive messages; callers treat seconds of silence as a lost worker
#define NOTICE_MS 1000 // minimum time between two notices of a job

// ---- the request ---------------------------------------------------------------------------------------------------

static enum sl_status check_request(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                    struct sl_error *err) {
    const struct sl_model_config *model = decode->node.runtime.config;
    SL_FAIL_IF(!request->prompt || request->prompt->n_ids == 0, err, SL_ERR_INVALID, "prompt: empty");
    int64_t n_resumed = request->resumed ? (int64_t)request->resumed->n_ids : 0;
    SL_FAIL_IF(n_resumed >= request->max_new_tokens, err, SL_ERR_INVALID,
               "max_new_tokens is %d but %lld tokens are resumed", request->max_new_tokens, (long long)n_resumed);
    SL_FAIL_IF((int64_t)request->prompt->n_ids + request->max_new_tokens > model->max_positions, err, SL_ERR_INVALID,
               "prompt of %zu tokens and max_new_tokens %d exceed the model's %lld positions", request->prompt->n_ids,
               request->max_new_tokens, (long long)model->max_positions);
    SL_FAIL_IF(request->prompt->n_ids > 1 && !request->lease_id[0] && !request->kept[0] && !request->kvstore_address[0],
               err, SL_ERR_PRECONDITION, "a prompt of %zu tokens, and no session, capsule or store to begin with",
               request->prompt->n_ids);
    SL_FAIL_IF(request->session_bytes < 0 || request->keep_ms < 0, err, SL_ERR_INVALID,
               "session_bytes %lld, keep_ms %lld: less than nothing", (long long)request->session_bytes,
               (long long)request->keep_ms);
    SL_FAIL_IF(request->whole_tokens < 0 || request->whole_tokens >= (int64_t)request->prompt->n_ids, err,
               SL_ERR_INVALID, "whole_tokens: %lld of a prompt of %zu tokens", (long long)request->whole_tokens,
               request->prompt->n_ids);
    enum sl_status status = sl_job_check_ids(model, "prompt", request->prompt, err);
    SL_THEN(status, sl_job_check_ids(model, "resumed", request->resumed, err));
    SL_FAIL_IF(status == SL_OK && request->said && request->said->n_ids > 1, err, SL_ERR_INVALID,
               "said: %zu tokens, at most one", request->said->n_ids);
    return status == SL_OK ? sl_job_check_ids(model, "said", request->said, err) : status;
}

static enum sl_status create_output(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                    struct sl_output **output_out, struct sl_error *err) {
    struct sl_output_config config = {
        .tokenizer = decode->node.runtime.tokenizer,
        .model = decode->node.runtime.config,
        .sampling = sl_job_sampling(request->sampling, NULL),
        .max_new_tokens = request->max_new_tokens,
        .ignore_eos = request->ignore_eos,
        .stops = (const char *const *)request->stop,
        .n_stops = request->n_stop,
        .prompt = request->prompt->ids,
        .n_prompt = (int64_t)request->prompt->n_ids,
        .resumed = request->resumed ? request->resumed->ids : NULL,
        .n_resumed = request->resumed ? (int64_t)request->resumed->n_ids : 0,
        .said = request->said && request->said->n_ids > 0 ? request->said->ids : NULL,
    };
    return sl_output_create(&config, output_out, err);
}

// ---- the capsule --------------------------------------------------------------------------------------------------

// Opens the capsule that has arrived as a session, if it is the one that this job waits for.
static enum sl_status open_capsule(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   const struct sl_recipe *recipe, struct sl_capsule_bytes *capsule,
                                   size_t *promised_inout, struct sl_session **session_out, struct sl_error *err) {
    int64_t n_prompt = (int64_t)request->prompt->n_ids;
    struct sl_capsule_info info;
    enum sl_status status = sl_capsule_read_header(capsule->header, capsule->header_bytes, &info, err);
    SL_THEN_IF(status, info.n_tokens >= n_prompt,
               sl_fail(err, SL_ERR_PEER_CORRUPT, "a capsule of %lld tokens does not fit a prompt of %lld",
                       (long long)info.n_tokens, (long long)n_prompt));
    struct sl_capsule_id id;
    SL_THEN(status, sl_decode_make_id(decode, request, recipe, info.n_tokens, &id, err));
    if (status == SL_OK && request->turn) { // the store knows this session under another hash
        status = sl_hash128_read(request->capsule_hash.data, request->capsule_hash.len, &id.prefix_hash) &&
                         !sl_hash128_is_zero(&id.prefix_hash)
                     ? SL_OK
                     : sl_fail(err, SL_ERR_INVALID, "capsule_hash: a turn must say which session it goes on with");
    }
    SL_TRY_OR(status, sl_capsule_bytes_free(capsule, sl_node_arena_of(&decode->node, capsule->body)));
    struct sl_kv_geometry geometry = sl_model_geometry(decode->node.runtime.config);
    // The slots are enough, whatever was evicted.
    struct sl_expected_capsule expected = {&geometry, &id, sl_decode_most_slots(decode, request)};
    return sl_node_adopt(&decode->node, capsule, promised_inout, &expected, session_out, err);
}

// Counts how a capsule arrived in a device.
static void count_way(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request, bool straight) {
    if (sl_node_stages(&decode->node)) {
        atomic_fetch_add(straight ? &decode->node.n_straight : &decode->node.n_staged, 1);
        sl_log_info("decode", "job=%s arrived=%s", request->job_id, straight ? "straight" : "staged");
    }
}

// Waits for the capsule, as long as its lease lives and the caller listens.
static enum sl_status receive(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                              const struct sl_recipe *recipe, struct sl_rpc_call *call, struct sl_answer *answer,
                              struct sl_error *err) {
    struct sl_capsule_bytes capsule;
    enum sl_status status;
    do {
        status = sl_inbound_take(decode->node.inbound, request->lease_id, sl_deadline_in_ms(ALIVE_MS), &capsule,
                                 &answer->promised_bytes, err);
        SL_FAIL_IF(status == SL_AGAIN && (sl_decode_send_alive(call) != SL_OK || sl_rpc_call_cancelled(call)), err,
                   SL_ERR_CANCELLED, "job %s was cancelled while its capsule was on its way", request->job_id);
    } while (status == SL_AGAIN);
    if (status == SL_OK) {
        bool straight = sl_direct_has(&decode->node.direct, capsule.body);
        status = open_capsule(decode, request, recipe, &capsule, &answer->promised_bytes, &answer->writer.session, err);
        if (status == SL_OK) {
            count_way(decode, request, straight);
        }
        answer->session_bytes = answer->promised_bytes; // memory promised in addition to the capsule's
    }
    return status;
}

static void on_fallback(void *arg, int layer, const char *why) {
    struct sl_answer *answer = arg;
    SL_LOCKED(&answer->mutex);
    answer->n_fallbacks++;
    atomic_fetch_add(&answer->decode->n_fallbacks, 1);
    snprintf(answer->fallback, sizeof answer->fallback, "layer %d: %s", layer, why);
}

// Runs sl_writer_open() on a thread of its own, because it fetches and may have to wait for stores.
struct opening {
    struct sl_answer *answer;
    const struct sl_runtime *runtime;
    const struct sl_writer_config *writing;
    struct sl_loop loop; // its mutex guards `ended`
    bool ended;
    enum sl_status status; // the thread's, until it is stopped
    struct sl_error *err;
};

static void *opening_main(void *arg) {
    struct opening *opening = arg;
    sl_log_set_job(opening->answer->job_id);
    opening->status = sl_writer_open(&opening->answer->writer, opening->runtime, opening->writing, opening->err);
    SL_LOCKED(&opening->loop.mutex);
    opening->ended = true;
    pthread_cond_signal(&opening->loop.changed);
    return NULL;
}

// Opens the writer while stores may be slow (writing->lost_ms bounds this), and sends keepalive messages meanwhile.
static enum sl_status begin_remote(struct sl_decode *decode, struct sl_answer *answer,
                                   const struct sl_writer_config *writing, struct sl_rpc_call *call,
                                   struct sl_error *err) {
    struct opening opening = {.answer = answer, .runtime = &decode->node.runtime, .writing = writing, .err = err};
    sl_loop_init(&opening.loop);
    enum sl_status status = sl_loop_start(&opening.loop, "opening", opening_main, &opening, err);
    if (status == SL_OK) {
        bool heard = true;
        pthread_mutex_lock(&opening.loop.mutex);
        while (!opening.ended) {
            if (sl_loop_wait(&opening.loop, sl_deadline_in_ms(ALIVE_MS)) == SL_ERR_DEADLINE && heard) {
                pthread_mutex_unlock(&opening.loop.mutex);
                heard = sl_decode_send_alive(call) == SL_OK;
                pthread_mutex_lock(&opening.loop.mutex);
            }
        }
        pthread_mutex_unlock(&opening.loop.mutex);
        sl_loop_stop(&opening.loop);
        status = opening.status;
    }
    sl_loop_cleanup(&opening.loop);
    return status;
}

// Removes hot caches from the promise: they are in the arena from here on.
static void reconcile_hot_caches(struct sl_decode *decode, struct sl_answer *answer) {
    struct sl_retriever_stats stats;
    sl_retriever_get_stats(answer->writer.retrieval.retriever, &stats);
    size_t taken = stats.hot_cache_bytes < answer->session_bytes ? stats.hot_cache_bytes : answer->session_bytes;
    answer->session_bytes -= taken;
    sl_ledger_reconcile(decode->node.ledger, &answer->promised_bytes, answer->promised_bytes, taken);
}

// Starts the recipe's work during writing. Fetches those slots of offloaded layers that are always attended to.
static enum sl_status begin_writing(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                    struct sl_rpc_call *call, const struct sl_plan *plan, int64_t n_read,
                                    struct sl_answer *answer, struct sl_error *err) {
    struct sl_writer_config writing = {.plan = plan, .n_read = n_read, .estimate_errors = request->estimate_errors};
    if (!sl_recipe_offloads(&plan->recipe)) {
        return sl_writer_open(&answer->writer, &decode->node.runtime, &writing, err);
    }
    writing.is_remote = true;
    writing.deadline_ms = decode->retrieve_deadline_ms;
    writing.lost_ms = decode->retrieve_lost_ms;
    writing.on_fallback = on_fallback;
    writing.arg = answer;
    enum sl_status status = SL_OK;
    if (n_read > 0) {
        status = sl_remote_source_create(decode->connections, request->annex, request->n_annex, plan,
                                         &answer->writer.retrieval.source, err);
    }
    SL_THEN(status, begin_remote(decode, answer, &writing, call, err));
    if (status == SL_OK) {
        reconcile_hot_caches(decode, answer);
    }
    return status;
}

// Makes the plan of a job that is not a turn, and opens its writer. A session that has not come in a capsule begins empty.
static enum sl_status plan_answer(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                  struct sl_rpc_call *call, struct sl_answer *answer, struct sl_plan *plan,
                                  struct sl_error *err) {
    struct sl_session **session = &answer->writer.session;
    struct sl_kv_geometry geometry = sl_model_geometry(decode->node.runtime.config);
    int rope_set = sl_decode_rope_set(decode, request);
    int64_t n_read = *session ? (*session)->n_tokens : 0; // read by prefill
    // If prefill has read nothing, there is no remote KV: every slot stays here.
    enum sl_status status = n_read > 0 ? sl_plan_make(&answer->recipe, &geometry, n_read, rope_set, plan, err)
                                       : sl_plan_make_local(&answer->recipe, &geometry, 1, rope_set, plan, err);
    if (status == SL_OK && *session) {
        status = sl_job_check_session(plan, *session, err);
    } else if (status == SL_OK) {
        status = sl_plan_create_session(plan, sl_decode_most_slots(decode, request), decode->node.arena, session, err);
    }
    return status == SL_OK ? begin_writing(decode, request, call, plan, n_read, answer, err) : status;
}

// Opens the session of a job; without a lease it begins empty.
static enum sl_status open_session(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   struct sl_rpc_call *call, struct sl_answer *answer, struct sl_error *err) {
    const struct sl_recipe *recipe = &answer->recipe;
    enum sl_status status = sl_job_recipe(request->recipe, decode->node.runtime.config, &answer->recipe, err);
    bool has_prefix = request->kvstore_address[0] != '\0'; // and then no lease
    if (status == SL_OK && request->kept[0] && !has_prefix) {
        status = sl_decode_take_kept(decode, request, recipe, answer, err);
    } else if (status == SL_OK && request->lease_id[0] && !has_prefix) {
        status = receive(decode, request, recipe, call, answer, err);
    }
    SL_TRY(status);
    struct sl_plan *plan = malloc(sizeof *plan); // tens of kilobytes
    SL_FAIL_IF(!plan, err, SL_ERR_EXHAUSTED, "decode: out of memory");
    bool is_turn = (request->turn || (request->kept[0] && !request->here)) && answer->writer.session;
    status = has_prefix ? sl_decode_open_prefix(decode, request, call, answer, plan, err)
             : is_turn  ? sl_decode_open_turn(decode, request, answer, plan, err)
                        : plan_answer(decode, request, call, answer, plan, err);
    free(plan);
    return status;
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

// Sends a notice about unreported fallbacks, at most once in NOTICE_MS and after the last token.
static enum sl_status send_notice(struct sl_answer *answer, struct sl_rpc_call *call, int64_t *next_ns_inout,
                                  bool last) {
    char fallback[sizeof answer->fallback], text[sizeof fallback + 128];
    int64_t now = sl_now_ns();
    if (now < *next_ns_inout && !last) {
        return SL_OK;
    }
    pthread_mutex_lock(&answer->mutex);
    int64_t n = answer->n_fallbacks;
    answer->n_fallbacks = 0;
    memcpy(fallback, answer->fallback, sizeof fallback);
    pthread_mutex_unlock(&answer->mutex);
    if (n == 0) {
        return SL_OK;
    }
    *next_ns_inout = now + NOTICE_MS * SL_NS_PER_MS;
    snprintf(text, sizeof text, "%lld layers of steps had to do without offloaded tokens, the last one %s",
             (long long)n, fallback);
    sl_log_warn("decode", "job=%s %s", answer->job_id, text);
    Sluice__V1__Notice notice = SLUICE__V1__NOTICE__INIT;
    notice.text = text;
    notice.fallbacks = n;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_NOTICE;
    event.notice = &notice;
    return sl_rpc_call_send(call, &event.base);
}

static void on_cancel(void *arg) {
    struct sl_answer *answer = arg;
    atomic_store(&answer->cancelled, true);
}

// Sends the tokens of the engine's thread until that has released the sequence. While the engine is stuck, no keepalive
// is sent.
static void relay(const struct sl_decode *decode, struct sl_answer *answer, struct sl_rpc_call *call) {
    int64_t next_notice_ns = 0;
    for (bool ended = false; !ended;) {
        pthread_mutex_lock(&answer->mutex);
        int64_t deadline = sl_deadline_in_ms(ALIVE_MS);
        while (!answer->first && !answer->ended &&
               sl_cond_wait_until(&answer->changed, &answer->mutex, deadline) == SL_OK) {
        }
        struct sl_decoded *decoded = answer->first;
        answer->first = NULL;
        answer->last = &answer->first;
        ended = answer->ended;
        pthread_mutex_unlock(&answer->mutex);

        bool alive = !decoded && !ended && !sl_node_stands_still(&decode->node);
        enum sl_status status = alive ? sl_decode_send_alive(call) : SL_OK;
        SL_THEN(status, send_notice(answer, call, &next_notice_ns, ended));
        while (decoded) {
            struct sl_decoded *next = decoded->next;
            SL_THEN(status, send_token(call, decoded));
            if (answer->written) {
                answer->written[answer->n_written++] = decoded->token.id;
            }
            free(decoded);
            decoded = next;
        }
        if (status != SL_OK) {
            atomic_store(&answer->cancelled, true); // the engine's thread releases it at its next step
        }
    }
}

// Records all queries to stores as one span, as long as the time for which the engine waited for them: every layer of
// every step makes one.
static void tell_retrieval(const struct sl_retriever_stats *stats) {
    struct sl_span span;
    sl_span_begin(&span, "retrieval", SL_SPAN_CLIENT);
    span.start_ns -= stats->wait_ns;
    sl_span_set_int(&span, "sluice.asks", stats->n_asks);
    sl_span_set_int(&span, "sluice.fallbacks", stats->n_fallbacks);
    sl_span_set_int(&span, "sluice.rows_fetched", stats->rows_fetched);
    sl_span_set_int(&span, "sluice.rows_kept", stats->rows_kept);
    sl_span_set_real(&span, "sluice.round_ms", (double)stats->round_ns / 1e6);
    sl_span_end(&span, SL_OK, NULL);
}

// Frees a job's resources here before its caller learns that the job is done.
static void give_back(struct sl_decode *decode, struct sl_answer *answer) {
    sl_reader_destroy(&answer->reader); // the reader of a turn that was not read completely; frees its session too
    sl_decode_drop_joined(answer);
    sl_writer_close(&answer->writer);
    sl_ledger_set_promise(decode->node.ledger, &answer->promised_bytes, 0);
}

static enum sl_status send_done(struct sl_decode *decode, struct sl_answer *answer,
                                const Sluice__V1__DecodeRequest *request, struct sl_rpc_call *call,
                                struct sl_error *err) {
    bool estimate_errors = request->estimate_errors;
    static const Sluice__V1__Finished__Reason reasons[] = {
        [SL_STOP_TOKEN] = SLUICE__V1__FINISHED__REASON__STOP_TOKEN,
        [SL_STOP_STRING] = SLUICE__V1__FINISHED__REASON__STOP_STRING,
        [SL_STOP_LENGTH] = SLUICE__V1__FINISHED__REASON__LENGTH,
    };
    struct sl_session_stats stats;
    struct sl_compress_stats compressed = {0};
    struct sl_retriever_stats retrieved;
    bool retrieves = answer->writer.retrieval.retriever != NULL;
    // If the recipe does nothing while decoding, there is nothing to estimate: the values are zeros.
    struct {
        struct sl_slot_statistics slots;
        struct sl_error_statistics errors;
    } *told = calloc(1, sizeof *told); // tens of kilobytes
    SL_FAIL_IF(!told, err, SL_ERR_EXHAUSTED, "decode: out of memory");
    told->errors.n_layers = estimate_errors ? answer->writer.session->geometry.n_layers : 0;
    sl_session_get_stats(answer->writer.session, &stats);
    sl_slot_statistics_measure(answer->writer.session, &told->slots);
    if (answer->writer.compressor) {
        sl_compressor_get_stats(answer->writer.compressor, &compressed);
        sl_error_statistics_read(answer->writer.compressor, &told->errors);
    }
    if (retrieves) {
        sl_retriever_get_stats(answer->writer.retrieval.retriever, &retrieved);
    }
    char lease_id[SL_LEASE_ID_BYTES];
    Sluice__V1__DecodeDone done = SLUICE__V1__DECODE_DONE__INIT;
    if (answer->written && !retrieves) {
        sl_decode_keep_session(decode, request, answer, &done, lease_id);
    }
    give_back(decode, answer);
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.n_output_tokens = sl_output_n_tokens(answer->output);
    statistics.decode_resident_bytes = (int64_t)stats.resident_bytes;
    statistics.slots_evicted = compressed.slots_evicted;
    statistics.slots_merged = compressed.slots_merged;
    sl_decode_describe_prefix(answer, &statistics);
    Sluice__V1__Retrieval retrieval;
    if (retrieves) {
        sl_retrieval_statistics_attach(&retrieved, &retrieval, &statistics);
        tell_retrieval(&retrieved);
    }
    sl_slot_statistics_attach(&told->slots, &statistics);
    sl_error_statistics_attach(&told->errors, &statistics);
    done.reason = reasons[answer->stop];
    done.text = (char *)sl_output_text(answer->output);
    done.statistics = &statistics;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_DONE;
    event.done = &done;
    enum sl_status status = sl_rpc_call_send_last(call, &event.base);
    free(told);
    return status;
}

// Lists the tokens that the engine has to read before it can write: the prompt's tokens after the capsule's, then the
// resumed ones.
static enum sl_status set_pending(struct sl_answer *answer, const Sluice__V1__DecodeRequest *request,
                                  struct sl_error *err) {
    size_t n_read = answer->reader ? request->prompt->n_ids - 1 : (size_t)answer->writer.session->n_tokens;
    size_t n_prompt = request->prompt->n_ids - n_read, n_resumed = request->resumed ? request->resumed->n_ids : 0;
    if (request->keep_ms > 0) {
        answer->written = malloc(sizeof(int32_t) * (size_t)request->max_new_tokens);
        SL_FAIL_IF(!answer->written, err, SL_ERR_EXHAUSTED, "decode: out of memory");
        if (n_resumed > 0) {
            memcpy(answer->written, request->resumed->ids, sizeof(int32_t) * n_resumed);
        }
        answer->n_written = (int64_t)n_resumed;
    }
    answer->pending = malloc(sizeof(int32_t) * (n_prompt + n_resumed));
    SL_FAIL_IF(!answer->pending, err, SL_ERR_EXHAUSTED, "decode: out of memory");
    memcpy(answer->pending, request->prompt->ids + n_read, sizeof(int32_t) * n_prompt);
    if (n_resumed > 0) {
        memcpy(answer->pending + n_prompt, request->resumed->ids, sizeof(int32_t) * n_resumed);
    }
    answer->n_pending = (int)(n_prompt + n_resumed);
    answer->n_reading = answer->reads_in_step ? (int)n_prompt - 1 : 0;
    return SL_OK;
}

static enum sl_status write_answer(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   struct sl_answer *answer, struct sl_rpc_call *call, struct sl_error *err) {
    SL_TRY(set_pending(answer, request, err));
    pthread_mutex_init(&answer->mutex, NULL);
    sl_cond_init(&answer->changed);
    answer->last = &answer->first;
    sl_rpc_call_on_cancel(call, on_cancel, answer);
    sl_decode_join(decode, answer);
    relay(decode, answer, call);
    sl_rpc_call_on_cancel(call, NULL, NULL);
    enum sl_status status = answer->status;
    if (status == SL_OK) {
        status = send_done(decode, answer, request, call, err);
    } else {
        sl_fail_from(err, status, &answer->err, "%s", answer->err.text);
    }
    pthread_cond_destroy(&answer->changed);
    pthread_mutex_destroy(&answer->mutex);
    return status;
}

enum sl_status sl_decode_handle_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                    struct sl_error *err) {
    struct sl_decode *decode = service;
    const Sluice__V1__DecodeRequest *request = (const Sluice__V1__DecodeRequest *)message;
    sl_log_set_job(request->job_id);
    SL_NEW_OR_FAIL(struct sl_answer, answer, err, "decode: out of memory");
    answer->job_id = request->job_id;
    answer->decode = decode;
    atomic_fetch_add(&decode->n_jobs, 1);
    enum sl_status status = sl_term_guard_check(&decode->node.term_guard, request->term, err);
    SL_THEN(status, check_request(decode, request, err));
    SL_THEN(status, create_output(decode, request, &answer->output, err));
    SL_THEN(status, sl_node_check_device(&decode->node, open_session(decode, request, call, answer, err), err));
    SL_THEN(status, write_answer(decode, request, answer, call, err));
    if (status == SL_ERR_PEER_LOST && request->n_annex > 0) {
        // A store was lost; PEER_LOST in our answer would mean that this worker is lost
        status = err->status = SL_ERR_PEER_STALE;
    }
    sl_log_info("decode", "job=%s status=%s tokens=%lld", request->job_id, sl_status_text(status),
                answer->output ? (long long)sl_output_n_tokens(answer->output) : 0LL);
    give_back(decode, answer);
    sl_inbound_release(decode->node.inbound, request->lease_id); // if the job never took it
    sl_output_destroy(&answer->output);
    free(answer->pending);
    free(answer->written);
    free(answer);
    atomic_fetch_sub(&decode->n_jobs, 1);
    return status;
}
