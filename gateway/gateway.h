// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the gateway: OpenAI's HTTP in front of a coordinator. It keeps nothing that outlives a request, so there may be any number.
 *
 * Design, in reading order:
 *     openai/            the words of OpenAI's HTTP: what is asked, answered, and refused
 *     answer.h           one answer under way  exchange.h        one request of HTTP, from its first byte to its last
 *     intake.h           what that has brought
 *     connections.h      who is connected      https.h           its certificate
 *     tenants.h          on whose behalf       limits.h          how much of it             served.h          what model there is
 *     status_board.h     what a cluster does   status_json.h     as an object               status_page.h     as a page
 *     POST /v1/chat/completions, /v1/completions    GET /v1/models, /v1/models/NAME, /health, /metrics, /status, /status.json
 * Threads: libmicrohttpd's one, which holds all connections in one epoll set and waits for nobody; one an answer
 *     under way, of which there are at most max_requests; one that asks the coordinator for its model, one for its state, and one that looks
 *     after connections. Those that are idle cost no thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "net/trust/tls_files.h"

struct sl_gateway;

struct sl_gateway_config {
    const char *listen;                 // "HOST:PORT"; port 0 picks a free one
    const char *admin_listen;           // likewise, or "none" (net/admin/admin.h)
    const char *https_cert, *https_key; // PEM files; "": in the clear
    bool insecure;                      // and then, listen also where other hosts can connect
    const char *coordinator;            // "HOST:PORT,...", all of the cluster's
    struct sl_tls_files tls;            // who we are, to a cluster that asks
    const char *keys, *tenants;         // see tenants.h
    const char *jwt_keys, *jwt_issuer, *jwt_audience, *jwt_tenant; // see web_token.h
    int64_t max_connections;
    int64_t max_requests;       // answers under way; more are refused with 429
    int64_t max_body_bytes;     // of one request
    int64_t body_memory_bytes;  // of all that are coming in
    int64_t first_ms, idle_ms;  // see connections.h
    int64_t body_ms;            // a request that takes longer to come is refused with 408
    int64_t ping_ms, reader_ms; // see answer.h
    int64_t deadline_ms;        // of requests that name none
};

// Listens when it returns. SL_ERR_INVALID and SL_ERR_PRECONDITION name the option.
enum sl_status sl_gateway_start(const struct sl_gateway_config *config, struct sl_gateway **gateway_out,
                                struct sl_error *err);
const char *sl_gateway_address(const struct sl_gateway *gateway);       // "127.0.0.1:8000"
const char *sl_gateway_admin_address(const struct sl_gateway *gateway); // likewise; "": none

// Nobody new; answers under way have grace_ms to end, and those that have not then end with an error.
void sl_gateway_drain(struct sl_gateway *gateway, int64_t grace_ms);

// By another thread, while it drains: what is left of the grace is over.
void sl_gateway_hurry(struct sl_gateway *gateway);

void sl_gateway_destroy(struct sl_gateway **gateway); // of one that has drained; nulls *gateway
