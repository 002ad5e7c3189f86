// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice bench waiting`: workers that only wait, until a signal comes. They report how long they have waited: prefill_ms,
 *          and retrieval.wait_ms of decode. Prints "ready" when all have joined, with two addresses.
 */
#include "lab/bench/coordinator/coordinator_benches.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/fiber/bell.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/version.h"
#include "client/cli/tool.h"
#include "engine/model/model.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define ARENA_BYTES   (INT64_C(1) << 42)
#define MAX_JOBS      10000 // of a worker
#define LEASE_MS      60000
#define CALL_MS       5000
#define JOIN_MS       60000
#define N_SERVERS     16 // the most of a process: each is that of every sixteenth worker
#define N_HEARTS      4  // threads that send the heartbeats
#define BEAT_EVERY_MS 1000

struct options {
    const char *coordinator, *model;
    int64_t n, prefill_ms, token_ms;
};

static const struct sl_option option_table[] = {
    {"coordinator", 'c', SL_OPTION_STRING, "127.0.0.1:7600", "HOST:PORT", "coordinator to join",
     SL_FIELD(options, coordinator)},
    {"model", 'm', SL_OPTION_MODEL, "demo", "MODEL", "model that the workers register with", SL_FIELD(options, model)},
    {"workers", 0, SL_OPTION_INT, "8", "N", "workers; half of them are prefill workers", SL_FIELD(options, n), 2, 1024},
    {"prefill-ms", 0, SL_OPTION_INT, "2", "MS", "time that a worker waits instead of reading",
     SL_FIELD(options, prefill_ms), 0, 60000},
    {"token-ms", 0, SL_OPTION_INT, "2", "MS", "time that a worker waits before each token", SL_FIELD(options, token_ms),
     0, 60000},
};

struct bench {
    struct options options;
    struct sl_signals signals;
    uint64_t fingerprint; // the model's
};

struct worker {
    const struct bench *bench;
    struct sl_rpc_server *server;
    char name[32];
    Sluice__V1__WorkerRole role;
    uint64_t epoch;
};

struct heart {
    struct worker *workers;
    int64_t first, n; // every N_HEARTS-th from the first one on
    struct sl_rpc_channel *channel;
    atomic_bool *stop;
    pthread_t thread;
};

// ---- services -------------------------------------------------------------------------------------------------------

// Adds to *waited_ms how long it has waited in truth.
static bool nap(struct sl_rpc_call *call, int64_t ms, double *waited_ms) {
    int64_t begin_ns = sl_now_ns();
    sl_wait_ms(ms);
    *waited_ms += (double)(sl_now_ns() - begin_ns) / SL_NS_PER_MS;
    return !sl_rpc_call_cancelled(call);
}

static enum sl_status prefill_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *,
                                  struct sl_error *err) {
    const struct worker *worker = service;
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    SL_FAIL_IF(!nap(call, worker->bench->options.prefill_ms, &statistics.prefill_ms), err, SL_ERR_CANCELLED,
               "cancelled");
    Sluice__V1__PrefillDone done = SLUICE__V1__PREFILL_DONE__INIT;
    done.statistics = &statistics;
    Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
    event.what_case = SLUICE__V1__PREFILL_EVENT__WHAT_DONE;
    event.done = &done;
    return sl_rpc_call_send(call, &event.base);
}

static enum sl_status decode_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                     struct sl_error *) {
    const struct worker *worker = service;
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.lease_id = (char *)worker->name;
    grant.lease_ms = LEASE_MS;
    grant.capacity_bytes = ((const Sluice__V1__ReserveRequest *)message)->capsule_bytes;
    return sl_rpc_call_send(call, &grant.base);
}

static enum sl_status decode_renew(void *, struct sl_rpc_call *call, const ProtobufCMessage *, struct sl_error *) {
    Sluice__V1__RenewReply reply = SLUICE__V1__RENEW_REPLY__INIT;
    reply.lease_ms = LEASE_MS;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status decode_release(void *, struct sl_rpc_call *call, const ProtobufCMessage *, struct sl_error *) {
    Sluice__V1__ReleaseReply reply = SLUICE__V1__RELEASE_REPLY__INIT;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status decode_archive(void *, struct sl_rpc_call *, const ProtobufCMessage *, struct sl_error *err) {
    return sl_fail(err, SL_ERR_UNSUPPORTED, "a worker that waits has no session to copy");
}

static enum sl_status decode_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                 struct sl_error *err) {
    const struct worker *worker = service;
    const Sluice__V1__DecodeRequest *request = (const Sluice__V1__DecodeRequest *)message;
    Sluice__V1__Retrieval retrieval = SLUICE__V1__RETRIEVAL__INIT;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_TOKEN;
    event.token = &token;
    token.text = "a ";
    token.id = 100;
    for (token.index = request->resumed ? (int32_t)request->resumed->n_ids : 0; token.index < request->max_new_tokens;
         token.index++) {
        SL_FAIL_IF(!nap(call, worker->bench->options.token_ms, &retrieval.wait_ms) ||
                       sl_rpc_call_send(call, &event.base) != SL_OK,
                   err, SL_ERR_CANCELLED, "cancelled");
    }
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    Sluice__V1__DecodeDone done = SLUICE__V1__DECODE_DONE__INIT;
    statistics.retrieval = &retrieval;
    done.reason = SLUICE__V1__FINISHED__REASON__LENGTH;
    done.text = "the whole answer";
    done.statistics = &statistics;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_DONE;
    event.done = &done;
    return sl_rpc_call_send_last(call, &event.base);
}

static const struct sl_rpc_handler prefill_handlers[] = {{&sl_method_prefill_run, prefill_run, SL_ROLE_ANY}};
static const struct sl_rpc_handler decode_handlers[] = {
    {&sl_method_decode_reserve, decode_reserve, SL_ROLE_ANY}, {&sl_method_decode_renew, decode_renew, SL_ROLE_ANY},
    {&sl_method_decode_release, decode_release, SL_ROLE_ANY}, {&sl_method_decode_archive, decode_archive, SL_ROLE_ANY},
    {&sl_method_decode_run, decode_run, SL_ROLE_ANY},
};

// ---- joining --------------------------------------------------------------------------------------------------------

static enum sl_status join(const struct worker *worker, struct sl_rpc_channel *channel, struct sl_error *err) {
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = (char *)worker->name;
    info.role = worker->role;
    info.rpc_address = (char *)sl_rpc_server_address(worker->server);
    info.version = SL_VERSION;
    info.model_fingerprint = worker->bench->fingerprint;
    info.arena_bytes = ARENA_BYTES;
    info.max_jobs = MAX_JOBS;
    info.epoch = worker->epoch;
    Sluice__V1__RegisterRequest request = SLUICE__V1__REGISTER_REQUEST__INIT;
    request.worker = &info;
    return sl_rpc_unary(channel, &sl_method_cluster_register_worker, &request.base, sl_deadline_in_ms(JOIN_MS), NULL,
                        NULL, err);
}

static enum sl_status start(struct worker *worker, int64_t i, struct sl_rpc_channel *channel, struct sl_error *err) {
    bool reads = i % 2 == 0;
    worker->role = reads ? SLUICE__V1__WORKER_ROLE__PREFILL : SLUICE__V1__WORKER_ROLE__DECODE;
    worker->epoch = (uint64_t)sl_now_ns();
    snprintf(worker->name, sizeof worker->name, "%s-%d", reads ? "prefill" : "decode", (int)(i / 2));
    if (i >= N_SERVERS) {
        worker->server = worker[-N_SERVERS].server;
        return join(worker, channel, err);
    }
    struct sl_rpc_implementation services[] = {SL_RPC_IMPLEMENTATION(&sl_service_decode, decode_handlers, worker),
                                               SL_RPC_IMPLEMENTATION(&sl_service_prefill, prefill_handlers, worker)};
    services[reads].on_fibers = true; // as few threads as the coordinator, so that it has the processors
    const struct sl_rpc_server_config config = {
        .listen = "127.0.0.1:0", .services = &services[reads], .n_services = 1, .max_calls = MAX_JOBS};
    SL_TRY(sl_rpc_server_start(&config, &worker->server, err));
    return join(worker, channel, err);
}

static void *beat(void *arg) {
    const struct heart *heart = arg;
    for (int64_t due_ns = 0; !atomic_load(heart->stop);) {
        for (int64_t i = heart->first; i < heart->n && !atomic_load(heart->stop); i += N_HEARTS) {
            const struct worker *worker = &heart->workers[i];
            Sluice__V1__HeartbeatRequest request = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
            request.name = (char *)worker->name;
            request.epoch = worker->epoch;
            struct sl_error err;
            if (sl_rpc_unary(heart->channel, &sl_method_cluster_heartbeat, &request.base, sl_deadline_in_ms(CALL_MS),
                             NULL, NULL, &err) == SL_ERR_NOT_FOUND &&
                join(worker, heart->channel, &err) != SL_OK) {
                fprintf(stderr, "%s: %s\n", worker->name, err.text);
            }
        }
        due_ns = due_ns + BEAT_EVERY_MS * SL_NS_PER_MS;
        int64_t now_ns = sl_now_ns();
        due_ns = due_ns < now_ns ? now_ns + BEAT_EVERY_MS * SL_NS_PER_MS : due_ns;
        while (sl_now_ns() < due_ns && !atomic_load(heart->stop)) {
            sl_sleep_ms(20);
        }
    }
    return NULL;
}

static enum sl_status run(void *arg, struct sl_error *err) {
    struct bench *bench = arg;
    const struct options *o = &bench->options;
    SL_TRY(sl_model_fingerprint(o->model, SL_WEIGHT_STORED, &bench->fingerprint, err));
    struct sl_rpc_channel *channel = NULL;
    struct heart hearts[N_HEARTS];
    int n_hearts = 0; // that beat
    int64_t n = 0;
    atomic_bool stop = false;
    struct worker *workers = calloc((size_t)o->n, sizeof *workers);
    sl_descriptors_raise();
    (void)sl_log_configure("warn", NULL);
    sl_rpc_init();
    enum sl_status status = workers ? sl_rpc_channel_create(o->coordinator, NULL, SL_ROLE_ANY, &channel, err)
                                    : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %d workers", (int)o->n);
    for (; status == SL_OK && n < o->n; n++) { // one that is lost meanwhile joins again at its first beat
        workers[n].bench = bench;
        status = start(&workers[n], n, channel, err);
    }
    while (status == SL_OK && n_hearts < N_HEARTS) {
        struct heart *heart = &hearts[n_hearts];
        *heart = (struct heart){workers, n_hearts, n, channel, &stop, 0};
        status = sl_thread_start("heart", beat, heart, &heart->thread, err);
        n_hearts += status == SL_OK;
    }
    if (status == SL_OK) {
        printf("ready workers=%d decode=%s prefill=%s\n", (int)n, sl_rpc_server_address(workers[1].server),
               sl_rpc_server_address(workers[0].server));
        fflush(stdout);
    }
    while (status == SL_OK && sl_signals_received(&bench->signals) == 0) {
        sl_sleep_ms(50);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < n_hearts; i++) {
        pthread_join(hearts[i].thread, NULL);
    }
    for (int64_t i = 0; i < n && i < N_SERVERS; i++) {
        sl_rpc_server_stop(&workers[i].server, 0);
    }
    sl_rpc_channel_destroy(&channel);
    sl_rpc_shutdown();
    free(workers);
    return status;
}

SL_BENCH(waiting, "[options]", "Be workers that only wait, of a coordinator; what `coordinator` starts.",
         .counts = true, .check = NULL);
