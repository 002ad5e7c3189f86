// SPDX-License-Identifier: Apache-2.0
// Purpose: fake workers between the turns of a conversation: decode workers keep sessions and copy them, stores have the copies.
#pragma once

#include "fake_worker.h"

// Keep and check sessions of a decode worker. The next turn finds its session, unless it is gone.
void fake_keep(struct fake_worker *worker, const Sluice__V1__DecodeRequest *request, Sluice__V1__DecodeDone *done);
enum sl_status fake_check_kept(struct fake_worker *worker, const Sluice__V1__DecodeRequest *request,
                               struct sl_error *err);
enum sl_status fake_archive(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err);

// Handlers of a store, except Renew and Release: the store has every capsule that is requested.
enum sl_status fake_store_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                  struct sl_error *err);
enum sl_status fake_store_lookup(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                 struct sl_error *err);
enum sl_status fake_store_fetch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                struct sl_error *err);
enum sl_status fake_store_forget(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                 struct sl_error *err);
