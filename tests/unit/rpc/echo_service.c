// SPDX-License-Identifier: Apache-2.0
// Purpose: see echo_service.h.
#include "tests/unit/rpc/echo_service.h"

const struct sl_rpc_method echo_get = {"/test.Echo/Get", SL_RPC_UNARY, &sluice__v1__job_request__descriptor,
                                       &sluice__v1__job__descriptor};
const struct sl_rpc_method echo_watch = {"/test.Echo/Watch", SL_RPC_SERVER_STREAM,
                                         &sluice__v1__watch_request__descriptor, &sluice__v1__event__descriptor};
const struct sl_rpc_method echo_chat = {"/test.Echo/Chat", SL_RPC_BIDI, &sluice__v1__job_request__descriptor,
                                        &sluice__v1__job__descriptor};
const struct sl_rpc_method echo_relay = {"/test.Echo/Relay", SL_RPC_UNARY, &sluice__v1__job_request__descriptor,
                                         &sluice__v1__job__descriptor};
const struct sl_rpc_method echo_follow = {"/test.Echo/Follow", SL_RPC_SERVER_STREAM,
                                          &sluice__v1__watch_request__descriptor, &sluice__v1__event__descriptor};
static const struct sl_rpc_method *const methods[] = {&echo_get, &echo_watch, &echo_chat, &echo_relay, &echo_follow};
const struct sl_rpc_service echo_service = {"test.Echo", methods, sizeof methods / sizeof *methods};

void echo_init(struct echo *echo) {
    memset(echo, 0, sizeof *echo);
    pthread_mutex_init(&echo->mutex, NULL);
    sl_cond_init(&echo->cond);
}

static void wake(void *arg) {
    struct echo *echo = arg;
    pthread_mutex_lock(&echo->mutex);
    pthread_cond_broadcast(&echo->cond);
    pthread_mutex_unlock(&echo->mutex);
}

static enum sl_status wait_for_cancel(struct echo *echo, struct sl_rpc_call *call, struct sl_error *err) {
    const int64_t give_up_ns = sl_deadline_in_ms(20000);
    atomic_store(&echo->deadline_ns, sl_rpc_call_deadline_ns(call));
    atomic_fetch_add(&echo->n_waiting, 1);
    sl_rpc_call_on_cancel(call, wake, echo);
    pthread_mutex_lock(&echo->mutex);
    enum sl_status status = SL_OK;
    while (!sl_rpc_call_cancelled(call) && status == SL_OK) {
        status = sl_cond_wait_until(&echo->cond, &echo->mutex, give_up_ns);
    }
    pthread_mutex_unlock(&echo->mutex);
    sl_rpc_call_on_cancel(call, NULL, NULL);
    atomic_fetch_add(&echo->n_woken, sl_rpc_call_cancelled(call));
    atomic_fetch_sub(&echo->n_waiting, 1);
    return sl_fail(err, SL_ERR_CANCELLED, "waited until cancelled");
}

static enum sl_status get(void *context, struct sl_rpc_call *call, const ProtobufCMessage *message,
                          struct sl_error *err) {
    const Sluice__V1__JobRequest *request = (const Sluice__V1__JobRequest *)message;
    if (strcmp(request->job_id, "fail") == 0) {
        return sl_fail(err, SL_ERR_PEER_STALE, "generation 7 of job '%s' is gone", request->job_id);
    }
    if (strcmp(request->job_id, "blame") == 0) {
        sl_fail(err, SL_ERR_EXHAUSTED, "no room");
        sl_error_blame(err, SL_REASON_STORE, "10.0.0.1:7010");
        sl_error_blame(err, SL_REASON_STORE, "[::1]:7011");
        return err->status;
    }
    if (strcmp(request->job_id, "unconnected") == 0) { // a call of its own
        sl_fail(err, SL_ERR_PEER_LOST, "x: failed to connect to all addresses");
        sl_error_blame(err, SL_REASON_UNCONNECTED, "10.0.0.1:7010");
        return err->status;
    }
    if (strcmp(request->job_id, "silent") == 0) {
        return SL_OK;
    }
    if (strcmp(request->job_id, "wait") == 0) {
        return wait_for_cancel(context, call, err);
    }
    if (strcmp(request->job_id, "other") == 0) {
        Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
        return sl_rpc_call_send(call, &event.base);
    }
    Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
    static char long_text[(1 << 20) + 1];
    job.job_id = request->job_id;
    if (strcmp(request->job_id, "long") == 0) {
        job.status_text = memset(long_text, 'x', sizeof long_text - 1);
    }
    return sl_rpc_call_send(call, &job.base);
}

static enum sl_status watch(void *context, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err) {
    char big[60001] = "";
    struct echo *echo = context;
    const Sluice__V1__WatchRequest *request = (const Sluice__V1__WatchRequest *)message;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    if (strcmp(request->job_id, "missing") == 0) {
        (void)sl_rpc_call_send_last(call, &event.base); // goes with SL_OK alone
        return sl_fail(err, SL_ERR_NOT_FOUND, "no such job");
    }
    if (strcmp(request->job_id, "other") == 0) {
        const Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
        return sl_rpc_call_send_last(call, &job.base);
    }
    if (strcmp(request->job_id, "after the last") == 0) {
        event.sequence = 1;
        const bool is_sent = sl_rpc_call_send_last(call, &event.base) == SL_OK;
        return is_sent && sl_rpc_call_send(call, &event.base) == SL_ERR_INTERNAL &&
                       sl_rpc_call_send_packed(call, NULL, 0, false) == SL_ERR_INTERNAL &&
                       sl_rpc_call_send_last(call, &event.base) == SL_ERR_INTERNAL
                   ? SL_OK
                   : sl_fail(err, SL_ERR_EXISTS, "a message went out after the last one");
    }
    if (strcmp(request->job_id, "mute") == 0) { // says nothing until the client leaves
        atomic_fetch_add(&echo->n_mute, 1);
        for (int i = 0; i < 1000 && !sl_rpc_call_cancelled(call); i++) {
            sl_sleep_ms(1);
        }
        return SL_OK;
    }
    Sluice__V1__StateChange state = SLUICE__V1__STATE_CHANGE__INIT;
    if (strcmp(request->job_id, "big") == 0) {
        memset(big, 'x', sizeof big - 1);
        state.detail = big;
        event.what_case = SLUICE__V1__EVENT__WHAT_STATE;
        event.state = &state;
    }
    for (int64_t i = 1; i <= request->from_sequence; i++) {
        event.sequence = i;
        const bool is_last = strcmp(request->job_id, "last") == 0 && i == request->from_sequence;
        const enum sl_status status = (is_last ? sl_rpc_call_send_last : sl_rpc_call_send)(call, &event.base);
        if (status != SL_OK) {
            atomic_fetch_add(&echo->n_cancelled, 1);
            return status;
        }
        if (strcmp(request->job_id, "slow") == 0) {
            sl_sleep_ms(20);
        }
    }
    return SL_OK;
}

static enum sl_status chat(void *context, struct sl_rpc_call *call, const ProtobufCMessage *none,
                           struct sl_error *err) {
    (void)context;
    (void)none;
    for (;;) {
        ProtobufCMessage *message;
        enum sl_status status = sl_rpc_call_receive(call, &sluice__v1__job_request__descriptor, &message, err);
        if (status != SL_OK) {
            return status == SL_ERR_NOT_FOUND ? SL_OK : status;
        }
        Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
        job.job_id = ((Sluice__V1__JobRequest *)message)->job_id;
        status = sl_rpc_call_send(call, &job.base);
        protobuf_c_message_free_unpacked(message, NULL);
        if (status != SL_OK) {
            return status;
        }
    }
}

static enum sl_status relay(void *context, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err) {
    struct echo *echo = context;
    ProtobufCMessage *reply;
    enum sl_status status = sl_rpc_unary(echo->next, &echo_get, message, SL_NO_DEADLINE, call, &reply, err);
    if (status == SL_OK) {
        status = sl_rpc_call_send(call, reply);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

static enum sl_status follow(void *context, struct sl_rpc_call *call, const ProtobufCMessage *message,
                             struct sl_error *err) {
    struct echo *echo = context;
    struct sl_rpc_stream *stream = NULL;
    enum sl_status status = sl_rpc_stream_open(echo->next, &echo_watch, message, SL_NO_DEADLINE, call, &stream, err);
    while (status == SL_OK) {
        ProtobufCMessage *event;
        status = sl_rpc_stream_next(stream, 10000, &event, err);
        if (status == SL_OK) {
            status = sl_rpc_call_send(call, event);
            protobuf_c_message_free_unpacked(event, NULL);
        }
    }
    sl_rpc_stream_close(&stream);
    return status == SL_ERR_NOT_FOUND && err->status == SL_OK ? SL_OK : status;
}

static const struct sl_rpc_handler handlers[] = {
    {&echo_get, get, SL_ROLE_ANY},     {&echo_watch, watch, SL_ROLE_ANY},   {&echo_chat, chat, SL_ROLE_ANY},
    {&echo_relay, relay, SL_ROLE_ANY}, {&echo_follow, follow, SL_ROLE_ANY},
};

enum sl_status echo_start(struct echo *echo, const char *listen, int max_calls, struct sl_rpc_server **server_out,
                          struct sl_error *err) {
    struct sl_rpc_implementation services[1 + SL_RPC_N_STANDARD] = {{.service = &echo_service,
                                                                     .handlers = handlers,
                                                                     .n_handlers = sizeof handlers / sizeof *handlers,
                                                                     .context = echo}};
    struct sl_rpc_standard standard;
    enum sl_status status = sl_rpc_standard_init(&standard, services, 1, err);
    if (status != SL_OK) {
        return status;
    }
    const struct sl_rpc_server_config config = {.listen = listen,
                                                .insecure = true,
                                                .services = services,
                                                .n_services = sizeof services / sizeof *services,
                                                .max_calls = max_calls,
                                                .request_bytes = echo->request_bytes,
                                                .request_ms = echo->request_ms,
                                                .max_message_bytes = 1 << 20};
    status = sl_rpc_server_start(&config, server_out, err);
    if (status == SL_OK) {
        echo->standard = standard;
    } else {
        sl_rpc_standard_cleanup(&standard);
    }
    return status;
}

void echo_stop(struct echo *echo, struct sl_rpc_server **server, int64_t grace_ms) {
    sl_rpc_server_stop(server, grace_ms);
    sl_rpc_standard_cleanup(&echo->standard);
}

enum sl_status echo_call(struct sl_rpc_channel *channel, const struct sl_rpc_method *method, const char *id, int64_t ms,
                         struct sl_error *err) {
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)id;
    ProtobufCMessage *reply;
    enum sl_status status = sl_rpc_unary(channel, method, &request.base, sl_deadline_in_ms(ms), NULL, &reply, err);
    if (status == SL_OK) {
        if (strcmp(((Sluice__V1__Job *)reply)->job_id, id) != 0) {
            status = sl_fail(err, SL_ERR_INTERNAL, "another job's reply");
        }
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

enum sl_status echo_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method, const char *id,
                         int64_t n_events, int64_t ms, struct sl_rpc_stream **stream_out, struct sl_error *err) {
    Sluice__V1__WatchRequest request = SLUICE__V1__WATCH_REQUEST__INIT;
    request.job_id = (char *)id;
    request.from_sequence = n_events;
    return sl_rpc_stream_open(channel, method, &request.base, sl_deadline_in_ms(ms), NULL, stream_out, err);
}

bool echo_reaches(atomic_int *value, int wanted, int64_t ms) {
    for (const int64_t end_ns = sl_deadline_in_ms(ms); sl_now_ns() < end_ns; sl_sleep_ms(1)) {
        if (atomic_load(value) == wanted) {
            return true;
        }
    }
    return atomic_load(value) == wanted;
}

bool echo_no_calls(int64_t ms) {
    for (const int64_t end_ns = sl_deadline_in_ms(ms); sl_now_ns() < end_ns; sl_sleep_ms(1)) {
        if (sl_rpc_live_calls() == 0) {
            return true;
        }
    }
    return false;
}
