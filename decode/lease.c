// SPDX-License-Identifier: Apache-2.0
// Purpose: Decode.Reserve allocates memory for a future capsule, and promises memory for the tokens after it; calls that
// wait are kept alive.
#include <stdlib.h>

#include "base/log.h"
#include "decode/internal.h"
#include "net/node/lease_rpc.h"
#include "proto/sluice/v1/worker.pb-c.h"

bool sl_decode_make_room(struct sl_decode *decode, size_t bytes) {
    if (sl_node_stages(&decode->node) && sl_ledger_try_promise(decode->node.ledger, bytes) == SL_OK) {
        sl_ledger_return(decode->node.ledger, bytes);
        return false;
    }
    return sl_kept_make_room(&decode->kept, decode->node.ledger, bytes);
}

enum sl_status sl_decode_handle_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                        struct sl_error *err) {
    struct sl_decode *decode = service;
    const Sluice__V1__ReserveRequest *request = (const Sluice__V1__ReserveRequest *)message;
    sl_log_set_job(request->job_id);
    enum sl_status status = sl_term_guard_check(&decode->node.term_guard, request->term, err);
    SL_TRY(status);
    SL_FAIL_IF(request->capsule_bytes < 1 || request->session_bytes < 0, err, SL_ERR_INVALID,
               "capsule_bytes %lld, session_bytes %lld: not sizes", (long long)request->capsule_bytes,
               (long long)request->session_bytes);
    const size_t bytes = (size_t)request->capsule_bytes + (size_t)request->session_bytes;
    struct sl_inbound_ticket ticket;
    do { // dropping an idle conversation fails no job
        status = sl_inbound_open(decode->node.inbound, request->job_id, (size_t)request->capsule_bytes,
                                 (size_t)request->session_bytes, &ticket, err);
    } while (status == SL_ERR_EXHAUSTED && sl_decode_make_room(decode, bytes));
    SL_TRY(status);
    status = sl_lease_send_grant(call, &ticket, request->capsule_bytes);
    free(ticket.ticket);
    if (status != SL_OK) {
        sl_inbound_release(decode->node.inbound, ticket.id); // the caller will never learn of this grant
    }
    return status;
}

enum sl_status sl_decode_send_alive(struct sl_rpc_call *call) {
    Sluice__V1__DecodeAlive alive = SLUICE__V1__DECODE_ALIVE__INIT;
    Sluice__V1__DecodeEvent event = SLUICE__V1__DECODE_EVENT__INIT;
    event.what_case = SLUICE__V1__DECODE_EVENT__WHAT_ALIVE;
    event.alive = &alive;
    return sl_rpc_call_send(call, &event.base);
}
