// SPDX-License-Identifier: Apache-2.0
#include "gateway/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/exchange.h"

// Formats a time as OpenAI does: 20ms, 7s, 6m0s.
static void format_time(int64_t ms, char *out, size_t n) {
    int64_t s = (ms + 999) / 1000;
    if (ms < 1000) {
        snprintf(out, n, "%" PRId64 "ms", ms);
    } else if (s < 60) {
        snprintf(out, n, "%" PRId64 "s", s);
    } else {
        snprintf(out, n, "%" PRId64 "m%" PRId64 "s", s / 60, s % 60);
    }
}

static void add_limit(struct MHD_Response *response, const char *what, const struct sl_rate_limit *limit) {
    if (limit->limit == 0) {
        return;
    }
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {{"limit", limit->limit}, {"remaining", limit->remaining}};
    char name[64], value[32];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(name, sizeof name, "x-ratelimit-%s-%s", rows[i].name, what);
        snprintf(value, sizeof value, "%" PRId64, rows[i].value);
        MHD_add_response_header(response, name, value);
    }
    snprintf(name, sizeof name, "x-ratelimit-reset-%s", what);
    format_time(limit->reset_ms, value, sizeof value);
    MHD_add_response_header(response, name, value);
}

enum MHD_Result sl_http_reply_send(const struct sl_http_reply *reply, int http_status, const char *type,
                                   struct MHD_Response *response) {
    if (!response) {
        return MHD_NO;
    }
    const int outcome = http_status == SL_HTTP_CLIENT_LEFT ? SL_OUTCOME_LEFT : http_status / 100 % SL_N_OUTCOMES;
    atomic_fetch_add(&reply->gateway->n_requests[outcome], 1);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (http_status == MHD_HTTP_TOO_MANY_REQUESTS || http_status == MHD_HTTP_SERVICE_UNAVAILABLE) {
        char seconds[32];
        snprintf(seconds, sizeof seconds, "%" PRId64, reply->retry_after_s > 0 ? reply->retry_after_s : 1);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
    } else if (http_status == MHD_HTTP_UNAUTHORIZED) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    } else if (http_status == MHD_HTTP_METHOD_NOT_ALLOWED && reply->allow) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, reply->allow);
    }
    if (reply->ignored && reply->ignored[0]) {
        MHD_add_response_header(response, "x-sluice-ignored", reply->ignored);
    }
    if (reply->closes ||
        sl_head_is_chunked(reply->connection)) { // two readers may disagree on where chunks end: nothing follows them
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    sl_head_add_cors(&reply->gateway->config.head, reply->connection, response);
    add_limit(response, "requests", &reply->limits.requests);
    add_limit(response, "tokens", &reply->limits.tokens);
    enum MHD_Result result = MHD_queue_response(reply->connection, (unsigned)http_status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result sl_http_reply_text(const struct sl_http_reply *reply, int http_status, const char *type, char *text) {
    struct MHD_Response *response =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!response) {
        free(text);
    }
    return sl_http_reply_send(reply, http_status, type, response);
}

enum MHD_Result sl_http_reply_json(const struct sl_http_reply *reply, int http_status, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return sl_http_reply_text(reply, http_status, "application/json", text);
}

enum MHD_Result sl_http_reply_refusal(const struct sl_http_reply *reply, const struct sl_refusal *refusal) {
    struct sl_http_reply with = *reply;
    with.retry_after_s = refusal->retry_after_s;
    with.allow = refusal->allow;
    return sl_http_reply_text(&with, refusal->http_status, "application/json", sl_refusal_json(refusal));
}
