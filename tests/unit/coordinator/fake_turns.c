// SPDX-License-Identifier: Apache-2.0
// Purpose: see fake_turns.h.
#include "fake_turns.h"

#include <stdio.h>

#include "base/clock.h"

#define LEASE_MS 30000

// ---- decode ---------------------------------------------------------------------------------------------------------

void fake_keep(struct fake_worker *worker, const Sluice__V1__DecodeRequest *request, Sluice__V1__DecodeDone *done) {
    if (atomic_load(&worker->keeps) && request->keep_ms > 0) {
        done->kept = "kept-session";
        done->kept_tokens = (int64_t)request->prompt->n_ids + request->max_new_tokens - 1;
        done->kept_bytes = atomic_load(&worker->kept_bytes);
    }
}

enum sl_status fake_check_kept(struct fake_worker *worker, const Sluice__V1__DecodeRequest *request,
                               struct sl_error *err) {
    atomic_fetch_add(&worker->n_kept_runs, request->kept[0] != '\0');
    return request->kept[0] != '\0' && atomic_load(&worker->has_lost_sessions)
               ? sl_fail(err, SL_ERR_PEER_STALE, "the session of the turn before is not kept any more")
               : SL_OK;
}

enum sl_status fake_archive(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err) {
    struct fake_worker *worker = service;
    (void)message;
    if (atomic_load(&worker->n_lost_archives) > 0) {
        atomic_fetch_sub(&worker->n_lost_archives, 1);
        return sl_fail(err, SL_ERR_PEER_LOST, "out of electricity behind the answer");
    }
    atomic_store(&worker->archive_ms, (sl_rpc_call_deadline_ns(call) - sl_now_ns()) / SL_NS_PER_MS);
    atomic_fetch_add(&worker->n_archives, 1);
    while (atomic_load(&worker->archive_hangs) && !sl_rpc_call_cancelled(call) && !atomic_load(&worker->stop)) {
        sl_sleep_ms(2);
    }
    Sluice__V1__ArchiveReply reply = SLUICE__V1__ARCHIVE_REPLY__INIT;
    reply.bytes = FAKE_KEPT_BYTES;
    return sl_rpc_call_send(call, &reply.base);
}

// ---- a store --------------------------------------------------------------------------------------------------------

enum sl_status fake_store_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                  struct sl_error *err) {
    const struct fake_worker *worker = service;
    (void)err;
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.lease_id = "place-for-a-copy";
    grant.lease_ms = worker->lease_ms;
    grant.capacity_bytes = ((const Sluice__V1__StoreReserveRequest *)message)->capsule_bytes;
    return sl_rpc_call_send(call, &grant.base);
}

enum sl_status fake_store_lookup(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                 struct sl_error *err) {
    (void)service, (void)err;
    const Sluice__V1__LookupRequest *request = (const Sluice__V1__LookupRequest *)message;
    Sluice__V1__LookupReply reply = SLUICE__V1__LOOKUP_REPLY__INIT;
    reply.n_tokens = reply.capsule_tokens = request->prefixes[0]->n_tokens;
    reply.capsule_bytes = FAKE_KEPT_BYTES;
    reply.lease_id = "pin";
    reply.lease_ms = LEASE_MS;
    return sl_rpc_call_send(call, &reply.base);
}

enum sl_status fake_store_fetch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                struct sl_error *err) {
    struct fake_worker *worker = service;
    (void)message, (void)err;
    atomic_fetch_add(&worker->n_fetched, 1);
    Sluice__V1__FetchReply reply = SLUICE__V1__FETCH_REPLY__INIT;
    reply.bytes = FAKE_KEPT_BYTES;
    return sl_rpc_call_send(call, &reply.base);
}

enum sl_status fake_store_forget(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                 struct sl_error *err) {
    struct fake_worker *worker = service;
    (void)message, (void)err;
    atomic_fetch_add(&worker->n_forgotten, 1);
    Sluice__V1__ForgetReply reply = SLUICE__V1__FORGET_REPLY__INIT;
    reply.was_there = true;
    return sl_rpc_call_send(call, &reply.base);
}
