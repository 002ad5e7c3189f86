// SPDX-License-Identifier: Apache-2.0
// Purpose: the calls about leases that Decode and Store have in common: Renew and Release.
#ifndef SL_SERVICE_LEASE_RPC_H
#define SL_SERVICE_LEASE_RPC_H

#include "rpc/rpc.h"
#include "service/landing.h"

// `request` is a RenewRequest. Answers, or fails with SL_ERR_NOT_FOUND.
enum sl_status sl_lease_handle_renew(struct sl_inbound *inbound, struct sl_rpc_call *call,
                                     const ProtobufCMessage *request, struct sl_error *err);
// `request` is a ReleaseRequest. Idempotent.
enum sl_status sl_lease_handle_release(struct sl_inbound *inbound, struct sl_rpc_call *call,
                                       const ProtobufCMessage *request);

#endif
