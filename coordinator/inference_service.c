// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the service for clients (proto/sluice/v1/inference.proto). Handlers only read jobs and ask to cancel them.
 * Design: Generate, Watch, Cancel and SubmitInParts may take a long time. Their number is bounded below the server's, so that
 *         a handler is left for the other calls. Parts have a deadline, and the memory of calls that may last is bounded for each
 *         tenant and for all, so that clients that never end theirs do not stop other requests.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/lead.h"
#include "coordinator/run/turn.h"
#include "engine/job/job_request.h"
#include "proto/methods.h"

#define POLL_MS        100   // between checks of the client while nothing happens
#define CANCEL_WAIT_MS 10000 // for a Cancel call without a deadline
#define TURN_MS        1     // of sending events, see sl_tenant_begin_sending()
#define LIST_DEFAULT   100
#define LIST_MAX       1000

// Takes the entry that counts what the call holds.
static enum sl_status take_tenant(struct sl_coordinator *coordinator, const struct sl_rpc_call *call,
                                  struct sl_tenant **tenant_out, struct sl_error *err) {
    return sl_tenants_take_caller(coordinator->tenants, sl_rpc_call_identity(call)->tenant, sl_rpc_call_caller(call),
                                  tenant_out, err);
}

void sl_coordinator_leave_watcher(struct sl_coordinator *coordinator, struct sl_tenant **tenant) {
    atomic_fetch_sub(&coordinator->n_watchers, 1);
    atomic_fetch_sub(&(*tenant)->n_watchers, 1);
    sl_tenant_give(tenant);
}

enum sl_status sl_coordinator_enter_watcher(struct sl_coordinator *coordinator, const struct sl_rpc_call *call,
                                            struct sl_tenant **tenant_out, struct sl_error *err) {
    const int64_t most = coordinator->config.max_watchers;
    struct sl_tenant *tenant;
    SL_TRY(take_tenant(coordinator, call, &tenant, err));
    int n_all = atomic_fetch_add(&coordinator->n_watchers, 1), n_own = atomic_fetch_add(&tenant->n_watchers, 1);
    if (n_all < most && n_own < sl_tenant_share(tenant, most)) {
        *tenant_out = tenant;
        return SL_OK;
    }
    sl_coordinator_leave_watcher(coordinator, &tenant);
    return n_all >= most ? sl_fail(err, SL_ERR_EXHAUSTED,
                                   "%" PRId64 " calls follow jobs, the most allowed; retry in 1000 ms", most)
                         : sl_fail(err, SL_ERR_EXHAUSTED, "%d calls follow jobs of %s, its share; retry in 1000 ms",
                                   n_own, sl_rpc_call_caller_name(call));
}

// Sends events, from `sequence` on, until the log ends or the client disconnects.
static enum sl_status send_events(struct sl_rpc_call *call, struct sl_tenant *tenant, struct sl_job *job,
                                  int64_t sequence, struct sl_error *err) {
    const bool has_turns = tenant->name[0] != '\0';
    const uint8_t *packed;
    size_t n_bytes;
    for (;;) {
        enum sl_status status = sl_event_log_wait(&job->log, sequence, sl_deadline_in_ms(POLL_MS), &packed, &n_bytes);
        if (status == SL_ERR_NOT_FOUND) {
            return SL_OK;
        }
        SL_FAIL_IF(sl_rpc_call_cancelled(call), err, SL_ERR_CANCELLED, "the client is gone");
        if (status == SL_OK &&
            sl_rpc_call_flush(call) != SL_OK) { // waits without a turn for a client that does not read
            return sl_fail(err, SL_ERR_CANCELLED, "the client is gone");
        }
        if (status == SL_ERR_DEADLINE || !sl_tenant_begin_sending(tenant, sl_deadline_in_ms(POLL_MS))) {
            continue;
        }
        const int64_t turn_ends_ns = sl_deadline_in_ms(TURN_MS);
        bool again, is_sent = true;
        do {
            const uint8_t *next;
            size_t n_next;
            const enum sl_status found = sl_event_log_wait(&job->log, sequence + 1, 0, &next, &n_next);
            again = found == SL_OK && sl_now_ns() < turn_ends_ns;
            status = sl_rpc_call_send_packed(call, packed, n_bytes, again || found == SL_ERR_NOT_FOUND);
            if (has_turns) { // a turn lasts until gRPC has the event; each wait costs two switches of threads
                is_sent = sl_rpc_call_wait_sent(call, turn_ends_ns);
            }
            sequence += status == SL_OK;
            if (again) {
                packed = next;
                n_bytes = n_next;
            }
        } while (status == SL_OK && again && is_sent);
        sl_tenant_end_sending(tenant);
        SL_FAIL_IF(status != SL_OK, err, status, "the client is gone");
    }
}

const char *sl_coordinator_sees(const struct sl_rpc_call *call) {
    const struct sl_identity *caller = sl_rpc_call_identity(call);
    return caller->role == SL_ROLE_CLIENT ? caller->tenant : NULL;
}

static void cancel_job(void *job) {
    sl_job_cancel(job);
}

// Returns the job's status as the call's: a client that reads only the status must not take a failure for a success.
static enum sl_status job_status(struct sl_job *job, struct sl_error *err) {
    char text[sizeof err->text];
    int code = sl_job_failure(job, text);
    return code == 0 ? SL_OK : sl_fail(err, sl_rpc_status_of_code(code), "%s", text);
}

// Tokenizing a prompt takes this much request memory in addition: one id per byte in the worst case.
#define TOKENS_A_BYTE ((size_t)sizeof(int32_t))

static enum sl_status hold_tokens(struct sl_call_memory *memory, const Sluice__V1__GenerateRequest *request,
                                  struct sl_error *err) {
    struct sl_coordinator *coordinator = memory->coordinator;
    size_t n = request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT ? strlen(request->text) : 0;
    if (request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT) {
        for (size_t i = 0; i < request->chat->n_messages; i++) {
            n += strlen(request->chat->messages[i]->content);
        }
    }
    const char *tenant = sl_rpc_call_identity(memory->call)->tenant;
    if (request->document[0] != '\0' || request->n_documents > 0) { // a new leader does not have it yet
        SL_TRY(sl_coordinator_check_documents(coordinator, err));
    }
    size_t n_document = sl_documents_text_bytes(coordinator->documents, tenant, request->document);
    for (size_t i = 0; i < request->n_documents; i++) { // ids of each text, and of the whole prompt
        n_document += 2 * sl_documents_text_bytes(coordinator->documents, tenant, request->documents[i]);
    }
    return sl_call_memory_hold(memory, TOKENS_A_BYTE * n + (TOKENS_A_BYTE + 1) * n_document, err);
}

// A coordinator that does not lead must not report an unknown job as missing: the leader may have it.
static enum sl_status find_job(struct sl_coordinator *coordinator, const struct sl_rpc_call *call, const char *id,
                               struct sl_job **job_out, struct sl_error *err) {
    enum sl_status status = sl_jobs_find(coordinator->jobs, id, sl_coordinator_sees(call), job_out, err);
    if (status == SL_ERR_NOT_FOUND) {
        enum sl_status leads = sl_coordinator_check_leads(coordinator, err);
        status = leads == SL_OK ? status : leads;
    }
    return status;
}

static enum sl_status submit(struct sl_call_memory *memory, const Sluice__V1__GenerateRequest *request,
                             int64_t call_deadline_ns, bool attached, struct sl_job **job_out, struct sl_error *err) {
    SL_TRY(hold_tokens(memory, request, err));
    return sl_coordinator_submit(memory->coordinator, sl_rpc_call_identity(memory->call), request, call_deadline_ns,
                                 attached ? SL_JOB_ATTACHED : SL_JOB_DETACHED, job_out, err);
}

static enum sl_status submit_and_reply(struct sl_call_memory *memory, const Sluice__V1__GenerateRequest *request,
                                       struct sl_error *err) {
    struct sl_job *job = NULL;
    SL_TRY(submit(memory, request, SL_NO_DEADLINE, false, &job, err));
    Sluice__V1__SubmitReply reply = SLUICE__V1__SUBMIT_REPLY__INIT;
    reply.job_id = job->id;
    reply.recipe = job->spec.recipe;
    Sluice__V1__Accepted accepted;
    sl_job_accepted(job, &accepted);
    reply.accepted = &accepted;
    enum sl_status status = sl_rpc_call_send(memory->call, &reply.base);
    sl_job_unref(&job);
    return status;
}

enum sl_status sl_call_memory_hold(struct sl_call_memory *memory, size_t more, struct sl_error *err) {
    SL_TRY(sl_rpc_call_hold(memory->call, more, err));
    const int64_t most = memory->coordinator->config.request_bytes / 4 * 3,
                  bytes = sl_rpc_call_bytes(memory->call) - memory->bytes;
    // Its tenant's share first: what that refuses must not fill the bound of all for a moment.
    const int64_t own = atomic_fetch_add(&memory->tenant->call_bytes, bytes) + bytes;
    if (own > sl_tenant_share(memory->tenant, most)) {
        atomic_fetch_sub(&memory->tenant->call_bytes, bytes);
        return sl_fail(
            err, SL_ERR_EXHAUSTED,
            "unfinished requests of %s take its share of the memory for them (--tenant-share); retry in 1000 ms",
            sl_rpc_call_caller_name(memory->call));
    }
    memory->bytes += bytes;
    const int64_t all = atomic_fetch_add(&memory->coordinator->call_bytes, bytes) + bytes;
    return all <= most ? SL_OK
                       : sl_fail(err, SL_ERR_EXHAUSTED,
                                 "unfinished requests take all the memory for them (--request-memory); retry in 1000 "
                                 "ms");
}

void sl_call_memory_release(struct sl_call_memory *memory) {
    atomic_fetch_sub(&memory->coordinator->call_bytes, memory->bytes);
    atomic_fetch_sub(&memory->tenant->call_bytes, memory->bytes);
}

// Receives parts until the client has half-closed.
static enum sl_status receive_parts(struct sl_call_memory *memory, struct sl_request_parts *parts,
                                    struct sl_error *err) {
    struct sl_rpc_call *call = memory->call;
    sl_rpc_call_limit(call, sl_deadline_in_ms(memory->coordinator->config.parts_ms));
    for (;;) {
        ProtobufCMessage *message;
        struct sl_error why;
        enum sl_status status = sl_rpc_call_receive(call, &sluice__v1__generate_request__descriptor, &message, &why);
        if (status != SL_OK) {
            return status == SL_ERR_NOT_FOUND ? SL_OK
                                              : sl_fail_from(err, status, &why, "a part of the request: %s", why.text);
        }
        Sluice__V1__GenerateRequest *part = (Sluice__V1__GenerateRequest *)message;
        size_t added;
        status = sl_request_parts_add(parts, part, &added, err);
        const bool is_kept = part == parts->request;
        if (!is_kept) {
            sluice__v1__generate_request__free_unpacked(part, NULL);
        }
        sl_rpc_call_end_message(call, is_kept);
        SL_THEN(status, sl_call_memory_hold(memory, added, err));
        SL_TRY(status);
    }
}

static enum sl_status handle_submit_in_parts(void *service, struct sl_rpc_call *call,
                                             const ProtobufCMessage *no_request, struct sl_error *err) {
    (void)no_request;
    struct sl_coordinator *coordinator = service;
    struct sl_tenant *tenant;
    enum sl_status status =
        sl_coordinator_enter_watcher(coordinator, call, &tenant, err); // may last as long as the client takes
    SL_TRY(status);
    struct sl_request_parts parts;
    const Sluice__V1__GenerateRequest *whole;
    struct sl_call_memory memory = {.coordinator = coordinator, .call = call, .tenant = tenant};
    sl_request_parts_init(&parts, (size_t)coordinator->config.max_prompt_bytes);
    status = receive_parts(&memory, &parts, err);
    SL_THEN(status, sl_request_parts_finish(&parts, &whole, err));
    SL_THEN(status, submit_and_reply(&memory, whole, err));
    sl_call_memory_release(&memory);
    sl_request_parts_cleanup(&parts);
    sl_coordinator_leave_watcher(coordinator, &tenant);
    return status;
}

static enum sl_status handle_submit(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    struct sl_call_memory memory = {.coordinator = service, .call = call};
    SL_TRY(take_tenant(memory.coordinator, call, &memory.tenant, err));
    enum sl_status status = submit_and_reply(&memory, (const Sluice__V1__GenerateRequest *)request, err);
    sl_call_memory_release(&memory);
    sl_tenant_give(&memory.tenant);
    return status;
}

static enum sl_status handle_generate(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                      struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_tenant *tenant;
    SL_TRY(sl_coordinator_enter_watcher(coordinator, call, &tenant, err));
    struct sl_job *job = NULL;
    struct sl_call_memory memory = {.coordinator = coordinator, .call = call, .tenant = tenant};
    enum sl_status status =
        submit(&memory, (const Sluice__V1__GenerateRequest *)request, sl_rpc_call_deadline_ns(call), true, &job, err);
    if (status == SL_OK) {
        sl_rpc_call_on_cancel(call, cancel_job, job);
        sl_fiber_yield(); // the job asks for a worker's memory before its client hears of it
        status = send_events(call, tenant, job, 1, err);
        sl_rpc_call_on_cancel(call, NULL, NULL);
        if (status == SL_OK) {
            status = job_status(job, err);
        } else {
            sl_job_cancel(job);
        }
        sl_job_unref(&job);
    }
    sl_call_memory_release(&memory);
    sl_coordinator_leave_watcher(coordinator, &tenant);
    return status;
}

static enum sl_status handle_watch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_tenant *tenant;
    const Sluice__V1__WatchRequest *watch = (const Sluice__V1__WatchRequest *)request;
    SL_FAIL_IF(watch->from_sequence < 0, err, SL_ERR_INVALID, "from_sequence: is %" PRId64 ", must be 0 or more",
               watch->from_sequence);
    struct sl_job *job = NULL;
    SL_TRY(find_job(coordinator, call, watch->job_id, &job, err));
    enum sl_status status = sl_coordinator_enter_watcher(coordinator, call, &tenant, err);
    if (status == SL_OK) {
        status = send_events(call, tenant, job, watch->from_sequence > 0 ? watch->from_sequence : 1, err);
        sl_coordinator_leave_watcher(coordinator, &tenant);
    }
    sl_job_unref(&job);
    return status;
}

static enum sl_status send_job(struct sl_rpc_call *call, struct sl_job *job, struct sl_error *err) {
    Sluice__V1__Job *message = sl_job_describe(job);
    SL_FAIL_IF(message == NULL, err, SL_ERR_EXHAUSTED, "no memory for a job's description");
    enum sl_status status = sl_rpc_call_send(call, &message->base);
    sluice__v1__job__free_unpacked(message, NULL);
    return status;
}

static enum sl_status cancel_and_wait(struct sl_rpc_call *call, struct sl_job *job, struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(CANCEL_WAIT_MS);
    int64_t call_deadline_ns = sl_rpc_call_deadline_ns(call);
    deadline_ns = call_deadline_ns < deadline_ns ? call_deadline_ns : deadline_ns;
    sl_job_cancel(job);
    while (sl_event_log_wait_closed(&job->log, sl_deadline_in_ms(POLL_MS)) != SL_OK) {
        SL_FAIL_IF(sl_rpc_call_cancelled(call), err, SL_ERR_CANCELLED,
                   "the client is gone; %s will be cancelled all the same", job->id);
        SL_FAIL_IF(sl_now_ns() >= deadline_ns, err, SL_ERR_DEADLINE,
                   "%s is being cancelled, but not all workers have answered yet", job->id);
    }
    return send_job(call, job, err);
}

static enum sl_status handle_cancel(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_tenant *tenant;
    struct sl_job *job = NULL;
    const char *id = ((const Sluice__V1__JobRequest *)request)->job_id;
    SL_TRY(find_job(coordinator, call, id, &job, err));
    sl_job_cancel(job); // also when too many calls wait
    enum sl_status status = sl_coordinator_enter_watcher(coordinator, call, &tenant, err);
    if (status == SL_OK) {
        status = cancel_and_wait(call, job, err);
        sl_coordinator_leave_watcher(coordinator, &tenant);
    }
    sl_job_unref(&job);
    return status;
}

static enum sl_status handle_get(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                 struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_job *job = NULL;
    const char *id = ((const Sluice__V1__JobRequest *)request)->job_id;
    SL_TRY(find_job(coordinator, call, id, &job, err));
    enum sl_status status = send_job(call, job, err);
    sl_job_unref(&job);
    return status;
}

static enum sl_status state_mask(const Sluice__V1__ListRequest *request, unsigned *mask_out, struct sl_error *err) {
    unsigned mask = request->n_states == 0 ? ~0U : 0;
    for (size_t i = 0; i < request->n_states; i++) {
        SL_FAIL_IF((int)request->states[i] < SLUICE__V1__JOB_STATE__QUEUED ||
                       (int)request->states[i] > SLUICE__V1__JOB_STATE__CANCELLED,
                   err, SL_ERR_INVALID, "states: %d is not a state", (int)request->states[i]);
        mask |= 1U << request->states[i];
    }
    *mask_out = mask;
    return SL_OK;
}

static enum sl_status add_up(struct sl_coordinator *coordinator, const struct sl_rpc_call *call,
                             Sluice__V1__Totals *totals, struct sl_error *err) {
    const char *tenant_name = sl_coordinator_sees(call);
    struct sl_tenant *tenant = NULL;
    if (tenant_name != NULL) {
        SL_TRY(sl_tenants_take(coordinator->tenants, tenant_name, &tenant, err));
    }
    const struct sl_totals *counted = tenant != NULL ? &tenant->totals : &coordinator->figures.totals;
    totals->read_tokens = atomic_load(&counted->of[SL_TOTAL_READ_TOKENS]);
    totals->output_tokens = atomic_load(&counted->of[SL_TOTAL_OUTPUT_TOKENS]);
    totals->capsule_bytes = atomic_load(&counted->of[SL_TOTAL_CAPSULE_BYTES]);
    totals->full_bytes = atomic_load(&counted->of[SL_TOTAL_FULL_BYTES]);
    totals->first_tokens = atomic_load(&counted->of[SL_TOTAL_FIRST_TOKENS]);
    totals->first_tokens_ms = (double)atomic_load(&counted->of[SL_TOTAL_FIRST_US]) / 1000;
    sl_tenant_give(&tenant);
    int64_t by_state[SL_N_JOB_STATES];
    sl_jobs_count(coordinator->jobs, tenant_name, by_state);
    totals->n_queued = by_state[SLUICE__V1__JOB_STATE__QUEUED];
    totals->n_prefilling = by_state[SLUICE__V1__JOB_STATE__PREFILLING];
    totals->n_shipping = by_state[SLUICE__V1__JOB_STATE__SHIPPING];
    totals->n_decoding = by_state[SLUICE__V1__JOB_STATE__DECODING];
    totals->n_done = by_state[SLUICE__V1__JOB_STATE__DONE];
    totals->n_failed = by_state[SLUICE__V1__JOB_STATE__FAILED];
    totals->n_cancelled = by_state[SLUICE__V1__JOB_STATE__CANCELLED];
    return SL_OK;
}

static enum sl_status handle_list(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                  struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    const Sluice__V1__ListRequest *list = (const Sluice__V1__ListRequest *)request;
    SL_FAIL_IF(list->limit < 0 || list->limit > LIST_MAX, err, SL_ERR_INVALID, "limit: is %d, must be 0 (%d) to %d",
               list->limit, LIST_DEFAULT, LIST_MAX);
    unsigned mask = 0;
    enum sl_status status = sl_coordinator_check_leads(coordinator, err);
    SL_THEN(status, state_mask(list, &mask, err));
    Sluice__V1__Totals totals = SLUICE__V1__TOTALS__INIT;
    SL_THEN(status, add_up(coordinator, call, &totals, err));
    SL_TRY(status);
    size_t limit = list->limit > 0 ? (size_t)list->limit : LIST_DEFAULT;
    struct sl_job **jobs = calloc(limit, sizeof(*jobs));
    Sluice__V1__ListReply reply = SLUICE__V1__LIST_REPLY__INIT;
    reply.jobs = calloc(limit, sizeof(*reply.jobs));
    reply.totals = &totals;
    reply.everybody = sl_coordinator_sees(call) == NULL;
    bool has_memory = jobs != NULL && reply.jobs != NULL;
    size_t n = has_memory ? sl_jobs_list(coordinator->jobs, sl_coordinator_sees(call), mask, jobs, limit) : 0;
    for (; reply.n_jobs < n; reply.n_jobs++) {
        reply.jobs[reply.n_jobs] = sl_job_describe(jobs[reply.n_jobs]);
        has_memory = has_memory && reply.jobs[reply.n_jobs] != NULL;
        sl_job_unref(&jobs[reply.n_jobs]);
    }
    status = has_memory ? sl_rpc_call_send(call, &reply.base)
                        : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a list of %zu jobs", limit);
    for (size_t i = 0; i < n; i++) {
        sluice__v1__job__free_unpacked(reply.jobs[i], NULL);
    }
    free(reply.jobs);
    free(jobs);
    return status;
}

static enum sl_status handle_model(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    (void)request;
    (void)err;
    struct sl_coordinator *coordinator = service;
    Sluice__V1__ModelReply reply = SLUICE__V1__MODEL_REPLY__INIT;
    reply.name = coordinator->model_name;
    reply.fingerprint = coordinator->model_fingerprint;
    reply.max_positions = coordinator->model.max_positions;
    reply.default_recipe = coordinator->default_recipe;
    Sluice__V1__Sampling sampling = sl_job_model_sampling(&coordinator->model);
    reply.sampling = &sampling;
    reply.takes_chats = coordinator->chat_template != NULL;
    reply.time_ms = sl_wall_ms();
    reply.ready = sl_registry_is_served(coordinator->registry, SLUICE__V1__WORKER_ROLE__PREFILL) &&
                  sl_registry_is_served(coordinator->registry, SLUICE__V1__WORKER_ROLE__DECODE);
    char leader[SL_LEADER_BYTES];
    sl_coordinator_tell_leader(coordinator, leader, &reply);
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_end_conversation(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                              struct sl_error *err) {
    (void)err;
    struct sl_coordinator *coordinator = service;
    const char *id = ((const Sluice__V1__ConversationRequest *)request)->id;
    struct sl_sessions_left left = {0};
    (void)sl_conversations_forget(coordinator->conversations, sl_rpc_call_identity(call)->tenant, id, &left);
    sl_turn_release_left(coordinator->registry, NULL, &left,
                         coordinator->election != NULL ? sl_election_last_term(coordinator->election) : 0);
    Sluice__V1__ConversationReply reply = SLUICE__V1__CONVERSATION_REPLY__INIT;
    return sl_rpc_call_send(call, &reply.base);
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_inference_generate, handle_generate, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_submit, handle_submit, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_submit_in_parts, handle_submit_in_parts, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_watch, handle_watch, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_cancel, handle_cancel, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_get, handle_get, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_list, handle_list, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_end_conversation, handle_end_conversation, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_inference_model, handle_model, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
};

struct sl_rpc_implementation sl_inference_service(struct sl_coordinator *coordinator) {
    struct sl_rpc_implementation service = SL_RPC_IMPLEMENTATION(&sl_service_inference, handlers, coordinator);
    service.on_fibers = true;
    return service;
}
