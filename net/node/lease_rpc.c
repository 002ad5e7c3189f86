// SPDX-License-Identifier: Apache-2.0
#include "net/node/lease_rpc.h"

#include "proto/sluice/v1/worker.pb-c.h"

enum sl_status sl_lease_send_grant(struct sl_rpc_call *call, const struct sl_inbound_ticket *ticket,
                                   int64_t capacity_bytes) {
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.ticket.data = ticket->ticket;
    grant.ticket.len = ticket->ticket_bytes;
    grant.capacity_bytes = capacity_bytes;
    grant.lease_id = (char *)ticket->id;
    grant.lease_ms = ticket->lease_ms;
    return sl_rpc_call_send(call, &grant.base);
}

enum sl_status sl_lease_handle_renew(struct sl_inbound *inbound, struct sl_rpc_call *call,
                                     const ProtobufCMessage *request, struct sl_error *err) {
    Sluice__V1__RenewReply reply = SLUICE__V1__RENEW_REPLY__INIT;
    enum sl_status status =
        sl_inbound_renew(inbound, ((const Sluice__V1__RenewRequest *)request)->lease_id, &reply.lease_ms, err);
    return status == SL_OK ? sl_rpc_call_send(call, &reply.base) : status;
}

enum sl_status sl_lease_handle_release(struct sl_inbound *inbound, struct sl_rpc_call *call,
                                       const ProtobufCMessage *request) {
    sl_inbound_release(inbound, ((const Sluice__V1__ReleaseRequest *)request)->lease_id);
    Sluice__V1__ReleaseReply reply = SLUICE__V1__RELEASE_REPLY__INIT;
    return sl_rpc_call_send(call, &reply.base);
}
