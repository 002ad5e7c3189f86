// SPDX-License-Identifier: Apache-2.0
// Purpose: the service for workers and operators (proto/sluice/v1/cluster.proto).
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "coordinator/lead.h"
#include "proto/methods.h"

#define HEARD_MS      500 // for the heartbeats to arrive
#define HEARD_POLL_MS 20
#define MAX_CALLS     (2 * SL_MAX_WORKERS) // of this service alone: clients' calls take no place from heartbeats

// A worker may speak for itself only, an operator for any worker. Without certificates, every caller may speak for any.
static enum sl_status check_speaker(const struct sl_rpc_call *call, const char *name, struct sl_error *err) {
    const struct sl_identity *caller = sl_rpc_call_identity(call);
    if (!sl_identity_is_worker(caller) || strcmp(caller->name, name) == 0) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_DENIED, "name: \"%.100s\" is not that of the certificate, \"%s\"", name, caller->name);
}

// A worker registers with the role in its certificate. The certificate of an upgrade may have none.
static enum sl_status check_role(const struct sl_rpc_call *call, Sluice__V1__WorkerRole role, struct sl_error *err) {
    const struct sl_identity *caller = sl_rpc_call_identity(call);
    SL_TRY_OR(sl_identity_check(caller, caller->cluster, sl_roles_accepted(sl_rpc_role_of(role), true), err),
              sl_error_prefix(err, "worker.role"));
    return SL_OK;
}

static enum sl_status handle_register(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                      struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    const Sluice__V1__WorkerInfo *info = ((const Sluice__V1__RegisterRequest *)request)->worker;
    SL_FAIL_IF(info == NULL, err, SL_ERR_INVALID, "worker: is missing");
    SL_TRY(check_speaker(call, info->name, err));
    SL_TRY(check_role(call, info->role, err));
    SL_TRY(sl_registry_register(coordinator->registry, info, sl_now_ns(), err));
    if (((const Sluice__V1__RegisterRequest *)request)->drains) {
        sl_registry_adopt_drain(coordinator->registry, info->name, true);
    }
    if (info->role == SLUICE__V1__WORKER_ROLE__KVSTORE) {
        sl_document_keeper_hurry(coordinator->keeper);
    }
    Sluice__V1__RegisterReply reply = SLUICE__V1__REGISTER_REPLY__INIT;
    reply.heartbeat_ms = coordinator->config.heartbeat_ms;
    reply.term = sl_coordinator_term(coordinator);
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_heartbeat(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                       struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    const Sluice__V1__HeartbeatRequest *beat = (const Sluice__V1__HeartbeatRequest *)request;
    bool drain = false;
    SL_TRY(check_speaker(call, beat->name, err));
    SL_TRY(sl_registry_heartbeat(coordinator->registry, beat, sl_now_ns(), &drain, err));
    sl_coordinator_hear_term(coordinator, beat->term, beat->name);
    char store[SL_ADDRESS_BYTES];
    sl_registry_store_address(coordinator->registry, 0, store);
    Sluice__V1__HeartbeatReply reply = SLUICE__V1__HEARTBEAT_REPLY__INIT;
    reply.drain = drain;
    reply.term = sl_coordinator_term(coordinator);
    reply.kvstore_address = store;
    return sl_rpc_call_send(call, &reply.base);
}

/*
 * Waits until the worker's heartbeats report the change. Another coordinator may lead a moment later: then the worker, which
 * reports to all of them, must know it. A worker that does not report it within two heartbeats was not told.
 */
static enum sl_status wait_until_heard(struct sl_coordinator *coordinator, const Sluice__V1__DrainRequest *drain,
                                       struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(5 * coordinator->config.heartbeat_ms / 2 + HEARD_MS);
    while (!sl_registry_drain_is_heard(coordinator->registry, drain->name)) {
        if (sl_now_ns() >= deadline_ns) {
            sl_registry_adopt_drain(coordinator->registry, drain->name, drain->undo);
            return sl_fail(err, SL_ERR_DEADLINE, "%.60s has not heard of it: try again", drain->name);
        }
        sl_wait_ms(HEARD_POLL_MS);
    }
    return SL_OK;
}

static enum sl_status handle_drain(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    const Sluice__V1__DrainRequest *drain = (const Sluice__V1__DrainRequest *)request;
    int jobs = 0;
    enum sl_status status = check_speaker(call, drain->name, err);
    SL_THEN(status, sl_coordinator_check_leads(coordinator, err));
    SL_THEN(status, sl_registry_drain(coordinator->registry, drain->name, drain->undo, &jobs, err));
    SL_THEN_IF(status, coordinator->election != NULL, wait_until_heard(coordinator, drain, err));
    SL_TRY(status);
    Sluice__V1__DrainReply reply = SLUICE__V1__DRAIN_REPLY__INIT;
    reply.jobs_running = jobs;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_workers(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err) {
    (void)request;
    struct sl_coordinator *coordinator = service;
    struct sl_worker_report *reports = NULL;
    size_t n_reports = 0;
    SL_TRY(sl_registry_report(coordinator->registry, sl_now_ns(), &reports, &n_reports, err));
    Sluice__V1__WorkerStatus **rows = calloc(n_reports + 1, sizeof *rows);
    if (rows == NULL) {
        free(reports);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the list of workers");
    }
    for (size_t i = 0; i < n_reports; i++) {
        rows[i] = &reports[i].status;
    }
    struct sl_admission_stats stats;
    sl_admission_get_stats(coordinator->admission, &stats);
    Sluice__V1__WorkersReply reply = SLUICE__V1__WORKERS_REPLY__INIT;
    reply.workers = rows;
    reply.n_workers = n_reports;
    reply.jobs_queued = stats.n_queued;
    reply.jobs_running = stats.n_running;
    reply.coordinator_leases = stats.claimed_bytes;
    reply.routing = (char *)stats.routing;
    enum sl_status status = sl_rpc_call_send(call, &reply.base);
    free(rows);
    free(reports);
    return status;
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_cluster_register_worker, handle_register, SL_ROLE_WORKER},
    {&sl_method_cluster_heartbeat, handle_heartbeat, SL_ROLE_WORKER},
    {&sl_method_cluster_drain, handle_drain, SL_ROLE_OPERATOR | SL_ROLE_WORKER},
    {&sl_method_cluster_workers, handle_workers, SL_ROLE_OPERATOR},
};

struct sl_rpc_implementation sl_cluster_service(struct sl_coordinator *coordinator) {
    struct sl_rpc_implementation service = SL_RPC_IMPLEMENTATION(&sl_service_cluster, handlers, coordinator);
    service.max_calls = MAX_CALLS; // on threads: no fiber, whatever it does, keeps a heartbeat waiting
    return service;
}
