// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the gateway: OpenAI's HTTP interface in front of a coordinator. It has no state that outlives a request, so
 *          a cluster may have any number of gateways.
 *
 * Design, in reading order:
 *     openai/            OpenAI's HTTP messages: requests, answers and refusals
 *     answer.h           one answer in progress
 *     exchange.h         one HTTP request, from its first byte to its last
 *     intake.h           its body, parsed
 *     connections.h      time limits           https.h           the certificate
 *     tenants.h          authentication        limits.h          rate limits          served.h          the model
 *     status_board.h     the cluster's state   status_json.h     as JSON              status.h          as a page
 *     POST /v1/chat/completions, /v1/completions    /v1/documents, /v1/documents/NAME, /v1/documents/NAME/export,
 *     /v1/documents/import    GET /v1/models, /v1/models/NAME, /health, /metrics, /status, /status.json
 * Threads: libmicrohttpd's thread, which has all connections in one epoll set and never blocks; one per answer in
 *          progress, at most max_requests; one that asks the coordinator for its model, one that asks for its state,
 *          and one that watches connections. Idle connections need no thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "gateway/connections.h"
#include "gateway/head/head.h"
#include "gateway/tenants.h"
#include "net/trust/tls_files.h"

struct sl_gateway;

struct sl_gateway_config {
    const char *listen;                 // "HOST:PORT"; port 0 picks a free one
    const char *admin_listen;           // like listen, or "none" (net/admin/admin.h)
    const char *https_cert, *https_key; // PEM files; "": no TLS
    bool insecure;                      // without TLS, listen also where other hosts can connect
    const char *coordinator;            // "HOST:PORT,...", all coordinators of the cluster
    struct sl_tls_files tls;            // our certificate, for a cluster with authentication
    struct sl_tenants_config tenants;
    struct sl_head_rules head;                     // the lists
    struct sl_http_connections_config connections; // the numbers
    int64_t max_requests;                          // answers in progress; further requests are refused with 429
    int64_t max_body_bytes;                        // limit for one request
    int64_t body_memory_bytes;                     // limit for all incoming bodies together
    int64_t body_ms;                               // a request whose body takes longer to arrive is refused with 408
    int64_t ping_ms, reader_ms;                    // see answer.h
    int64_t deadline_ms;                           // for requests that set none
};

// Checks options that contradict each other, or what they name. SL_ERR_INVALID names the option.
enum sl_status sl_gateway_config_check(const struct sl_gateway_config *config, struct sl_error *err);

// Starts a gateway, which listens when this returns. SL_ERR_INVALID and SL_ERR_PRECONDITION name the option.
enum sl_status sl_gateway_start(const struct sl_gateway_config *config, struct sl_gateway **gateway_out,
                                struct sl_error *err);
const char *sl_gateway_address(const struct sl_gateway *gateway);       // "127.0.0.1:8000"
const char *sl_gateway_admin_address(const struct sl_gateway *gateway); // like sl_gateway_address(); "": none

// Drains the gateway: refuses new requests, gives answers in progress grace_ms to end, and ends the rest with an error.
void sl_gateway_drain(struct sl_gateway *gateway, int64_t grace_ms);

// Ends the grace period of a running sl_gateway_drain(); called by another thread.
void sl_gateway_hurry(struct sl_gateway *gateway);

void sl_gateway_destroy(struct sl_gateway **gateway); // call it after draining; nulls *gateway
