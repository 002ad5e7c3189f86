// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of the gateway's paths: which methods each one takes, who may call it, and what answers it.
 * Threads: any; the table is constant.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

#include "client/libsluice/sluice.h"
#include "gateway/reply.h"

struct sl_exchange;

struct sl_http_request {
    struct sl_exchange *exchange;
    const struct sl_http_reply *reply; // to it
    struct sl_client *client;          // of the caller's tenant; NULL for a route that is open
    const char *method;
    const char *rest; // of the path, after a route that ends in a slash
};

enum sl_route_caller {
    SL_ROUTE_OPEN,  // any caller, without a credential: monitoring, and pages without data of the cluster
    SL_ROUTE_KEYED, // a caller with a valid key or token, unless authentication is disabled
};

struct sl_route {
    const char *path;    // ends in a slash: every path that begins with it
    const char *methods; // as in an Allow header: "GET, HEAD"
    enum sl_route_caller caller;
    enum MHD_Result (*answer_fn)(const struct sl_http_request *request);
    // Begins the answer to a POST before its body, which is passed on as it comes (sl_http_answer_put()); NULL: as any other
    enum MHD_Result (*begin_fn)(const struct sl_http_request *request);
};

extern const struct sl_route sl_gateway_routes[]; // exchange.c
extern const size_t sl_n_gateway_routes;

// Returns the route of a path, or NULL.
const struct sl_route *sl_route_find(const struct sl_route *routes, size_t n_routes, const char *path);

// Returns true if a request with this method is begun before its body (begin_fn). route: may be NULL.
bool sl_route_is_begun(const struct sl_route *route, const char *method);

// Checks the method against the route. Refuses with 404 if route is NULL, naming the most similar path, and with 405.
enum sl_status sl_route_check(const struct sl_route *routes, size_t n_routes, const struct sl_route *route,
                              const char *path, const char *method, struct sl_refusal *refusal);
