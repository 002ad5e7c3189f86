// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: connections that all sessions of a worker share.
 * Threads: any.
 */
#pragma once

#include "net/fabric/request.h"

// Connections to stores by (address, epoch), kept while in use.
struct sl_connections;
enum sl_status sl_connections_create(struct sl_fabric *fabric, struct sl_connections **connections_out,
                                     struct sl_error *err);
void sl_connections_destroy(struct sl_connections **connections);
enum sl_status sl_connections_take(struct sl_connections *connections, const char *address, uint64_t epoch,
                                   struct sl_connection **connection_out, struct sl_error *err);
void sl_connections_give(struct sl_connections *connections, struct sl_connection **connection); // accepts NULL, nulls
// Returns a connection whose peer was lost: the next caller gets a new one.
void sl_connections_give_lost(struct sl_connections *connections, struct sl_connection **connection);
