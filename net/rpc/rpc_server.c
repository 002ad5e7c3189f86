// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a server: its address, its methods, its admission control, and how it stops.
 *
 * Design: for every method a few calls are posted to gRPC, and each accepted call posts its successor. A catch-all is
 *         posted as well: without it, calls of unknown methods would hang until their deadline instead of getting
 *         UNIMPLEMENTED. A call is accepted without its request, so that those whose requests do not come can be counted.
 *         Polling threads only decide: refuse at once, or pass to the pool, or to a fiber. A service may have a limit of
 *         its own, with memory of its own, so that probes and heartbeats are answered when the others are full.
 *
 *         Stopping: services are notified, so that handlers which only wait return; gRPC refuses new calls; after the
 *                   grace period the rest is cancelled; the handlers return; the last call object is freed; only then
 *                   are pool and server destroyed. gRPC also waits for every connection: those without calls are closed
 *                   after the last call.
 *
 * Invariants: the server outlives all of its calls, posted and accepted.
 *             n_running of a quota <= its limit, and counts calls whose handler has not returned.
 */
#include <grpc/byte_buffer.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "net/rpc/rpc_internal.h"
#include "net/rpc/rpc_tsan.h"
#include "net/trace/trace.h"

enum {
    POSTED_CALLS = 8, // per method: a larger burst waits inside gRPC for microseconds
    DEFAULT_MAX_CALLS = 256,
    DEFAULT_MAX_MESSAGE_BYTES = 4 << 20,
    DEFAULT_REQUEST_BYTES = 256 << 20,
    SERVICE_BYTES = 64 << 20, // of a service with a limit of its own
    DEFAULT_SEND_MS = 30000,
    KEEPALIVE_TIME_MS = 4000, // a dead client is detected within the sum of the two
    KEEPALIVE_TIMEOUT_MS = 2000,
    STOP_REPORT_MS = 5000,
    HANDSHAKE_MS = 10000, // a connection that sends nothing for this long is closed
    DEFAULT_REQUEST_MS = 60000,
    LATE_MS = 500, // between looks for calls that wait too long
    FREE_MS = 50,  // in which gRPC frees what it holds of a refused call
    REFUSED_AT_ONCE = 16,
    LEAST_PARTIAL = 4, // requests of the largest size that may have arrived in part
    PARTIAL_SHARE = 4, // of the memory for requests, this part is for those that have arrived in part
    SPARE_CALLS = 256, // beside those that run: of services with a limit of their own, refused, or waiting for clients
    LEAVE_MS = 50,     // time for clients to disconnect after the last call
};

struct sl_rpc_server {
    grpc_server *server;
    char address[300];
    int port;                               // guarded by rpc_accept.c; 0: none yet
    struct sl_rpc_implementation *services; // [n_services]
    struct sl_rpc_quota *quotas;            // [n_services + 1]: each service's own quota, and last the shared one
    size_t n_services;
    struct sl_rpc_bound *bound; // [n_bound]
    size_t n_bound;
    struct sl_rpc_pool *pool;
    struct sl_rpc_calls calls;
    atomic_bool is_stopping;
    const struct sl_rpc_credentials *credentials;
    int64_t send_ms, request_ms;
    struct sl_loop late; // its thread ends calls that wait too long for their clients, or whose callers are revoked
};

// ---- one call ------------------------------------------------------------------------------------------------------

// Counts a call that is to be handled, until leave_quota(). Returns false if too many are.
static bool enter_quota(struct sl_rpc_call *call, struct sl_error *err) {
    struct sl_rpc_quota *quota = call->bound->quota;
    const int n_before = atomic_fetch_add(&quota->n_running, 1);
    const int n_own = atomic_fetch_add(&quota->owned[call->owner], 1);
    const bool is_over = n_before >= quota->limit;
    if (quota->usage) {
        atomic_fetch_add(&quota->usage->n_running, 1);
    }
    if (!is_over && n_own < quota->caller_limit) {
        return true;
    }
    if (quota->usage) {
        atomic_fetch_add(is_over ? &quota->usage->n_over_limit : &quota->usage->n_over_share, 1);
    }
    if (is_over) {
        sl_fail(err, SL_ERR_EXHAUSTED, "%s handles %d calls already; retry in 1000 ms", call->server->address,
                quota->limit);
    } else {
        sl_fail(err, SL_ERR_EXHAUSTED, "%s handles %d calls of %s already, its share; retry in 1000 ms",
                call->server->address, quota->caller_limit, sl_rpc_call_caller_name(call));
    }
    return false;
}

static void leave_quota(struct sl_rpc_call *call) {
    struct sl_rpc_quota *quota = call->bound->quota;
    atomic_fetch_sub(&quota->n_running, 1);
    atomic_fetch_sub(&quota->owned[call->owner], 1);
    if (quota->usage) {
        atomic_fetch_sub(&quota->usage->n_running, 1);
    }
}

static enum sl_status run_handler(struct sl_rpc_call *call, struct sl_error *err) {
    const struct sl_rpc_method *method = call->bound->method;
    ProtobufCMessage *request = NULL;
    if (sl_rpc_call_cancelled(call)) { // before it had a thread
        return sl_fail(err, SL_ERR_CANCELLED, "%s: its client has cancelled it", method->path);
    }
    if (method->kind != SL_RPC_BIDI) {
        const enum sl_status unpacked =
            sl_rpc_message_unpack(call->payload, "the request", method->request, &call->account, &request, err);
        grpc_byte_buffer_destroy(call->payload);
        call->payload = NULL;
        SL_TRY(sl_rpc_account_complain(&call->account, method->path, err));
        SL_TRY(unpacked);
    }
    atomic_store(&call->is_streaming, method->kind != SL_RPC_UNARY);
    enum sl_status status = call->bound->handler(call->bound->context, call, request, err);
    const enum sl_status flushed = sl_rpc_call_flush(call);
    status = status == SL_OK && flushed != SL_OK ? sl_fail(err, flushed, "the client is gone") : status;
    protobuf_c_message_free_unpacked(request, NULL);
    SL_FAIL_IF(status == SL_OK && method->kind == SL_RPC_UNARY && !call->reply && !sl_rpc_call_cancelled(call), err,
               SL_ERR_INTERNAL, "%s: the handler sent no reply", method->path);
    SL_FAIL_IF(status > SL_OK, err, SL_ERR_INTERNAL, "%s: the handler returned '%s'", method->path,
               sl_status_text(status));
    return status;
}

static void serve(void *arg) {
    struct sl_rpc_call *call = arg;
    struct sl_error err = {0};
    struct sl_trace client;
    struct sl_span span = {0};
    const bool traced = sl_rpc_trace_take(&call->metadata, &client);
    if (traced) {
        sl_trace_set(&client);
        sl_span_begin(&span, call->bound->method->path + 1, SL_SPAN_SERVER);
    }
    const enum sl_status status = run_handler(call, &err);
    const bool told = err.status == status && err.text[0];
    if (traced) {
        const enum sl_status seen =
            status == SL_ERR_NOT_FOUND ? SL_OK : status; // a search without a find has not failed
        sl_span_end(&span, seen, told ? err.text : sl_status_text(status));
        sl_trace_set(NULL);
    }
    sl_log_set_job(""); // the thread will serve other jobs
    sl_rpc_account_close(&call->account);
    sl_rpc_call_await_room(call);
    leave_quota(call); // before the client gets the status, so that it may call again at once
    sl_rpc_call_finish(call, status, told ? &err : NULL);
    sl_rpc_call_unref(call);
}

static void serve_on_thread(struct sl_rpc_job *job) {
    serve((char *)job - offsetof(struct sl_rpc_call, job));
}

static void refuse(struct sl_rpc_call *call, const struct sl_error *err) {
    grpc_byte_buffer_destroy(call->payload); // the client may not read the status for long
    call->payload = NULL;
    sl_rpc_call_finish(call, err->status, err);
    sl_rpc_call_unref(call);
}

static void admit(struct sl_rpc_call *call) {
    struct sl_rpc_server *server = call->server;
    struct sl_rpc_quota *quota = call->bound->quota;
    struct sl_error err;
    const size_t bytes = call->payload ? grpc_byte_buffer_length(call->payload) : 0;
    sl_rpc_account_open(&call->account, &quota->budget);
    sl_rpc_account_begin(&call->account, bytes);
    if (!sl_rpc_account_take(&call->account, bytes)) {
        sl_rpc_account_complain(&call->account, call->bound->method->path, &err);
        refuse(call, &err);
        return;
    }
    if (enter_quota(call, &err)) {
        call->job.fn = serve_on_thread;
        if ((call->bound->on_fibers ? sl_fiber_start(call->bound->method->path, serve, call, &err)
                                    : sl_rpc_pool_submit(server->pool, &call->job, &err)) == SL_OK) {
            return;
        }
        sl_log_warn("rpc", "%s: no thread for a call: %s", server->address, err.text);
        sl_fail(&err, SL_ERR_EXHAUSTED, "%s has no thread for the call; retry in 1000 ms", server->address);
    }
    leave_quota(call);
    sl_rpc_account_close(&call->account);
    refuse(call, &err);
}

// ---- accepting -----------------------------------------------------------------------------------------------------

static void post(struct sl_rpc_server *server, const struct sl_rpc_bound *bound);

// Returns false if the caller may not call, and then has refused the call.
static bool identify(struct sl_rpc_call *call) {
    struct sl_rpc_server *server = call->server;
    struct sl_error err;
    if (sl_rpc_identify(server->credentials, call->call, call->bound->roles, &call->caller, &err) != SL_OK) {
        sl_log_warn("rpc", "%s: %s refused: %s", server->address, call->bound->method->path, err.text);
        refuse(call, &err);
        return false;
    }
    if (server->credentials) {
        call->caller_hash = sl_rpc_caller_hash(&call->caller);
    } else {
        char *peer = grpc_call_get_peer(call->call);
        call->caller_hash = sl_rpc_caller_of_peer(peer);
        gpr_free(peer);
    }
    call->owner = sl_rpc_owner_of(call->caller_hash);
    return true;
}

static void on_request(struct sl_rpc_tag *tag, bool ok) {
    (void)ok; // without a request the payload is NULL
    struct sl_rpc_call *call = (struct sl_rpc_call *)((char *)tag - offsetof(struct sl_rpc_call, accept_tag));
    struct sl_error err;
    if (!sl_rpc_call_leave_line(call, &call->bound->quota->awaited)) {
        // refused already
    } else if (!call->payload && grpc_call_failed_before_recv_message(call->call)) {
        sl_rpc_call_unref(call); // its client has gone: nothing is left to be done or told
    } else if (!call->payload) {
        sl_fail(&err, SL_ERR_INVALID, "%s: the request is missing", call->bound->method->path);
        refuse(call, &err);
    } else {
        admit(call);
    }
    sl_rpc_call_unref(call);
}

// Refuses calls of a quota whose requests have not come: those that are late, or must make room for the newest, if it is not
// NULL; all when the server stops.
static void refuse_awaited(struct sl_rpc_server *server, struct sl_rpc_quota *quota, struct sl_rpc_call *newest) {
    const bool is_stopping = atomic_load(&server->is_stopping);
    const int64_t before_ns = is_stopping ? INT64_MAX : sl_now_ns() - server->request_ms * SL_NS_PER_MS;
    struct sl_rpc_call *call;
    while ((call = sl_rpc_calls_take_out(&server->calls, &quota->awaited, before_ns)) != NULL) {
        struct sl_error err;
        if (is_stopping) {
            sl_fail(&err, SL_ERR_PEER_LOST, "the server is stopping");
        } else if (call->accepted_ns < before_ns) {
            sl_fail(&err, SL_ERR_DEADLINE, "the request has not come within %" PRId64 " ms", server->request_ms);
        } else {
            sl_fail(&err, SL_ERR_EXHAUSTED, "%s waits for the requests of %" PRId64 " calls already; retry in 1000 ms",
                    server->address, quota->awaited.most);
        }
        if (newest && newest->owner == call->owner && err.status == SL_ERR_EXHAUSTED) {
            sl_rpc_call_count_waste(newest);
        }
        sl_rpc_call_finish(call, err.status, &err); // gRPC may still write its payload
        sl_rpc_call_unref(call);
    }
}

// Refuses a call of the caller that holds most of unfinished messages, until gRPC has freed it. Returns false if there is none.
static bool refuse_much(struct sl_rpc_server *server) {
    size_t owner;
    const int64_t held = sl_rpc_streams_most(&owner);
    struct sl_rpc_call *call = NULL;
    for (size_t i = 0; held > 0 && !call && i <= server->n_services; i++) {
        call = sl_rpc_calls_take_out_of(&server->calls, &server->quotas[i].awaited, owner);
    }
    if (!call) {
        return false;
    }
    struct sl_error err;
    sl_fail(&err, SL_ERR_EXHAUSTED,
            "%s has more than its part of the memory for requests that have not arrived completely; retry in 1000 ms",
            call->bound->method->path);
    sl_rpc_call_count_waste(call);
    sl_rpc_call_finish(call, err.status, &err);
    sl_rpc_call_unref(call);
    size_t owner_now = owner;
    for (int i = 0; i < FREE_MS && owner_now == owner && sl_rpc_streams_most(&owner_now) >= held; i++) {
        sl_sleep_ms(1);
    }
    return true;
}

// Ends calls that wait too long for their clients, or whose callers are revoked, until the server stops.
static void *end_late_calls(void *arg) {
    struct sl_rpc_server *server = arg;
    pthread_mutex_lock(&server->late.mutex);
    while (!server->late.stopping) {
        pthread_mutex_unlock(&server->late.mutex);
        for (size_t i = 0; i <= server->n_services; i++) {
            refuse_awaited(server, &server->quotas[i], NULL);
        }
        sl_rpc_calls_end_unsent(&server->calls, sl_now_ns() - server->send_ms * SL_NS_PER_MS, NULL);
        sl_rpc_calls_end_revoked(&server->calls, server->credentials);
        for (int i = 0; i < REFUSED_AT_ONCE && sl_rpc_streams_are_much() && refuse_much(server); i++) {
        }
        pthread_mutex_lock(&server->late.mutex);
        if (!server->late.stopping) { // which sl_rpc_streams_wake() ends, too
            (void)sl_loop_wait(&server->late, sl_deadline_in_ms(sl_rpc_streams_are_much() ? FREE_MS / 5 : LATE_MS));
        }
    }
    pthread_mutex_unlock(&server->late.mutex);
    return NULL;
}

// Receives the request of an accepted call. gRPC could accept a call together with its request, but then keeps calls
// whose requests do not come, 12 KiB each, without a bound.
static void receive(struct sl_rpc_call *call) {
    const grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->payload};
    call->accept_tag.fn = on_request;
    atomic_fetch_add(&call->refs, 1);
    sl_rpc_call_await(call);
    refuse_awaited(call->server, call->bound->quota, call); // maybe this one
    if (sl_rpc_batch_start(call->call, &op, 1, &call->accept_tag) != SL_OK) {
        struct sl_error err;
        sl_fail(&err, SL_ERR_INTERNAL, "the server cannot receive the request");
        if (sl_rpc_call_leave_line(call, &call->bound->quota->awaited)) {
            refuse(call, &err);
        }
        sl_rpc_call_unref(call);
    }
}

static void on_accept(struct sl_rpc_tag *tag, bool ok) {
    struct sl_rpc_call *call = (struct sl_rpc_call *)((char *)tag - offsetof(struct sl_rpc_call, accept_tag));
    if (!ok) { // the server is stopping
        sl_rpc_call_unref(call);
        return;
    }
    sl_rpc_live_calls_add(1);
    sl_rpc_call_note_accepted(call); // before it is identified: later revocations end it
    post(call->server, call->bound);
    call->accepted_ns = sl_now_ns();
    atomic_store(&call->deadline_ns,
                 sl_rpc_deadline_from_timespec(call->bound ? call->deadline : call->details.deadline));
    struct sl_error err;
    if (sl_rpc_call_watch(call) != SL_OK) {
        sl_fail(&err, SL_ERR_INTERNAL, "the server cannot watch the call");
        refuse(call, &err);
    } else if (!call->bound) {
        const size_t length = GRPC_SLICE_LENGTH(call->details.method);
        sl_fail(&err, SL_ERR_UNSUPPORTED, "no method %.*s", (int)(length < 200 ? length : 200),
                (const char *)GRPC_SLICE_START_PTR(call->details.method));
        refuse(call, &err);
    } else if (identify(call)) {
        (call->bound->method->kind == SL_RPC_BIDI ? admit : receive)(call);
    }
}

// Asks gRPC for one more call of a method; of any unregistered method if `bound` is NULL.
static void post(struct sl_rpc_server *server, const struct sl_rpc_bound *bound) {
    struct sl_rpc_call *call = sl_rpc_call_create(server, &server->calls, bound);
    if (!call) {
        sl_log_error("rpc", "%s: no memory to accept a call", server->address);
        return;
    }
    call->accept_tag.fn = on_accept;
    call->send_ms = server->send_ms;
    grpc_completion_queue *queue = sl_rpc_queue();
    SL_RPC_HAND_OVER(&call->accept_tag);
    grpc_call_error error =
        bound ? grpc_server_request_registered_call(server->server, bound->registered, &call->call, &call->deadline,
                                                    &call->metadata, NULL, queue, queue, &call->accept_tag)
              : grpc_server_request_call(server->server, &call->call, &call->details, &call->metadata, queue, queue,
                                         &call->accept_tag);
    if (error != GRPC_CALL_OK) {
        sl_log_error("rpc", "%s: cannot accept calls: %s", server->address, grpc_call_error_to_string(error));
        sl_rpc_call_unref(call);
    }
}

// ---- starting ------------------------------------------------------------------------------------------------------

static grpc_server *make_grpc_server(int max_message_bytes, int64_t request_bytes, int max_calls) {
    const int64_t least_bytes = (int64_t)LEAST_PARTIAL * max_message_bytes;
    const int64_t partial_bytes = request_bytes / PARTIAL_SHARE;
    sl_rpc_streams_allow((size_t)max_calls + SPARE_CALLS, partial_bytes > least_bytes ? partial_bytes : least_bytes);
    grpc_arg args[] = {
        sl_rpc_setting(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, max_message_bytes),
        sl_rpc_setting(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        // Limits one connection: its client keeps further calls waiting, instead of being refused
        sl_rpc_setting(GRPC_ARG_MAX_CONCURRENT_STREAMS, max_calls + SPARE_CALLS),
        // Measures the network to enlarge the windows of all streams: to megabytes that no handler asked for
        sl_rpc_setting(GRPC_ARG_HTTP2_BDP_PROBE, 0), sl_rpc_setting(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS),
        sl_rpc_setting(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0), // of replies; clients may compress requests
        sl_rpc_setting(GRPC_ARG_ENABLE_CHANNELZ, 0),
        sl_rpc_setting(GRPC_ARG_ALLOW_REUSEPORT, 0), // otherwise two servers would share a port without an error
        sl_rpc_setting(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_TIME_MS),
        sl_rpc_setting(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        // Only for connections with calls: an idle foreign client may not poll, and would be disconnected.
        sl_rpc_setting(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0),
        sl_rpc_setting(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        sl_rpc_setting(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000),
        sl_rpc_setting(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0), // our own clients do ping while idle
    };
    const grpc_channel_args all = {.num_args = sizeof args / sizeof *args, .args = args};
    return grpc_server_create(&all, NULL);
}

static enum sl_status find_handler(const struct sl_rpc_implementation *service, struct sl_rpc_bound *bound,
                                   struct sl_error *err) {
    size_t n_found = 0;
    for (size_t i = 0; i < service->n_handlers; i++) {
        if (service->handlers[i].method == bound->method) {
            bound->handler = service->handlers[i].fn;
            bound->roles = service->handlers[i].roles;
            n_found++;
        }
    }
    const char *path = bound->method->path;
    SL_FAIL_IF(n_found == 1 && bound->roles == 0, err, SL_ERR_INTERNAL, "%s has a handler that no role may call", path);
    return n_found == 1 ? SL_OK : sl_fail(err, SL_ERR_INTERNAL, "%s has %zu handlers, not one", path, n_found);
}

static enum sl_status bind_service(struct sl_rpc_server *server, const struct sl_rpc_implementation *implementation,
                                   struct sl_rpc_quota *quota, struct sl_error *err) {
    const struct sl_rpc_service *service = implementation->service;
    SL_FAIL_IF(implementation->n_handlers > service->n_methods, err, SL_ERR_INTERNAL,
               "%s has handlers of methods that are not its own", service->name);
    for (size_t i = 0; i < service->n_methods; i++) {
        const struct sl_rpc_method *method = service->methods[i];
        struct sl_rpc_bound bound = {.method = method,
                                     .context = implementation->context,
                                     .quota = quota,
                                     .on_fibers = implementation->on_fibers};
        SL_TRY(find_handler(implementation, &bound, err));
        bound.registered = grpc_server_register_method(server->server, method->path, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
        SL_FAIL_IF(!bound.registered, err, SL_ERR_INVALID, "method %s is there twice", method->path);
        server->bound[server->n_bound++] = bound;
    }
    return SL_OK;
}

static enum sl_status bind_services(struct sl_rpc_server *server, const struct sl_rpc_server_config *config,
                                    int64_t request_bytes, struct sl_error *err) {
    size_t n_methods = 0;
    for (size_t i = 0; i < config->n_services; i++) {
        n_methods += config->services[i].service->n_methods;
    }
    server->n_services = config->n_services;
    server->services = calloc(config->n_services, sizeof *server->services);
    server->quotas = calloc(config->n_services + 1, sizeof *server->quotas);
    server->bound = calloc(n_methods, sizeof *server->bound);
    SL_FAIL_IF(!server->services || !server->quotas || !server->bound, err, SL_ERR_EXHAUSTED,
               "no memory for %zu methods", n_methods);
    struct sl_rpc_quota *shared = &server->quotas[config->n_services];
    shared->limit = config->max_calls ? config->max_calls : DEFAULT_MAX_CALLS;
    const int share = (int)((int64_t)shared->limit * config->caller_percent / 100);
    shared->caller_limit = config->caller_percent == 0 ? shared->limit : share > 1 ? share : 1;
    shared->usage = config->usage;
    atomic_init(&shared->budget.left, request_bytes);
    shared->awaited.most = shared->limit + SPARE_CALLS;
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < config->n_services && status == SL_OK; i++) {
        struct sl_rpc_quota *own = &server->quotas[i];
        server->services[i] = config->services[i];
        own->limit = own->caller_limit = config->services[i].max_calls;
        atomic_init(&own->budget.left, SERVICE_BYTES);
        own->awaited.most = own->limit;
        status = bind_service(server, &server->services[i], own->limit ? own : shared, err);
    }
    return status;
}

static enum sl_status listen_on(struct sl_rpc_server *server, const struct sl_rpc_server_config *config,
                                struct sl_error *err) {
    struct sl_rpc_address address;
    SL_TRY(sl_rpc_address_parse(config->listen, &address, err));
    SL_TRY(sl_rpc_address_may_listen(&address, config->credentials, config->insecure, err));
    sl_rpc_address_format(&address, server->address, sizeof server->address);
    grpc_server_credentials *credentials = sl_rpc_server_credentials(config->credentials);
    const int port = grpc_server_add_http2_port(server->server, server->address, credentials);
    grpc_server_credentials_release(credentials);
    if (port == 0) {
        return sl_rpc_address_diagnose(&address, err);
    }
    SL_TRY(sl_rpc_accept_guard(port, config->credentials == NULL, err));
    address.port = server->port = port;
    sl_rpc_address_format(&address, server->address, sizeof server->address);
    return SL_OK;
}

// Shuts a server's gRPC down. Returns when gRPC is done with it: no call and no connection is left.
static void close_grpc_server(struct sl_rpc_server *server, int64_t grace_ms) {
    grpc_completion_queue *queue =
        grpc_completion_queue_create_for_pluck(NULL); // a queue of its own, so that no other thread takes the tag
    grpc_server_shutdown_and_notify(server->server, queue, NULL);
    int64_t deadline_ns = sl_deadline_in_ms(grace_ms > 0 ? grace_ms : 0);
    if (sl_rpc_calls_wait(&server->calls, deadline_ns) == SL_OK) {
        // An idle client may not poll, and would use up the grace period
        int64_t leave_ns = sl_deadline_in_ms(LEAVE_MS);
        deadline_ns = leave_ns < deadline_ns ? leave_ns : deadline_ns;
    }
    const gpr_timespec deadline = sl_rpc_deadline_to_timespec(deadline_ns);
    if (grpc_completion_queue_pluck(queue, NULL, deadline, NULL).type == GRPC_QUEUE_TIMEOUT) {
        grpc_server_cancel_all_calls(server->server);
        grpc_completion_queue_pluck(queue, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    }
    grpc_completion_queue_shutdown(queue);
    grpc_completion_queue_destroy(queue);
}

static void destroy(struct sl_rpc_server *server) {
    sl_rpc_streams_wake(&server->late, false);
    grpc_server_destroy(server->server);
    sl_rpc_accept_release(server->port);
    sl_rpc_pool_destroy(&server->pool);
    sl_rpc_calls_cleanup(&server->calls);
    sl_loop_cleanup(&server->late);
    free(server->bound);
    free(server->quotas);
    free(server->services);
    free(server);
}

enum sl_status sl_rpc_server_start(const struct sl_rpc_server_config *config, struct sl_rpc_server **server_out,
                                   struct sl_error *err) {
    SL_FAIL_IF(config->max_calls < 0 || config->max_message_bytes < 0 || config->send_ms < 0 ||
                   config->request_bytes < 0 || config->request_ms < 0 || config->caller_percent < 0 ||
                   config->caller_percent > 100,
               err, SL_ERR_INVALID, "a server's limits are not negative, and a caller's share is no more than all");
    SL_NEW_OR_FAIL(struct sl_rpc_server, server, err, "no memory for a server");
    const int64_t request_bytes = config->request_bytes ? config->request_bytes : DEFAULT_REQUEST_BYTES;
    const int max_calls = config->max_calls ? config->max_calls : DEFAULT_MAX_CALLS;
    sl_rpc_calls_init(&server->calls, max_calls + SPARE_CALLS);
    sl_loop_init(&server->late);
    server->credentials = config->credentials;
    server->send_ms = config->send_ms ? config->send_ms : DEFAULT_SEND_MS;
    server->request_ms = config->request_ms ? config->request_ms : DEFAULT_REQUEST_MS;
    server->server = make_grpc_server(config->max_message_bytes ? config->max_message_bytes : DEFAULT_MAX_MESSAGE_BYTES,
                                      request_bytes, max_calls);
    grpc_server_register_completion_queue(server->server, sl_rpc_queue(), NULL);
    enum sl_status status = bind_services(server, config, request_bytes, err);
    SL_THEN(status, sl_rpc_pool_create(&server->pool, err));
    SL_THEN(status, listen_on(server, config, err));
    sl_rpc_streams_wake(&server->late, true);
    SL_THEN(status, sl_loop_start(&server->late, "rpc-late", end_late_calls, server, err));
    if (status != SL_OK) {
        close_grpc_server(server, 0);
        destroy(server);
        return status;
    }
    grpc_server_start(server->server);
    for (size_t i = 0; i < server->n_bound; i++) {
        for (int k = 0; k < POSTED_CALLS; k++) {
            post(server, &server->bound[i]);
        }
    }
    for (int k = 0; k < POSTED_CALLS; k++) {
        post(server, NULL);
    }
    sl_log_info("rpc", "listening on %s", server->address);
    *server_out = server;
    return SL_OK;
}

const char *sl_rpc_server_address(const struct sl_rpc_server *server) {
    return server->address;
}

// ---- stopping ------------------------------------------------------------------------------------------------------

static int count_running(const struct sl_rpc_server *server) {
    int n_running = 0;
    for (size_t i = 0; i <= server->n_services; i++) {
        n_running += atomic_load(&server->quotas[i].n_running);
    }
    return n_running;
}

void sl_rpc_server_stop(struct sl_rpc_server **server, int64_t grace_ms) {
    struct sl_rpc_server *s = *server;
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->n_services; i++) {
        if (s->services[i].stopping_fn) {
            s->services[i].stopping_fn(s->services[i].context);
        }
    }
    atomic_store(&s->is_stopping, true);
    sl_loop_stop(&s->late);
    for (size_t i = 0; i <= s->n_services; i++) {
        refuse_awaited(s, &s->quotas[i], NULL);
    }
    close_grpc_server(s, grace_ms);
    // A handler that ignores its cancellation is a bug; log its name until it returns.
    while (sl_rpc_calls_wait(&s->calls, sl_deadline_in_ms(STOP_REPORT_MS)) != SL_OK) {
        sl_log_warn("rpc", "%s: stopping waits for %d handlers that do not watch their cancellation", s->address,
                    count_running(s));
    }
    destroy(s);
    *server = NULL;
}
