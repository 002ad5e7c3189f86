// SPDX-License-Identifier: Apache-2.0
#include "gateway/exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "gateway/metrics.h"
#include "gateway/models.h"
#include "gateway/reply.h"
#include "gateway/routes.h"

#define EXPORT "/export" // after a document's name

enum {
    MAX_DISCARDED_BYTES = 16 << 20, // of a body whose head is refused
    FILE_BLOCK_BYTES = 128 << 10,   // of a file that is sent
    TRANSFER_BYTES = 512 << 10,     // of the buffers through which a file passes
};

struct sl_exchange {
    struct sl_gateway *gateway;
    int64_t began_ns;
    char *body;
    size_t n_body, body_bytes; // body_bytes: its part of the gateway's memory for bodies
    struct sl_refusal refusal; // set when the rest of the body is not needed; http_status 0: no refusal
    struct sl_http_line line;
    bool has_head;           // the head has been judged, and the fields below are set
    bool is_refused_by_head; // the body is read and discarded
    const struct sl_route *route;
    struct sl_client *client; // of the caller's tenant; NULL for a route that is open
    struct sl_api_key key;
    struct sl_rate_limits rate_limits; // rate limits of the key
    struct sl_http_answer *answer;
    bool is_replied;                     // the head of the answer was sent
    bool passes_body_on;                 // to the answer, until the body has ended
    int64_t discards_until_ns;           // the rest of a body that the answer does not need; 0: it needs it
    struct sl_snapshot *snapshot;        // a pending query of the cluster's state
    struct sl_exchange *previous, *next; // list of exchanges with an answer
};

// Returns the reply to its request, with the rate limits once they have been checked.
static struct sl_http_reply reply_to(const struct sl_exchange *exchange, struct MHD_Connection *connection) {
    return (struct sl_http_reply){
        .gateway = exchange->gateway, .connection = connection, .limits = exchange->rate_limits};
}

// ---- requests without a body ----------------------------------------------------------------------------------------

static enum MHD_Result get_metrics(const struct sl_http_request *request) {
    return sl_http_reply_text(request->reply, 200, "text/plain; version=0.0.4",
                              sl_gateway_metrics(request->reply->gateway));
}

static enum MHD_Result get_status(const struct sl_http_request *request) {
    return sl_status_begin(request->reply, request->client, &request->exchange->snapshot);
}

// ---- the body -------------------------------------------------------------------------------------------------------

static void give_memory_back(struct sl_exchange *exchange) {
    atomic_fetch_sub(&exchange->gateway->body_bytes, (long long)exchange->body_bytes);
    free(exchange->body);
    exchange->body = NULL;
    exchange->n_body = exchange->body_bytes = 0;
}

// Reserves memory from the common limit for the bodies of all incoming requests.
static bool take_memory(struct sl_exchange *exchange, size_t wanted) {
    struct sl_gateway *gateway = exchange->gateway;
    size_t bytes = wanted < 4096 ? 4096 : wanted * 2;
    size_t more = bytes - exchange->body_bytes;
    char *body = NULL;
    if (atomic_fetch_add(&gateway->body_bytes, (long long)more) + (long long)more <=
        gateway->config.body_memory_bytes) {
        body = realloc(exchange->body, bytes);
    }
    if (!body) {
        atomic_fetch_sub(&gateway->body_bytes, (long long)more);
        return false;
    }
    exchange->body = body;
    exchange->body_bytes = bytes;
    return true;
}

static enum MHD_Result take_in(struct sl_exchange *exchange, const char *bytes, size_t n) {
    const struct sl_gateway_config *config = &exchange->gateway->config;
    // Read the rest of the body, if it is short, and discard it
    if (exchange->refusal.http_status != 0 || !strstr(exchange->route->methods, MHD_HTTP_METHOD_POST)) {
        return sl_now_ns() - exchange->began_ns < 2 * config->body_ms * SL_NS_PER_MS ? MHD_YES : MHD_NO;
    }
    if ((int64_t)(exchange->n_body + n) > config->max_body_bytes) {
        sl_refuse(&exchange->refusal, 413, "the body has more than %" PRId64 " bytes (--max-body)",
                  config->max_body_bytes);
    } else if (sl_now_ns() - exchange->began_ns > config->body_ms * SL_NS_PER_MS) {
        sl_refuse(&exchange->refusal, 408, "the body has not come within %" PRId64 " ms", config->body_ms);
    } else if (exchange->n_body + n > exchange->body_bytes && !take_memory(exchange, exchange->n_body + n)) {
        sl_refuse(&exchange->refusal, 429, "too many requests are coming in (--body-memory)");
    } else {
        memcpy(exchange->body + exchange->n_body, bytes, n);
        exchange->n_body += n;
        return MHD_YES;
    }
    give_memory_back(exchange);
    return MHD_YES;
}

// ---- answers --------------------------------------------------------------------------------------------------------

static void on_answer_end(void *arg) {
    struct sl_gateway *gateway = arg;
    SL_LOCKED(&gateway->mutex);
    gateway->n_answers--;
    pthread_cond_signal(&gateway->changed);
}

static int64_t count_answers(const struct sl_gateway *gateway, const struct sl_api_key *key) {
    int64_t n = 0;
    for (const struct sl_exchange *other = gateway->answering; other; other = other->next) {
        n += memcmp(other->key.hash, key->hash, sizeof key->hash) == 0;
    }
    return n;
}

// Reserves one of the max_requests answers in progress.
static enum sl_status take_place(struct sl_exchange *exchange, struct sl_refusal *refusal) {
    struct sl_gateway *gateway = exchange->gateway;
    enum sl_status status = SL_OK;
    int64_t retry_ms = 0;
    SL_LOCKED(&gateway->mutex);
    if (gateway->stopping) {
        sl_refuse(refusal, 503, "the gateway stops");
        status = SL_ERR_CANCELLED;
    } else if (gateway->n_answers >= gateway->config.max_requests) {
        sl_refuse(refusal, 429, "%d requests are being answered (--max-requests)", gateway->n_answers);
        status = SL_ERR_EXHAUSTED;
    } else if (count_answers(gateway, &exchange->key) >= exchange->key.max_answers) {
        sl_refuse(refusal, 429, "this key has %" PRId64 " answers under way, and may have no more",
                  exchange->key.max_answers);
        sl_limits_count_refused(gateway->limits, SL_LIMIT_ANSWERS);
        status = SL_ERR_EXHAUSTED;
    } else if (sl_limits_take(gateway->limits, &exchange->key, SL_LIMIT_REQUESTS, 1, sl_now_ns(),
                              &exchange->rate_limits, &retry_ms) != SL_OK) {
        sl_refuse_for(refusal, retry_ms, "requests", exchange->key.requests_per_minute);
        status = SL_ERR_EXHAUSTED;
    } else {
        gateway->n_answers++;
    }
    return status;
}

static void add_to_list(struct sl_exchange *exchange) {
    struct sl_gateway *gateway = exchange->gateway;
    SL_LOCKED(&gateway->mutex);
    exchange->next = gateway->answering;
    if (exchange->next) {
        exchange->next->previous = exchange;
    }
    gateway->answering = exchange;
    if (gateway->ending) {
        sl_http_answer_stop(exchange->answer);
    }
}

static void remove_from_list(struct sl_exchange *exchange) {
    struct sl_gateway *gateway = exchange->gateway;
    SL_LOCKED(&gateway->mutex);
    *(exchange->previous ? &exchange->previous->next : &gateway->answering) = exchange->next;
    if (exchange->next) {
        exchange->next->previous = exchange->previous;
    }
    pthread_cond_signal(&gateway->changed);
}

void sl_exchange_stop_all(struct sl_gateway *gateway) {
    gateway->ending = true;
    for (struct sl_exchange *exchange = gateway->answering; exchange; exchange = exchange->next) {
        sl_http_answer_stop(exchange->answer);
    }
}

// Tells an answer's thread its work.
struct work {
    const char *route; // for traces
    enum sl_document_verb verb;
    bool is_chat;
    const char *document; // a name for a call about one; NULL: none
    int64_t keep_ms;
};

static enum sl_status start_answer(const struct sl_http_request *request, const struct work *work,
                                   struct sl_refusal *refusal) {
    struct sl_exchange *exchange = request->exchange;
    struct MHD_Connection *connection = request->reply->connection;
    struct sl_gateway *gateway = exchange->gateway;
    SL_TRY_OR(take_place(exchange, refusal), give_memory_back(exchange));
    struct sl_intake intake = {.is_chat = work->is_chat,
                               .body = exchange->body,
                               .n_body = exchange->n_body,
                               .body_bytes = exchange->body_bytes,
                               .held_bytes = &gateway->body_bytes,
                               .json = {.held = &gateway->body_bytes, .most_held = gateway->config.body_memory_bytes},
                               .turn = &gateway->turn,
                               .model = sl_served_model(gateway->served),
                               .limits = gateway->limits,
                               .who = exchange->key,
                               .rate_limits = exchange->rate_limits};
    exchange->body = NULL; // the answer owns it now
    exchange->n_body = exchange->body_bytes = 0;
    struct sl_http_answer_config config = {.client = request->client,
                                           .route = work->route,
                                           .verb = work->verb,
                                           .keep_ms = work->keep_ms,
                                           .deadline_ms = gateway->config.deadline_ms,
                                           .ping_ms = gateway->config.ping_ms,
                                           .reader_ms = gateway->config.reader_ms,
                                           .on_end = on_answer_end,
                                           .arg = gateway};
    snprintf(config.document, sizeof config.document, "%s", work->document ? work->document : "");
    const char *parent = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "traceparent");
    sl_trace_parse(parent ? parent : "", parent ? strlen(parent) : 0, &config.trace);
    struct sl_error err = {0};
    enum sl_status status = sl_http_answer_begin(&config, &intake, connection, &exchange->answer, &err);
    if (status != SL_OK) {
        on_answer_end(gateway);
        sl_refuse_error(refusal, &err);
        return status;
    }
    add_to_list(exchange);
    return SL_OK;
}

// Begins to pass on a file. Its buffers count as a body, so that there is a limit for all of them.
static enum sl_status start_transfer(const struct sl_http_request *request, const struct work *work,
                                     struct sl_refusal *refusal) {
    struct sl_exchange *exchange = request->exchange;
    struct sl_gateway *gateway = exchange->gateway;
    long long held = atomic_fetch_add(&gateway->body_bytes, TRANSFER_BYTES) + TRANSFER_BYTES;
    exchange->body_bytes += TRANSFER_BYTES; // start_answer() passes it on, or gives it back
    if (held > gateway->config.body_memory_bytes) {
        give_memory_back(exchange);
        sl_refuse(refusal, 429, "too many requests are coming in (--body-memory)");
        return SL_ERR_EXHAUSTED;
    }
    return start_answer(request, work, refusal);
}

static enum MHD_Result begin_answer(const struct sl_http_request *request, const struct work *work) {
    struct sl_refusal refusal;
    bool is_transfer = work->verb == SL_DOCUMENT_EXPORT || work->verb == SL_DOCUMENT_MEASURE;
    if ((is_transfer ? start_transfer : start_answer)(request, work, &refusal) == SL_OK) {
        return MHD_YES;
    }
    struct sl_http_reply reply = *request->reply;
    reply.limits = request->exchange->rate_limits; // that refuse it
    return sl_http_reply_refusal(&reply, &refusal);
}

static enum MHD_Result post_chat(const struct sl_http_request *request) {
    return begin_answer(request, &(struct work){.route = "POST /v1/chat/completions", .is_chat = true});
}

static enum MHD_Result post_completion(const struct sl_http_request *request) {
    return begin_answer(request, &(struct work){.route = "POST /v1/completions"});
}

static enum MHD_Result refuse_responses(const struct sl_http_request *request) {
    struct sl_refusal refusal;
    sl_refuse(&refusal, 400, "/v1/responses is not supported: send messages to /v1/chat/completions");
    return sl_http_reply_refusal(request->reply, &refusal);
}

static enum MHD_Result call_documents(const struct sl_http_request *request) {
    static const struct work list = {.route = "GET /v1/documents", .verb = SL_DOCUMENT_LIST},
                             add = {.route = "POST /v1/documents", .verb = SL_DOCUMENT_ADD};
    return begin_answer(request, strcmp(request->method, "POST") == 0 ? &add : &list);
}

static enum MHD_Result call_named_document(const struct sl_http_request *request, const char *name) {
    bool deletes = strcmp(request->method, "DELETE") == 0;
    const struct work work = {.route = deletes ? "DELETE /v1/documents/NAME" : "GET /v1/documents/NAME",
                              .verb = deletes ? SL_DOCUMENT_DELETE : SL_DOCUMENT_SHOW,
                              .document = name};
    return begin_answer(request, &work);
}

// GET, HEAD /v1/documents/NAME/export
static enum MHD_Result export_document(const struct sl_http_request *request, const char *name) {
    bool measures = strcmp(request->method, "HEAD") == 0;
    const struct work work = {.route = "GET /v1/documents/NAME/export",
                              .verb = measures ? SL_DOCUMENT_MEASURE : SL_DOCUMENT_EXPORT,
                              .document = name};
    struct sl_refusal refusal;
    if (strcmp(request->method, "DELETE") == 0) {
        sl_refuse(&refusal, 405, "/v1/documents/NAME" EXPORT " does not take DELETE");
        refusal.allow = "GET, HEAD";
        return sl_http_reply_refusal(request->reply, &refusal);
    }
    return begin_answer(request, &work);
}

static enum MHD_Result call_document(const struct sl_http_request *request) {
    struct sl_refusal refusal;
    char name[SL_DOCUMENT_PATH_BYTES];
    size_t n = strlen(request->rest), n_export = strlen(EXPORT);
    bool exports = n > n_export && strcmp(request->rest + n - n_export, EXPORT) == 0;
    n -= exports ? n_export : 0;
    if (n == 0 || n >= sizeof name) {
        sl_refuse_unknown(&refusal, "document", "there is no document \"%.100s\"", request->rest);
        return sl_http_reply_refusal(request->reply, &refusal);
    }
    snprintf(name, sizeof name, "%.*s", (int)n, request->rest);
    return exports ? export_document(request, name) : call_named_document(request, name);
}

// A document may have this name.
static enum MHD_Result call_document_import(const struct sl_http_request *request) {
    return call_named_document(request, "import");
}

static ssize_t take(void *cls, uint64_t, char *buf, size_t n_bytes) {
    return sl_http_answer_take(cls, buf, n_bytes);
}

// Sends a file, whose size is known, or a stream of events.
static enum MHD_Result send_stream(const struct sl_http_reply *reply, const struct sl_http_answer_head *head,
                                   struct sl_http_answer *answer) {
    bool is_file = head->file_bytes > 0;
    struct MHD_Response *response =
        MHD_create_response_from_callback(is_file ? (uint64_t)head->file_bytes : MHD_SIZE_UNKNOWN,
                                          is_file ? FILE_BLOCK_BYTES : 16384, take, answer, NULL);
    char name[SL_DOCUMENT_PATH_BYTES + 64];
    if (response && is_file) {
        snprintf(name, sizeof name, "attachment; filename=\"%s.sluicedoc\"", head->document);
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_DISPOSITION, name);
    }
    if (response) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no"); // tells proxies not to buffer the stream
    }
    return sl_http_reply_send(reply, head->http_status, is_file ? "application/octet-stream" : "text/event-stream",
                              response);
}

static enum MHD_Result send_answer(struct sl_exchange *exchange, struct MHD_Connection *connection) {
    struct sl_http_answer_head head = sl_http_answer_head(exchange->answer);
    struct sl_http_reply reply = reply_to(exchange, connection);
    reply.limits = head.limits;
    reply.retry_after_s = head.retry_after_s;
    reply.ignored = head.ignored;
    if (head.is_stream) {
        return send_stream(&reply, &head, exchange->answer);
    }
    struct sl_refusal none;
    if (!head.text) {
        sl_refuse(&none, 500, "no memory for the answer");
        return sl_http_reply_refusal(&reply, &none);
    }
    return sl_http_reply_send(&reply, head.http_status, "application/json",
                              MHD_create_response_from_buffer(head.n_text, (void *)head.text, MHD_RESPMEM_MUST_COPY));
}

// ---- imports --------------------------------------------------------------------------------------------------------

/*
 * Refuses a request by its head. Many clients read no answer before they have sent their body, and a connection that is
 * closed meanwhile breaks their pipe. So a body of a known, moderate length is read first and discarded; the client gets
 * the refusal after it. A client that asks first (Expect: 100-continue), or has a longer body, is answered at once.
 */
static enum MHD_Result refuse_by_head(struct sl_exchange *exchange, struct MHD_Connection *connection,
                                      const struct sl_refusal *refusal) {
    struct sl_http_reply reply = reply_to(exchange, connection);
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *expect = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT);
    const long long n_bytes = length ? strtoll(length, NULL, 10) : 0;
    // With status 400 the head is malformed, and so may be its length.
    if (refusal->http_status != MHD_HTTP_BAD_REQUEST && !expect && n_bytes > 0 && n_bytes <= MAX_DISCARDED_BYTES) {
        exchange->refusal = *refusal;
        exchange->is_refused_by_head = true;
        return MHD_YES;
    }
    return sl_http_reply_refusal(&reply, refusal);
}

// POST /v1/documents/import?name=NAME: the body goes to the coordinator as it comes, so that none is ever held whole.
static enum MHD_Result begin_import(const struct sl_http_request *request) {
    struct sl_exchange *exchange = request->exchange;
    struct sl_refusal refusal;
    struct work work = {.route = "POST /v1/documents/import", .verb = SL_DOCUMENT_IMPORT};
    struct MHD_Connection *connection = request->reply->connection;
    if (sl_documents_read_query(connection, &work.document, &work.keep_ms, &refusal) == SL_OK &&
        start_transfer(request, &work, &refusal) == SL_OK) {
        exchange->passes_body_on = true;
        return MHD_YES;
    }
    return refuse_by_head(exchange, connection, &refusal);
}

// Passes on a piece of the body. What the answer does not need is read and discarded, so that the client sees the answer.
static enum MHD_Result pass_on(struct sl_exchange *exchange, struct MHD_Connection *connection, const char *body,
                               size_t *body_bytes) {
    if (sl_http_answer_put(exchange->answer, body, body_bytes)) {
        if (*body_bytes > 0) { // it waits for us
            sl_connection_asked(connection);
        }
        return MHD_YES;
    }
    *body_bytes = 0;
    if (exchange->discards_until_ns == 0) {
        exchange->discards_until_ns = sl_deadline_in_ms(exchange->gateway->config.body_ms);
    }
    return sl_now_ns() < exchange->discards_until_ns ? MHD_YES : MHD_NO;
}

// ---- routes ---------------------------------------------------------------------------------------------------------

const struct sl_route sl_gateway_routes[] = {
    {"/v1/chat/completions", "POST", SL_ROUTE_KEYED, post_chat, NULL},
    {"/v1/completions", "POST", SL_ROUTE_KEYED, post_completion, NULL},
    {"/v1/responses", "POST", SL_ROUTE_KEYED, refuse_responses, NULL},
    {"/v1/documents", "GET, POST", SL_ROUTE_KEYED, call_documents, NULL},
    {"/v1/documents/import", "GET, HEAD, POST, DELETE", SL_ROUTE_KEYED, call_document_import, begin_import},
    {"/v1/documents/", "GET, HEAD, DELETE", SL_ROUTE_KEYED, call_document, NULL},
    {"/v1/models", "GET, HEAD", SL_ROUTE_KEYED, sl_models_list, NULL},
    {"/v1/models/", "GET, HEAD", SL_ROUTE_KEYED, sl_models_show, NULL},
    {"/status.json", "GET, HEAD", SL_ROUTE_KEYED, get_status, NULL},
    {"/status", "GET, HEAD", SL_ROUTE_OPEN, sl_status_send_page, NULL},
    {"/health", "GET, HEAD", SL_ROUTE_OPEN, sl_models_show_health, NULL},
    {"/metrics", "GET, HEAD", SL_ROUTE_OPEN, get_metrics, NULL},
};
const size_t sl_n_gateway_routes = sizeof sl_gateway_routes / sizeof *sl_gateway_routes;

// Decides by the head alone who may: a caller without a key can make us hold nothing.
static enum sl_status judge_head(struct sl_exchange *exchange, struct MHD_Connection *connection, const char *url,
                                 const char *method, const char *version, struct sl_refusal *refusal) {
    const struct sl_gateway *gateway = exchange->gateway;
    const struct sl_head_rules *rules = &gateway->config.head;
    const char *authorization = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    exchange->route = sl_route_find(sl_gateway_routes, sl_n_gateway_routes, url);
    const bool is_open = exchange->route && exchange->route->caller == SL_ROUTE_OPEN;
    const int64_t most = sl_route_is_begun(exchange->route, method) ? INT64_MAX : gateway->config.max_body_bytes;
    enum sl_status status = sl_head_check(most, connection, &exchange->line, version, refusal);
    SL_THEN(status, sl_head_check_site(rules, connection, &exchange->line, is_open, refusal));
    // Before the path is judged: a caller without a key learns nothing about paths that need one.
    SL_THEN_IF(status, !is_open,
               sl_tenants_find(exchange->gateway->tenants, authorization, &exchange->key, &exchange->client, refusal));
    return status == SL_OK
               ? sl_route_check(sl_gateway_routes, sl_n_gateway_routes, exchange->route, url, method, refusal)
               : status;
}

// A browser asks ahead what a page of an allowed origin may send.
static bool is_preflight(const struct sl_exchange *exchange, struct MHD_Connection *connection, const char *method) {
    return strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0 &&
           sl_head_allowed_origin(&exchange->gateway->config.head, connection);
}

static struct sl_http_request request_of(struct sl_exchange *exchange, const struct sl_http_reply *reply,
                                         const char *url, const char *method) {
    return (struct sl_http_request){.exchange = exchange,
                                    .reply = reply,
                                    .client = exchange->client,
                                    .method = method,
                                    .rest = url + strlen(exchange->route->path)};
}

static enum MHD_Result begin(struct sl_exchange *exchange, struct MHD_Connection *connection, const char *url,
                             const char *method, const char *version) {
    struct sl_http_reply reply = reply_to(exchange, connection);
    struct sl_refusal refusal;
    exchange->has_head = true;
    exchange->began_ns = sl_now_ns();
    if (is_preflight(exchange, connection, method) &&
        sl_head_check(exchange->gateway->config.max_body_bytes, connection, &exchange->line, version, &refusal) ==
            SL_OK &&
        sl_head_check_site(&exchange->gateway->config.head, connection, &exchange->line, false, &refusal) == SL_OK) {
        return sl_http_reply_text(&reply, 200, "text/plain", strdup(""));
    }
    if (judge_head(exchange, connection, url, method, version, &refusal) != SL_OK) {
        return refuse_by_head(exchange, connection, &refusal);
    }
    const struct sl_http_request request = request_of(exchange, &reply, url, method);
    return sl_route_is_begun(exchange->route, method) ? exchange->route->begin_fn(&request) : MHD_YES;
}

static enum MHD_Result answer(struct sl_exchange *exchange, struct MHD_Connection *connection, const char *url,
                              const char *method) {
    struct sl_http_reply reply = reply_to(exchange, connection);
    if (exchange->refusal.http_status != 0) {
        reply.closes = exchange->is_refused_by_head;
        return sl_http_reply_refusal(&reply, &exchange->refusal);
    }
    const struct sl_http_request request = request_of(exchange, &reply, url, method);
    return exchange->route->answer_fn(&request);
}

void *sl_exchange_create(void *cls, const char *path, struct MHD_Connection *) {
    struct sl_exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange) {
        exchange->gateway = cls;
        exchange->line = sl_http_line_read(path);
    }
    return exchange;
}

enum MHD_Result sl_exchange_handle(void *, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *body, size_t *body_bytes, void **exchange_ptr) {
    struct sl_exchange *exchange = *exchange_ptr;
    if (!exchange) {
        return MHD_NO; // there was no memory for it
    }
    url = sl_http_path(url);
    if (!exchange->has_head) { // the first call, with the head only
        sl_connection_waits(connection);
        return begin(exchange, connection, url, method, version);
    }
    if (exchange->refusal.http_status == 0 && sl_connection_is_malformed(connection)) {
        sl_refuse(&exchange->refusal, 400, "a chunk of the body is malformed");
        if (exchange->passes_body_on) { // the answer is reading it
            sl_http_answer_stop(exchange->answer);
        }
        exchange->passes_body_on = false;
    }
    if (*body_bytes > 0) {
        size_t n = *body_bytes;
        sl_connection_waits(connection);
        if (exchange->passes_body_on) {
            return pass_on(exchange, connection, body, body_bytes);
        }
        *body_bytes = 0;
        return take_in(exchange, body, n);
    }
    sl_connection_asked(connection);
    if (exchange->passes_body_on) { // until now
        exchange->passes_body_on = false;
        if (!sl_http_answer_end_body(exchange->answer)) {
            return MHD_YES;
        }
    }
    if (exchange->snapshot) {
        struct sl_http_reply reply = reply_to(exchange, connection);
        return sl_status_send(&reply, exchange->snapshot);
    }
    exchange->is_replied = exchange->answer != NULL;
    return exchange->answer && exchange->refusal.http_status == 0 ? send_answer(exchange, connection)
                                                                  : answer(exchange, connection, url, method);
}

void sl_exchange_over(void *, struct MHD_Connection *connection, void **exchange_ptr, enum MHD_RequestTerminationCode) {
    sl_connection_waits(connection);
    struct sl_exchange *exchange = *exchange_ptr;
    if (!exchange) {
        return;
    }
    if (exchange->answer) {
        // The daemon may read the end of a resumed connection before it calls the handler.
        atomic_fetch_add(&exchange->gateway->n_requests[SL_OUTCOME_LEFT], !exchange->is_replied);
        remove_from_list(exchange);
        sl_http_answer_leave(&exchange->answer);
    }
    if (exchange->snapshot) {
        sl_snapshot_end(&exchange->snapshot);
    }
    give_memory_back(exchange);
    free(exchange);
    *exchange_ptr = NULL;
}
