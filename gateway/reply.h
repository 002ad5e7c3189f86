// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sends HTTP replies: a status, headers, a body; and counts them.
 * Threads: the HTTP daemon's.
 */
#pragma once

#include <jansson.h>
#include <microhttpd.h>

#include "gateway/access/limits.h"
#include "gateway/openai/refusal.h"

struct sl_gateway;

struct sl_http_reply { // a reply to one request
    struct sl_gateway *gateway;
    struct MHD_Connection *connection;
    struct sl_rate_limits limits; // limits of the caller; zeros: no headers
    int64_t retry_after_s;        // with 429 and 503; 0: 1
    const char *allow;            // with 405
    const char *ignored;          // accepted fields that are not used; NULL or "": none
    bool closes;                  // the connection ends with the reply
};

// Sends a reply. MHD_NO: no memory; the connection is closed then. response: taken over; NULL: there was no memory for
// it.
enum MHD_Result sl_http_reply_send(const struct sl_http_reply *reply, int http_status, const char *type,
                                   struct MHD_Response *response);
// Sends a malloc'd text and takes it over. NULL: there was no memory for it.
enum MHD_Result sl_http_reply_text(const struct sl_http_reply *reply, int http_status, const char *type, char *text);
// Sends *json and takes it over. NULL: there was no memory for it.
enum MHD_Result sl_http_reply_json(const struct sl_http_reply *reply, int http_status, json_t *json);
// Sends a refusal, with its own retry_after_s and allow.
enum MHD_Result sl_http_reply_refusal(const struct sl_http_reply *reply, const struct sl_refusal *refusal);
