// SPDX-License-Identifier: Apache-2.0
// Purpose: see fake_worker.h.
#include "fake_lies.h"
#include "fake_turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/term.h"
#include "base/thread.h"
#include "base/version.h"
#include "engine/model/model.h"
#include "proto/methods.h"

#define MODEL            "models/demo"
#define PREFILL_MS       10
#define CAPSULE_BYTES    5000
#define MAX_SHARES       4
#define HANG_PROGRESS_MS 50

// ---- the workers' services --------------------------------------------------------------------------------------

// Sleep, but wake when the caller is gone.
static bool nap(struct fake_worker *worker, struct sl_rpc_call *call, int64_t ms) {
    for (int64_t end_ns = sl_deadline_in_ms(ms); sl_now_ns() < end_ns;) {
        if (sl_rpc_call_cancelled(call) || atomic_load(&worker->stop)) {
            return false;
        }
        sl_sleep_ms(ms < 5 ? ms : 5);
    }
    return !sl_rpc_call_cancelled(call);
}

static enum sl_status gone(struct fake_worker *worker, struct sl_error *err) {
    atomic_fetch_add(&worker->n_cancelled, 1);
    return sl_fail(err, SL_ERR_CANCELLED, "cancelled");
}

static enum sl_status send_progress(struct sl_rpc_call *call, int64_t done, int64_t total) {
    Sluice__V1__PrefillProgress progress = SLUICE__V1__PREFILL_PROGRESS__INIT;
    progress.tokens_done = done;
    progress.tokens_total = total;
    progress.resident_bytes = done < INT64_MAX - 1000 ? 1000 + done : done; // also for workers that lie
    Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
    event.what_case = SLUICE__V1__PREFILL_EVENT__WHAT_PREFILL;
    event.prefill = &progress;
    return sl_rpc_call_send(call, &event.base);
}

static enum sl_status send_ship(struct sl_rpc_call *call, int64_t sent, int64_t total) {
    Sluice__V1__ShipProgress ship = SLUICE__V1__SHIP_PROGRESS__INIT;
    ship.bytes_sent = sent;
    ship.bytes_total = total;
    Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
    event.what_case = SLUICE__V1__PREFILL_EVENT__WHAT_SHIP;
    event.ship = &ship;
    return sl_rpc_call_send(call, &event.base);
}

// The last event: what was asked to be held by stores is held.
static enum sl_status send_prefill_done(struct fake_worker *worker, struct sl_rpc_call *call,
                                        const Sluice__V1__PrefillRequest *request) {
    Sluice__V1__AnnexShare remote_kvs[MAX_SHARES + 1], *pointers[MAX_SHARES + 1];
    assert_true(request->n_stores <= MAX_SHARES);
    for (size_t i = 0; i < request->n_stores; i++) {
        remote_kvs[i] = (Sluice__V1__AnnexShare)SLUICE__V1__ANNEX_SHARE__INIT;
        remote_kvs[i].share = request->stores[i];
        remote_kvs[i].lease_id = "annex";
        pointers[i] = &remote_kvs[i];
    }
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.prefill_ms = 8;
    statistics.ship_ms = 2;
    statistics.capsule_bytes = CAPSULE_BYTES;
    statistics.prefill_peak_bytes = 7777;
    statistics.slots_per_head = 12.5;
    statistics.slots_evicted = 3;
    statistics.restore_ms = 7;
    statistics.not_cached = request->no_reuse ? SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF : 0;
    statistics.transport = "put/fake";
    Sluice__V1__PrefillDone done = SLUICE__V1__PREFILL_DONE__INIT;
    done.statistics = &statistics;
    done.annex = pointers;
    done.n_annex = request->n_stores;
    if (fake_lies(worker, FAKE_REMOTE_KV_NOBODY_ASKED_FOR)) {
        remote_kvs[done.n_annex] = (Sluice__V1__AnnexShare)SLUICE__V1__ANNEX_SHARE__INIT; // of no share at all
        pointers[done.n_annex] = &remote_kvs[done.n_annex];
        done.n_annex++;
    }
    Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
    event.what_case = SLUICE__V1__PREFILL_EVENT__WHAT_DONE;
    event.done = &done;
    if (fake_lies(worker, FAKE_PREFILL_DONE_TWICE)) {
        sl_rpc_call_send(call, &event.base);
    }
    return sl_rpc_call_send(call, &event.base);
}

static void send_prefill_lies(struct fake_worker *worker, struct sl_rpc_call *call, int64_t total) {
    if (fake_lies(worker, FAKE_PROGRESS_BACKWARDS)) {
        send_progress(call, total, total);
        send_progress(call, 1, total);
        send_ship(call, CAPSULE_BYTES, CAPSULE_BYTES);
        send_ship(call, 1, CAPSULE_BYTES);
    } else if (fake_lies(worker, FAKE_PROGRESS_OUT_OF_RANGE)) {
        send_progress(call, -1, total);
        send_progress(call, INT64_MAX, INT64_MIN);
        send_ship(call, INT64_MAX, -1);
    } else if (fake_lies(worker, FAKE_PREFILL_EVENT_OF_NO_KIND)) {
        Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
        sl_rpc_call_send(call, &event.base);
    }
}

static enum sl_status prefill_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                  struct sl_error *err) {
    struct fake_worker *worker = service;
    const Sluice__V1__PrefillRequest *request = (const Sluice__V1__PrefillRequest *)message;
    int64_t total = (int64_t)request->tokens->n_ids;
    atomic_fetch_add(&worker->n_runs, 1);
    atomic_store(&worker->last_prompt, (int)total);
    if (request->destination == NULL || request->destination->ticket.len != 6) {
        return sl_fail(err, SL_ERR_INVALID, "the grant did not arrive whole");
    }
    int n_before = atomic_load(&worker->n_runs) - 1;
    if (request->n_stores > 0 && n_before < 4) {
        snprintf(worker->first_stores[n_before], sizeof worker->first_stores[0], "%s", request->stores[0]->address);
    }
    if (request->n_stores > 0 && atomic_load(&worker->n_store_refusals) > 0) {
        atomic_fetch_sub(&worker->n_store_refusals, 1);
        bool words = atomic_load(&worker->blames_in_words);
        const char *store = request->stores[0]->address;
        sl_fail(err, atomic_load(&worker->store_refusal), "%s: it has no room for this", words ? store : "a store");
        sl_error_blame(err, words ? SL_REASON_NONE : SL_REASON_STORE, words ? "" : store);
        return err->status;
    }
    int mode = atomic_load(&worker->prefill_mode);
    if (mode == FAKE_PREFILL_REFUSES) {
        return sl_fail(err, SL_ERR_PRECONDITION, "this worker has scruples");
    }
    while (mode == FAKE_PREFILL_SILENT) {
        if (!nap(worker, call, HANG_PROGRESS_MS)) {
            return gone(worker, err);
        }
    }
    send_progress(call, 0, total);
    if (mode == FAKE_PREFILL_UNAVAILABLE) {
        return sl_fail(err, SL_ERR_PEER_LOST, "struck by lightning");
    }
    if (mode == FAKE_PREFILL_LOST_ANOTHER) {
        return sl_fail(err, SL_ERR_PEER_STALE, "a store was struck by lightning");
    }
    while (mode == FAKE_PREFILL_READS_FOR_EVER) {
        if (!nap(worker, call, HANG_PROGRESS_MS) || send_progress(call, 1, total) != SL_OK) {
            return gone(worker, err);
        }
    }
    while (mode == FAKE_PREFILL_SHIPS_FOR_EVER) {
        if (send_ship(call, 1, CAPSULE_BYTES) != SL_OK || !nap(worker, call, HANG_PROGRESS_MS)) {
            return gone(worker, err);
        }
    }
    send_prefill_lies(worker, call, total);
    if (!nap(worker, call, PREFILL_MS)) {
        return gone(worker, err);
    }
    send_progress(call, total, total);
    send_ship(call, CAPSULE_BYTES, CAPSULE_BYTES);
    return send_prefill_done(worker, call, request);
}

static enum sl_status decode_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                     struct sl_error *err) {
    struct fake_worker *worker = service;
    const Sluice__V1__ReserveRequest *request = (const Sluice__V1__ReserveRequest *)message;
    if (request->capsule_bytes < 1 || request->session_bytes < 0) { // new tokens may fit the capsule's last pages
        return sl_fail(err, SL_ERR_INVALID, "capsule_bytes or session_bytes make no sense");
    }
    if (atomic_load(&worker->n_reserve_refusals) > 0) {
        atomic_fetch_sub(&worker->n_reserve_refusals, 1);
        return sl_fail(err, (enum sl_status)atomic_load(&worker->reserve_refusal), "no room; retry in 50 ms");
    }
    if (request->term < atomic_load(&worker->guard_term)) {
        return sl_term_refuse(request->term, atomic_load(&worker->guard_term), err);
    }
    int n = atomic_fetch_add(&worker->n_reserved, 1);
    char lease[64];
    snprintf(lease, sizeof(lease), "%s-%d", worker->name, n);
    uint8_t ticket[6] = {1, 0, 2, 0, 3, 0}; // with zeros inside: not a string
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.lease_id = lease;
    grant.lease_ms = worker->lease_ms;
    grant.capacity_bytes = request->capsule_bytes;
    grant.ticket.data = ticket;
    grant.ticket.len = sizeof(ticket);
    fake_lie_about_grant(worker, &grant);
    atomic_fetch_add(&worker->open_leases, 1);
    return sl_rpc_call_send(call, &grant.base);
}

static enum sl_status renew(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err) {
    (void)message;
    (void)err;
    struct fake_worker *worker = service;
    atomic_fetch_add(&worker->n_renewed, 1);
    Sluice__V1__RenewReply reply = SLUICE__V1__RENEW_REPLY__INIT;
    reply.lease_ms = fake_lies(worker, FAKE_RENEWED_FOR_EVER)                ? INT64_MAX
                     : fake_lies(worker, FAKE_RENEWED_FOR_LESS_THAN_NO_TIME) ? INT64_MIN
                                                                             : worker->lease_ms;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status release(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                              struct sl_error *err) {
    (void)err;
    (void)message;
    struct fake_worker *worker = service;
    atomic_fetch_add(&worker->n_released, 1);
    atomic_fetch_sub(&worker->open_leases, 1);
    Sluice__V1__ReleaseReply reply = SLUICE__V1__RELEASE_REPLY__INIT;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status send_token(struct fake_worker *worker, struct sl_rpc_call *call, int index) {
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.id = FAKE_FIRST_ID + index;
    token.index = index;
    token.text = "a ";
    fake_lie_about_token(worker, &token);
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_TOKEN;
    event.token = &token;
    return sl_rpc_call_send(call, &event.base);
}

static enum sl_status send_decode_done(struct fake_worker *worker, struct sl_rpc_call *call,
                                       const Sluice__V1__DecodeRequest *request) {
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.decode_resident_bytes = 4321;
    Sluice__V1__Retrieval retrieval = SLUICE__V1__RETRIEVAL__INIT;
    retrieval.fallbacks = 5;
    statistics.retrieval = &retrieval;
    Sluice__V1__DecodeDone done = SLUICE__V1__DECODE_DONE__INIT;
    done.reason = fake_lies(worker, FAKE_DONE_FOR_NO_REASON) ? SLUICE__V1__FINISHED__REASON__ERROR
                                                             : SLUICE__V1__FINISHED__REASON__LENGTH;
    done.text = "the whole answer";
    fake_keep(worker, request, &done);
    done.statistics = &statistics;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_DONE;
    event.done = &done;
    if (fake_lies(worker, FAKE_DECODE_EVENT_OF_NO_KIND)) {
        event.what_case = SLUICE__V1__DECODE_EVENT__WHAT__NOT_SET;
    }
    atomic_fetch_add(&worker->n_done, 1);
    if (request->lease_id[0] != '\0') {
        atomic_fetch_sub(&worker->open_leases, 1);
    }
    if (fake_lies(worker, FAKE_DONE_TWICE)) {
        sl_rpc_call_send(call, &event.base);
    }
    return sl_rpc_call_send(call, &event.base);
}

// Sends a notice of three answers that a store did not give.
static void send_notice(struct sl_rpc_call *call) {
    Sluice__V1__Notice notice = SLUICE__V1__NOTICE__INIT;
    notice.text = "had to do without";
    notice.fallbacks = 3;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_NOTICE;
    event.notice = &notice;
    sl_rpc_call_send(call, &event.base);
}

static enum sl_status decode_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                 struct sl_error *err) {
    struct fake_worker *worker = service;
    const Sluice__V1__DecodeRequest *request = (const Sluice__V1__DecodeRequest *)message;
    int n_resumed = request->resumed != NULL ? (int)request->resumed->n_ids : 0;
    atomic_fetch_add(&worker->n_runs, 1);
    atomic_store(&worker->last_resumed, n_resumed);
    atomic_store(&worker->last_prompt, (int)request->prompt->n_ids);
    atomic_store(&worker->last_lease_empty, request->lease_id[0] == '\0');
    if (n_resumed >= request->max_new_tokens) {
        return sl_fail(err, SL_ERR_INVALID, "nothing is left to write");
    }
    for (int i = 0; i < n_resumed; i++) {
        if (request->resumed->ids[i] != FAKE_FIRST_ID + i) {
            return sl_fail(err, SL_ERR_INVALID, "resumed token %d is wrong", i);
        }
    }
    atomic_store(&worker->last_said, request->said != NULL && request->said->n_ids == 1 ? request->said->ids[0] : -1);
    enum sl_status status = fake_check_kept(worker, request, err);
    if (status != SL_OK) {
        return status;
    }
    while (atomic_load(&worker->decode_hangs)) {
        Sluice__V1__DecodeAlive alive = SLUICE__V1__DECODE_ALIVE__INIT;
        Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
        event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_ALIVE;
        event.alive = &alive;
        if (sl_rpc_call_send(call, &event.base) != SL_OK || !nap(worker, call, HANG_PROGRESS_MS)) {
            return gone(worker, err);
        }
    }
    for (int i = n_resumed; i < request->max_new_tokens; i++) {
        if (atomic_load(&worker->break_at_token) == i) {
            atomic_store(&worker->break_at_token, -1);
            send_notice(call);
            return sl_fail(err, SL_ERR_PEER_LOST, "out of electricity");
        }
        if (!nap(worker, call, atomic_load(&worker->token_ms)) || send_token(worker, call, i) != SL_OK) {
            return gone(worker, err);
        }
        if (atomic_load(&worker->repeat_tokens)) {
            send_token(worker, call, i);
        }
    }
    if (atomic_load(&worker->break_at_token) == request->max_new_tokens) {
        atomic_store(&worker->break_at_token, -1);
        return sl_fail(err, SL_ERR_PEER_LOST, "out of electricity at the very end");
    }
    if (fake_lies(worker, FAKE_TOKEN_TOO_MANY)) {
        send_token(worker, call, request->max_new_tokens);
    }
    return send_decode_done(worker, call, request);
}

static const struct sl_rpc_handler prefill_handlers[] = {{&sl_method_prefill_run, prefill_run, SL_ROLE_ANY}};
static const struct sl_rpc_handler decode_handlers[] = {
    {&sl_method_decode_reserve, decode_reserve, SL_ROLE_ANY}, {&sl_method_decode_renew, renew, SL_ROLE_ANY},
    {&sl_method_decode_release, release, SL_ROLE_ANY},        {&sl_method_decode_archive, fake_archive, SL_ROLE_ANY},
    {&sl_method_decode_run, decode_run, SL_ROLE_ANY},
};
// Prefill opens remote KVs; the fake one only reports it.
static const struct sl_rpc_handler store_handlers[] = {
    {&sl_method_store_renew, renew, SL_ROLE_ANY},
    {&sl_method_store_release, release, SL_ROLE_ANY},
    {&sl_method_store_reserve, fake_store_reserve, SL_ROLE_ANY},
    {&sl_method_store_lookup, fake_store_lookup, SL_ROLE_ANY},
    {&sl_method_store_fetch, fake_store_fetch, SL_ROLE_ANY},
    {&sl_method_store_forget, fake_store_forget, SL_ROLE_ANY},
};
#define N_STORE_METHODS (sizeof store_handlers / sizeof *store_handlers)
static const struct sl_rpc_method *const store_methods[N_STORE_METHODS] = {
    &sl_method_store_renew,  &sl_method_store_release, &sl_method_store_reserve,
    &sl_method_store_lookup, &sl_method_store_fetch,   &sl_method_store_forget};
static const struct sl_rpc_service store_service = {"sluice.v1.Store", store_methods, N_STORE_METHODS};

// ---- joining ----------------------------------------------------------------------------------------------------

static enum sl_status join(struct fake_worker *worker, struct sl_error *err) {
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = worker->name;
    info.role = worker->role;
    info.rpc_address = (char *)sl_rpc_server_address(worker->server);
    info.version = SL_VERSION;
    info.model_fingerprint = worker->model_fingerprint;
    info.arena_bytes = worker->arena_bytes;
    info.max_jobs = worker->max_jobs;
    info.epoch = worker->epoch;
    Sluice__V1__RegisterRequest request = SLUICE__V1__REGISTER_REQUEST__INIT;
    request.worker = &info;
    return sl_rpc_unary(worker->channel, &sl_method_cluster_register_worker, &request.base,
                        sl_deadline_in_ms(FAKE_CALL_MS), NULL, NULL, err);
}

// Waits for the connection: connecting may fail after a second on a machine that stands still. A real worker tries
// again, too.
static void await_connected(struct sl_rpc_channel *channel) {
    Sluice__V1__ModelRequest request = SLUICE__V1__MODEL_REQUEST__INIT;
    struct sl_error err;
    enum sl_status status;
    int64_t end_ns = sl_deadline_in_ms(20000);
    do {
        status =
            sl_rpc_unary(channel, &sl_method_inference_model, &request.base, sl_deadline_in_ms(5000), NULL, NULL, &err);
    } while (status == SL_ERR_PEER_LOST && sl_now_ns() < end_ns);
}

static void *beat(void *arg) {
    struct fake_worker *worker = arg;
    while (!atomic_load(&worker->stop)) {
        Sluice__V1__HeartbeatRequest request = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
        request.name = worker->name;
        request.epoch = worker->epoch;
        struct sl_error err;
        if (!atomic_load(&worker->mute) &&
            sl_rpc_unary(worker->channel, &sl_method_cluster_heartbeat, &request.base, sl_deadline_in_ms(1000), NULL,
                         NULL, &err) == SL_ERR_NOT_FOUND) {
            join(worker, &err);
        }
        sl_sleep_ms(FAKE_HEARTBEAT_MS / 4);
    }
    return NULL;
}

void fake_worker_init(struct fake_worker *worker, const char *name, Sluice__V1__WorkerRole role) {
    memset(worker, 0, sizeof(*worker));
    snprintf(worker->name, sizeof(worker->name), "%s", name);
    worker->role = role;
    worker->arena_bytes = 64 << 20;
    worker->max_jobs = 8;
    worker->lease_ms = 300;
    worker->kept_bytes = FAKE_KEPT_BYTES;
    worker->epoch = (uint64_t)sl_now_ns();
    atomic_init(&worker->break_at_token, -1);
    atomic_init(&worker->token_ms, 1);
    assert_int_equal(sl_model_fingerprint(MODEL, SL_WEIGHT_STORED, &worker->model_fingerprint, NULL), SL_OK);
}

enum sl_status fake_worker_start(struct fake_worker *worker, const char *address, struct sl_error *err) {
    struct sl_rpc_implementation service = {
        .service = &sl_service_decode, .handlers = decode_handlers, .n_handlers = 5, .context = worker};
    if (worker->role == SLUICE__V1__WORKER_ROLE__PREFILL) {
        service = (struct sl_rpc_implementation){
            .service = &sl_service_prefill, .handlers = prefill_handlers, .n_handlers = 1, .context = worker};
    } else if (worker->role == SLUICE__V1__WORKER_ROLE__KVSTORE) {
        service = (struct sl_rpc_implementation){
            .service = &store_service, .handlers = store_handlers, .n_handlers = N_STORE_METHODS, .context = worker};
    }
    struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = &service, .n_services = 1};
    assert_int_equal(sl_rpc_server_start(&config, &worker->server, err), SL_OK);
    assert_int_equal(sl_rpc_channel_create(address, NULL, SL_ROLE_ANY, &worker->channel, err), SL_OK);
    await_connected(worker->channel);
    enum sl_status status = join(worker, err);
    assert_int_equal(sl_thread_start("heart", beat, worker, &worker->heart, err), SL_OK);
    return status;
}

void fake_worker_stop(struct fake_worker *worker) {
    if (worker->server == NULL) {
        return;
    }
    atomic_store(&worker->stop, true);
    pthread_join(worker->heart, NULL);
    sl_rpc_server_stop(&worker->server, 0);
    sl_rpc_channel_destroy(&worker->channel);
}

// ---- the coordinator --------------------------------------------------------------------------------------------

void fake_cluster_start(struct fake_cluster *cluster, const struct sl_coordinator_config *config) {
    struct sl_coordinator_config defaults;
    struct sl_error err = {0};
    if (config == NULL) {
        fake_cluster_config(&defaults);
        config = &defaults;
    }
    if (sl_coordinator_create(config, &cluster->coordinator, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(
        sl_rpc_channel_create(sl_coordinator_address(cluster->coordinator), NULL, SL_ROLE_ANY, &cluster->channel, &err),
        SL_OK);
    await_connected(cluster->channel);
    assert_int_equal(sl_model_fingerprint(MODEL, SL_WEIGHT_STORED, &cluster->model_fingerprint, &err), SL_OK);
}

void fake_cluster_assert_idle(struct fake_cluster *cluster) {
    Sluice__V1__WorkersRequest request = SLUICE__V1__WORKERS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_rpc_unary(cluster->channel, &sl_method_cluster_workers, &request.base,
                                  sl_deadline_in_ms(FAKE_CALL_MS), NULL, &message, &err),
                     SL_OK);
    Sluice__V1__WorkersReply *reply = (Sluice__V1__WorkersReply *)message;
    assert_int_equal(reply->jobs_queued, 0);
    assert_int_equal(reply->jobs_running, 0);
    assert_int_equal(reply->coordinator_leases, 0);
    protobuf_c_message_free_unpacked(message, NULL);
}

void fake_cluster_stop(struct fake_cluster *cluster) {
    fake_cluster_assert_idle(cluster);
    sl_coordinator_destroy(&cluster->coordinator);
    sl_rpc_channel_destroy(&cluster->channel);
}

// ---- a client ---------------------------------------------------------------------------------------------------

void fake_request(Sluice__V1__GenerateRequest *request, int max_new_tokens) {
    static int32_t ids[20] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
    static Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT;
    tokens.ids = ids;
    tokens.n_ids = 20;
    sluice__v1__generate_request__init(request);
    request->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request->tokens = &tokens;
    request->max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request->max_new_tokens = max_new_tokens;
}

void fake_submit(struct fake_cluster *cluster, const Sluice__V1__GenerateRequest *request, char id_out[64]) {
    ProtobufCMessage *message = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_rpc_unary(cluster->channel, &sl_method_inference_submit, &request->base,
                                         sl_deadline_in_ms(FAKE_CALL_MS), NULL, &message, &err);
    if (status != SL_OK) {
        fail_msg("%s", err.text);
    }
    snprintf(id_out, 64, "%s", ((Sluice__V1__SubmitReply *)message)->job_id);
    protobuf_c_message_free_unpacked(message, NULL);
}

static void collect(struct fake_cluster *cluster, const struct sl_rpc_method *method, const ProtobufCMessage *request,
                    struct fake_events *events) {
    struct sl_rpc_stream *stream = NULL;
    memset(events, 0, sizeof(*events));
    assert_int_equal(sl_rpc_stream_open(cluster->channel, method, request, sl_deadline_in_ms(FAKE_CALL_MS), NULL,
                                        &stream, &events->err),
                     SL_OK);
    ProtobufCMessage *message;
    while ((events->status = sl_rpc_stream_next(stream, FAKE_CALL_MS, &message, &events->err)) == SL_OK) {
        assert_true(events->n < 4096);
        events->events[events->n++] = (Sluice__V1__Event *)message;
    }
    events->status = events->status == SL_ERR_NOT_FOUND && events->n > 0 ? SL_OK : events->status;
    sl_rpc_stream_close(&stream);
}

void fake_watch(struct fake_cluster *cluster, const char *id, int64_t from_sequence, struct fake_events *events) {
    Sluice__V1__WatchRequest request = SLUICE__V1__WATCH_REQUEST__INIT;
    request.job_id = (char *)id;
    request.from_sequence = from_sequence;
    collect(cluster, &sl_method_inference_watch, &request.base, events);
}

void fake_generate(struct fake_cluster *cluster, const Sluice__V1__GenerateRequest *request,
                   struct fake_events *events) {
    collect(cluster, &sl_method_inference_generate, &request->base, events);
}

void fake_workers_start(const struct fake_cluster *cluster, struct fake_worker *prefill, struct fake_worker *decode) {
    fake_worker_init(prefill, "prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL);
    fake_worker_init(decode, "decode-0", SLUICE__V1__WORKER_ROLE__DECODE);
    assert_int_equal(fake_worker_start(prefill, sl_coordinator_address(cluster->coordinator), NULL), SL_OK);
    assert_int_equal(fake_worker_start(decode, sl_coordinator_address(cluster->coordinator), NULL), SL_OK);
}

void fake_events_free(struct fake_events *events) {
    for (int i = 0; i < events->n; i++) {
        sluice__v1__event__free_unpacked(events->events[i], NULL);
    }
    events->n = 0;
}

const Sluice__V1__Finished *fake_events_check(const struct fake_events *events, int n_tokens) {
    int next_token = 0;
    assert_true(events->n > 0);
    for (int i = 0; i < events->n; i++) {
        const Sluice__V1__Event *event = events->events[i];
        assert_int_equal(event->sequence, events->events[0]->sequence + i);
        if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
            assert_int_equal(event->token->index, next_token);
            assert_int_equal(event->token->id, FAKE_FIRST_ID + next_token);
            next_token++;
        }
        assert_int_equal(event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED, i == events->n - 1);
    }
    if (n_tokens >= 0) {
        assert_int_equal(next_token, n_tokens);
    }
    return events->events[events->n - 1]->finished;
}

Sluice__V1__Job *fake_call_job(struct fake_cluster *cluster, const struct sl_rpc_method *method, const char *id) {
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)id;
    ProtobufCMessage *message = NULL;
    struct sl_error err = {0};
    enum sl_status status =
        sl_rpc_unary(cluster->channel, method, &request.base, sl_deadline_in_ms(FAKE_CALL_MS), NULL, &message, &err);
    if (status != SL_OK) {
        fail_msg("%s: %s", method->path, err.text);
    }
    return (Sluice__V1__Job *)message;
}

void fake_await_state(struct fake_cluster *cluster, const char *id, Sluice__V1__JobState state) {
    for (int64_t end_ns = sl_deadline_in_ms(FAKE_CALL_MS); sl_now_ns() < end_ns; sl_sleep_ms(5)) {
        Sluice__V1__Job *job = fake_call_job(cluster, &sl_method_inference_get, id);
        bool reached = job->state == state;
        protobuf_c_message_free_unpacked(&job->base, NULL);
        if (reached) {
            return;
        }
    }
    fail_msg("%s never came to state %d", id, (int)state);
}
