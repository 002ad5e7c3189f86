// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: limits the time of connections without a request: clients that send nothing, or a byte per second, must not
 *          keep others out.
 *
 * Design: libmicrohttpd's timeout restarts with each byte, and at its connection limit it accepts no client. Here a
 *         connection waits from each of these events until the next: its beginning, a request's head, each piece of a
 *         body (exchange.h bounds the whole), and the end of an answer. It does not wait while its request is answered.
 *         A thread shuts down connections that have waited for too long, and the daemon then closes them. When three
 *         quarters of the connections are in use, the limit is a second, so that room becomes free that fast.
 * Threads: the HTTP daemon's, except create and destroy.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct sl_http_connections;

struct sl_http_connections_config {
    int64_t max;      // connections that the daemon accepts
    int64_t first_ms; // limit for the head of the first request
    int64_t idle_ms;  // limit for the pieces after it
    bool is_https;
    void *context; // returned by sl_http_connections_context()
};

enum sl_status sl_http_connections_open(const struct sl_http_connections_config *config,
                                        struct sl_http_connections **connections_out, struct sl_error *err);
// Call it when the daemon has ended; accepts NULL, nulls
void sl_http_connections_close(struct sl_http_connections **connections);

// Tracks a connection: MHD_OPTION_NOTIFY_CONNECTION, with the connections as its argument.
void sl_http_connections_see(void *connections, struct MHD_Connection *connection, void **context,
                             enum MHD_ConnectionNotificationCode code);

void *sl_http_connections_context(struct MHD_Connection *connection); // NULL: the connection is not tracked

// Returns true if a chunk of the body had a malformed line.
bool sl_connection_is_malformed(struct MHD_Connection *connection);
void sl_connection_waits(struct MHD_Connection *connection); // the connection waits from now on
// A whole request has arrived: the connection does not wait
void sl_connection_asked(struct MHD_Connection *connection);

struct sl_http_connections_counts {
    int64_t open, waiting, closed; // closed: since the start, because they had waited for too long
};
struct sl_http_connections_counts sl_http_connections_counts(struct sl_http_connections *connections);
