// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: handles one HTTP request: receives its body, bounded in bytes and time, and answers it.
 * Threads: all on the HTTP daemon's thread.
 */
#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "gateway/answer.h"
#include "gateway/connections.h"
#include "gateway/gateway.h"
#include "gateway/head/head.h"
#include "gateway/https.h"
#include "gateway/served.h"
#include "gateway/status.h"
#include "gateway/tenants.h"
#include "net/admin/admin.h"

// Status codes are counted by their first digit. The client of an answer left before its head was sent: 499, as others call it.
enum { SL_OUTCOME_LEFT = 0, SL_N_OUTCOMES = 6 };

// State that the requests of a gateway share.
struct sl_gateway {
    struct sl_gateway_config config;
    struct sl_admin *admin;
    char address[128];
    struct sl_https_certificate *certificate; // NULL: no TLS
    struct sl_client *client;
    struct sl_served *served;
    struct sl_tenant_clients *tenants;
    struct sl_limits *limits;
    struct sl_http_connections *connections;
    struct sl_board *board;
    struct sl_status_page page;
    struct MHD_Daemon *daemon;
    MHD_socket listening; // to be closed by us when the daemon no longer uses it
    int64_t started_s;    // Unix time

    atomic_llong body_bytes;                // bytes of bodies that are arriving, or have arrived and are not parsed
    struct sl_intake_turn turn;             // turn of the long bodies
    atomic_llong n_requests[SL_N_OUTCOMES]; // answered requests

    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t changed;
    struct sl_exchange *answering; // list of exchanges with an answer
    int n_answers;                 // number of their threads
    bool stopping, hurrying;
    bool ending; // all answers have been asked to end; later ones end at once
};

struct sl_exchange;

// Callbacks of MHD; cls is the gateway. The first one is called with the path of a request line, before its headers.
void *sl_exchange_create(void *cls, const char *path, struct MHD_Connection *connection);
enum MHD_Result sl_exchange_handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *body, size_t *body_bytes, void **exchange);
void sl_exchange_over(void *cls, struct MHD_Connection *connection, void **exchange,
                      enum MHD_RequestTerminationCode how);

// Ends all answers in progress. The gateway's mutex is held.
void sl_exchange_stop_all(struct sl_gateway *gateway);
