// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: who is connected to the gateway and has asked nothing: strangers that say nothing, or a byte a second, do not keep others out.
 *
 * Design: libmicrohttpd's timeout begins anew with each byte, and at its limit of connections it takes nobody. Here a connection waits from
 *         its beginning, a request's head, each piece of a body (exchange.h bounds the whole), and the end of an answer, until the next
 *         of these, but not while its request is answered. A thread shuts down those that have waited for too long, and the daemon then
 *         closes them. When three quarters of the places are taken, too long is a second: a place is free again that soon.
 * Threads: all but create and destroy are the HTTP daemon's.
 */
#pragma once

#include <microhttpd.h>
#include <stdint.h>

#include "base/status.h"

struct sl_http_connections;

struct sl_http_connections_config {
    int64_t max;      // that the daemon takes
    int64_t first_ms; // for the head of the first request
    int64_t idle_ms;  // for what comes then
    void *context;    // for sl_http_connections_context()
};

enum sl_status sl_http_connections_open(const struct sl_http_connections_config *config,
                                        struct sl_http_connections **connections_out, struct sl_error *err);
void sl_http_connections_close(
    struct sl_http_connections **connections); // when the daemon has ended; accepts NULL, nulls

// MHD_OPTION_NOTIFY_CONNECTION, with the connections as its argument.
void sl_http_connections_see(void *connections, struct MHD_Connection *connection, void **context,
                             enum MHD_ConnectionNotificationCode code);

void *sl_http_connections_context(struct MHD_Connection *connection); // NULL: it has not been seen

void sl_connection_waits(struct MHD_Connection *connection); // from now on
void sl_connection_asked(struct MHD_Connection *connection); // a whole request: it does not wait

struct sl_http_connections_counts {
    int64_t open, waiting, closed; // closed: since the start, for having waited
};
struct sl_http_connections_counts sl_http_connections_counts(struct sl_http_connections *connections);
