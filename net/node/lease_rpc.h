// SPDX-License-Identifier: Apache-2.0
// Purpose: the lease calls that Decode and Store share: answers with a grant, handles Renew and Release.
#pragma once

#include "net/node/inbound.h"
#include "net/rpc/rpc.h"

// Answers with a Grant. The caller still owns the ticket's heap memory.
enum sl_status sl_lease_send_grant(struct sl_rpc_call *call, const struct sl_inbound_ticket *ticket,
                                   int64_t capacity_bytes);
// Answers a RenewRequest, or fails with SL_ERR_NOT_FOUND.
enum sl_status sl_lease_handle_renew(struct sl_inbound *inbound, struct sl_rpc_call *call,
                                     const ProtobufCMessage *request, struct sl_error *err);
// Answers a ReleaseRequest. Idempotent.
enum sl_status sl_lease_handle_release(struct sl_inbound *inbound, struct sl_rpc_call *call,
                                       const ProtobufCMessage *request);
