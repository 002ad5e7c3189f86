// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one request of HTTP: its body comes in, bounded in bytes and time, and what is asked is answered.
 * Threads: all on the HTTP daemon's thread.
 */
#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "gateway/answer.h"
#include "gateway/connections.h"
#include "gateway/gateway.h"
#include "gateway/https.h"
#include "gateway/served.h"
#include "gateway/status_board.h"
#include "gateway/status_page.h"
#include "gateway/tenants.h"
#include "net/admin/admin.h"

enum { SL_N_OUTCOMES = 6 }; // status codes by their first digit

// What the requests of a gateway share.
struct sl_gateway {
    struct sl_gateway_config config;
    struct sl_admin *admin;
    char address[128];
    struct sl_https_certificate *certificate; // NULL: in the clear
    struct sl_client *client;
    struct sl_served *served;
    struct sl_tenant_clients *tenants;
    struct sl_limits *limits;
    struct sl_http_connections *connections;
    struct sl_board *board;
    struct sl_status_page page;
    struct MHD_Daemon *daemon;
    MHD_socket listening; // when the daemon no longer does
    int64_t started_s;    // Unix time

    atomic_llong body_bytes;                // of requests that are coming in, or have come and are not read
    struct sl_intake_turn turn;             // of long ones among them
    atomic_llong n_requests[SL_N_OUTCOMES]; // answered

    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    struct sl_exchange *answering; // a list
    int n_answers;                 // threads
    bool stopping, hurrying;
    bool ending; // all answers have been told to end, and so are those that come late
};

struct sl_exchange;

// MHD's callbacks; cls is the gateway.
enum MHD_Result sl_exchange_handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *body, size_t *body_bytes, void **exchange);
void sl_exchange_over(void *cls, struct MHD_Connection *connection, void **exchange,
                      enum MHD_RequestTerminationCode how);

// Under the gateway's mutex: all answers under way end.
void sl_exchange_stop_all(struct sl_gateway *gateway);
