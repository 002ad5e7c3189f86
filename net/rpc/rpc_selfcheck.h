// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tells whether this process's own gRPC port answers, by calling it as a client would.
 *
 * Design: a thread of its own makes a new connection every two seconds and calls grpc.health.v1.Health. Probes of the
 *         admin port read the last outcome, so frequent probes cost nothing. Any reply counts, even a refusal. A
 *         connection that is accepted and then closed counts as well: the port is alive and refuses connections above
 *         its share of the descriptor limit (rpc_accept.c), or its certificate has expired; a restart would cure
 *         neither. A port is deaf when it has not answered for ten seconds.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct sl_rpc_selfcheck;
struct sl_rpc_credentials;

enum { SL_RPC_DEAF_MS = 10000 };

// Starts to check the server at `address` (sl_rpc_server_address()). credentials: the server's, may be NULL; they
// outlive the check.
enum sl_status sl_rpc_selfcheck_start(const char *address, const struct sl_rpc_credentials *credentials,
                                      struct sl_rpc_selfcheck **selfcheck_out, struct sl_error *err);
// Ends the thread; call it before the server stops answering. Waits for at most one call. From then on every check
// succeeds. Accepts NULL.
void sl_rpc_selfcheck_stop(struct sl_rpc_selfcheck *selfcheck);
void sl_rpc_selfcheck_destroy(struct sl_rpc_selfcheck **selfcheck); // stops first; accepts NULL, nulls

// Returns false if the port is deaf; `why` then says for how long, and how the last call ended. Never waits for the
// port. NULL: true.
bool sl_rpc_selfcheck_answers(struct sl_rpc_selfcheck *selfcheck, char *why, size_t why_bytes);
// Returns false if the port refused connections during the last call, because descriptors were short. NULL: true.
bool sl_rpc_selfcheck_has_room(struct sl_rpc_selfcheck *selfcheck, char *why, size_t why_bytes);
