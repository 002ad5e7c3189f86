// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: calls to other processes: one reply, or a stream of them.
 *
 * Design: a unary call is one batch of all its operations and one wait. A stream has two tags. One covers everything
 *         but the messages, and completes with the status. The other is a read that is always posted ahead, so that
 *         waiting for it can time out without losing a message. The polling thread posts the next one while few
 *         messages wait, so that a busy reader takes those of a burst at one wake. If there are lists of revoked
 *         servers, the metadata are a batch of their own: after that the server can be checked. Calls fail at once
 *         (UNAVAILABLE) while the peer refuses connections; channels come back within a second. With a parent, gRPC
 *         itself makes the deadline the smaller one and cancels the child with the parent. In distributions' builds,
 *         gRPC's timers use the time of day: a clock that is set back by an hour stops them for an hour. So a call is
 *         also ended by our own deadline, and a channel that fails is told to try again.
 *
 * Invariants of a stream: `landing` is gRPC's while is_reading; once a read has brought no message none is posted
 *         again, and the status follows. n_pending counts the tags under way, and threads that start one; a closed
 *         stream is freed at zero.
 */
#include <grpc/byte_buffer.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "net/rpc/rpc_internal.h"

enum {
    TIMERS_MS = 200, // time that gRPC has to end a call after its deadline, before we end it
    TRY_AGAIN_MS = 2 * SL_RPC_BACKOFF_MAX_MS,
    AHEAD = 8, // messages of a stream that wait for its reader, and their bytes, until no more are read
    AHEAD_BYTES = 64 << 10,
};

// ---- the end of a call ---------------------------------------------------------------------------------------------

// Rejects calls that our own code makes with the wrong kind of method or request.
static enum sl_status check_request(const struct sl_rpc_method *method, const ProtobufCMessage *request,
                                    enum sl_rpc_kind most, struct sl_error *err) {
    SL_FAIL_IF(method->kind > most, err, SL_ERR_INTERNAL, "%s: a method that streams is called as one that does not",
               method->path);
    SL_FAIL_IF(request->descriptor != method->request, err, SL_ERR_INTERNAL, "%s: the request is a %s, not a %s",
               method->path, request->descriptor->name, method->request->name);
    return SL_OK;
}

// The end of a call, as gRPC reports it.
struct outcome {
    struct sl_rpc_channel *channel;
    const struct sl_rpc_method *method;
    struct sl_rpc_trace_entry trace; // the trace context that was sent
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
    uint64_t n_cut_before;
};

static void outcome_init(struct outcome *outcome, struct sl_rpc_channel *channel, const struct sl_rpc_method *method) {
    outcome->channel = channel;
    outcome->method = method;
    grpc_metadata_array_init(&outcome->initial);
    grpc_metadata_array_init(&outcome->trailing);
    outcome->code = GRPC_STATUS_UNKNOWN;
    outcome->details = grpc_empty_slice();
    outcome->n_cut_before = sl_rpc_headers_count_cut();
}

static void outcome_cleanup(struct outcome *outcome) {
    grpc_metadata_array_destroy(&outcome->initial);
    grpc_metadata_array_destroy(&outcome->trailing);
    grpc_slice_unref(outcome->details);
}

/*
 * Only the functions below read the text of an error. gRPC uses the same code for an unreachable and a stopping server,
 * and the same one for an unknown method and a method that refuses the request. Only gRPC's text, which comes without
 * metadata, tells them apart.
 */
static bool outcome_has(const struct outcome *outcome, const char *words, size_t n) {
    return memmem(GRPC_SLICE_START_PTR(outcome->details), GRPC_SLICE_LENGTH(outcome->details), words, n) != NULL;
}

// Returns true if the text begins with these words. A server that reports that a call of its own has failed quotes
// gRPC's words too, but later in its text.
static bool outcome_begins(const struct outcome *outcome, const char *words) {
    return GRPC_SLICE_LENGTH(outcome->details) >= strlen(words) &&
           memcmp(GRPC_SLICE_START_PTR(outcome->details), words, strlen(words)) == 0;
}

// Returns true if the server does not have the method. Its text then names the service. An HTTP server without gRPC
// answers with an HTTP status, which gRPC's text quotes.
static bool is_unknown_method(const struct outcome *outcome) {
    static const char no_grpc[] = "http2 header";
    const char *service = outcome->method->path + 1;
    return GRPC_SLICE_LENGTH(outcome->details) == 0 || outcome_has(outcome, service, strcspn(service, "/")) ||
           outcome_has(outcome, no_grpc, sizeof no_grpc - 1);
}

// Adds the reason to a failure: the server's, or what gRPC's text says about the connection.
static void add_reason(const struct outcome *outcome, struct sl_error *err) {
    sl_rpc_reason_take(&outcome->trailing, err);
    if (!err || err->reason != SL_REASON_NONE) {
        return;
    }
    if (outcome->code == GRPC_STATUS_UNAVAILABLE && outcome_begins(outcome, "failed to connect to all addresses")) {
        sl_error_blame(err, SL_REASON_UNCONNECTED, "");
    } else if (outcome->code == GRPC_STATUS_UNIMPLEMENTED && is_unknown_method(outcome)) {
        sl_error_blame(err, SL_REASON_UNKNOWN_METHOD, "");
    }
}

static enum sl_status describe_outcome(const struct outcome *outcome, struct sl_error *err) {
    const enum sl_status status = sl_rpc_status_of_code((int)outcome->code);
    // gRPC's text does not tell why. A server that is lost while another one's connection is closed so counts as this,
    // too.
    const bool is_cut = (status == SL_ERR_PEER_LOST || status == SL_ERR_INTERNAL) &&
                        sl_rpc_headers_count_cut() != outcome->n_cut_before;
    SL_FAIL_IF(is_cut, err, SL_ERR_EXHAUSTED, "the connection was closed: a reply has more than %d MiB",
               SL_RPC_MAX_REPLY_BYTES >> 20);
    if (status == SL_OK) {
        atomic_store(&outcome->channel->has_answered, true);
        return SL_OK;
    }
    static const char closed[] = "Socket closed", reset[] = "Connection reset by peer", late[] = "Deadline Exceeded";
    const bool is_closed = status == SL_ERR_PEER_LOST && outcome_has(outcome, closed, sizeof closed - 1);
    const bool is_reset = status == SL_ERR_PEER_LOST && outcome_has(outcome, reset, sizeof reset - 1);
    const bool has_answered = atomic_load(&outcome->channel->has_answered);
    const size_t length = GRPC_SLICE_LENGTH(outcome->details);
    SL_FAIL_IF(length == 0, err, status, "%s", sl_rpc_code_name((int)outcome->code));
    SL_FAIL_IF(length == sizeof late - 1 && outcome_begins(outcome, late), err, status,
               "no answer before the call's deadline");
    // A server that has answered before does not close a connection for want of a certificate.
    const char *hint = has_answered && (is_closed || is_reset) ? ": its process has ended, or was killed"
                       : is_closed && outcome->channel->credentials == NULL
                           ? "; if it wants certificates: --tls-ca, --tls-cert, --tls-key"
                           : "";
    const size_t limit = sizeof err->text - 1 - strlen(hint);
    return sl_fail(err, status, "%.*s%s", (int)(length < limit ? length : limit),
                   (const char *)GRPC_SLICE_START_PTR(outcome->details), hint);
}

static enum sl_status outcome_status(const struct outcome *outcome, struct sl_error *err) {
    SL_TRY_OR(describe_outcome(outcome, err), add_reason(outcome, err));
    return SL_OK;
}

static grpc_op status_op(struct outcome *outcome) {
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &outcome->trailing;
    op.data.recv_status_on_client.status = &outcome->code;
    op.data.recv_status_on_client.status_details = &outcome->details;
    return op;
}

// Sends the client's messages, and receives the server's initial metadata.
enum { N_START_OPS = 4 };

static void start_ops(grpc_op ops[N_START_OPS], grpc_byte_buffer *request, struct outcome *outcome) {
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    sl_rpc_trace_attach(&outcome->trace, &ops[0]);
    ops[1] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request};
    ops[2] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    ops[3] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA,
                       .data.recv_initial_metadata.recv_initial_metadata = &outcome->initial};
}

// The server of an open call.
struct server {
    grpc_call *call;
    const struct sl_rpc_credentials *credentials;
    uint64_t edition; // of the revocation lists by which it was checked; 0: there are none
};

// Ends a call whose server was revoked since it was authenticated, as if it was lost. Call it when gRPC has connected
// the call: its metadata were sent, or a message has come.
SL_APART static void end_if_revoked(void *arg) {
    struct server *server = arg;
    const uint64_t edition = sl_rpc_credentials_edition(server->credentials);
    struct sl_error err;
    if (edition != server->edition && sl_rpc_check_revoked(server->credentials, server->call, &err) != SL_OK) {
        grpc_call_cancel_with_status(server->call, GRPC_STATUS_UNAVAILABLE, err.text, NULL);
    }
    server->edition = edition;
}

// Runs operations of a call whose metadata were sent, and checks its server meanwhile.
static enum sl_status run_checked(struct server *server, const grpc_op *ops, size_t n_ops, int64_t deadline_ns) {
    return sl_rpc_batch_run_looking(server->call, ops, n_ops, deadline_ns, server->edition > 0 ? end_if_revoked : NULL,
                                    server);
}

// Opens a call. The caller unrefs server_out->call.
static void open_call(struct sl_rpc_channel *channel, const struct sl_rpc_method *method, int64_t deadline_ns,
                      struct sl_rpc_call *parent, struct server *server_out) {
    server_out->credentials = channel->credentials;
    server_out->edition = sl_rpc_channel_edition(channel); // before the call, which may renew the channel
    server_out->call = sl_rpc_channel_call(channel, method->path, deadline_ns, parent);
}

// ---- unary calls ---------------------------------------------------------------------------------------------------

static enum sl_status take_reply(const struct sl_rpc_method *method, grpc_byte_buffer *bytes,
                                 ProtobufCMessage **reply_out, struct sl_error *err) {
    ProtobufCMessage *reply = NULL;
    struct sl_error why;
    SL_FAIL_IF(!bytes, err, SL_ERR_PEER_CORRUPT, "%s: the reply is missing", method->path);
    SL_FAIL_IF(sl_rpc_message_unpack(bytes, "the reply", method->reply, NULL, &reply, &why) != SL_OK, err,
               SL_ERR_PEER_CORRUPT, "%s: %s", method->path, why.text);
    if (reply_out) {
        *reply_out = reply;
    } else {
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return SL_OK;
}

// Returns when we end a call that gRPC has not ended.
static int64_t own_deadline(int64_t deadline_ns) {
    const int64_t later_ns = TIMERS_MS * SL_NS_PER_MS;
    return deadline_ns < SL_NO_DEADLINE - later_ns ? deadline_ns + later_ns : SL_NO_DEADLINE;
}

// Sets DEADLINE_EXCEEDED if we cancelled the call at its deadline. Resets the channel's backoff if the backoff may be
// why the call failed, at most once per TRY_AGAIN_MS.
static void check_timers(struct outcome *outcome, int64_t deadline_ns) {
    const int64_t now_ns = sl_now_ns();
    if (outcome->code == GRPC_STATUS_CANCELLED && now_ns >= deadline_ns) {
        outcome->code = GRPC_STATUS_DEADLINE_EXCEEDED;
    }
    long long before_ns = atomic_load(&outcome->channel->tried_again_ns);
    if ((outcome->code == GRPC_STATUS_DEADLINE_EXCEEDED || outcome->code == GRPC_STATUS_UNAVAILABLE) &&
        now_ns - before_ns >= TRY_AGAIN_MS * SL_NS_PER_MS &&
        atomic_compare_exchange_strong(&outcome->channel->tried_again_ns, &before_ns, now_ns)) {
        sl_rpc_channel_reset_backoff(outcome->channel);
    }
}

// Ends a call whose last operations have ended with `status`: returns its status and reply. Consumes outcome and reply.
static enum sl_status finish_call(const struct sl_rpc_method *method, enum sl_status status, int64_t deadline_ns,
                                  struct outcome *outcome, grpc_byte_buffer *reply, ProtobufCMessage **reply_out,
                                  struct sl_error *err) {
    check_timers(outcome, deadline_ns);
    if (status != SL_OK) {
        sl_fail(err, status, "%s: the call could not be started", method->path);
    } else if ((status = outcome_status(outcome, err)) == SL_OK) {
        status = take_reply(method, reply, reply_out, err);
    }
    grpc_byte_buffer_destroy(reply);
    outcome_cleanup(outcome);
    return status;
}

enum sl_status sl_rpc_unary(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                            const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                            ProtobufCMessage **reply_out, struct sl_error *err) {
    const int64_t parents_ns = parent ? sl_rpc_call_deadline_ns(parent) : SL_NO_DEADLINE;
    SL_FAIL_IF(deadline_ns == SL_NO_DEADLINE && parents_ns == SL_NO_DEADLINE, err, SL_ERR_INVALID,
               "%s: a call needs a deadline, its own or its parent's", method->path);
    SL_TRY(check_request(method, request, SL_RPC_UNARY, err));
    if (deadline_ns == SL_NO_DEADLINE) {
        deadline_ns = parents_ns;
    }
    sl_rpc_live_calls_add(1);
    struct server server;
    open_call(channel, method, deadline_ns, parent, &server);
    grpc_byte_buffer *bytes = sl_rpc_message_pack(request), *reply = NULL;
    struct outcome outcome;
    outcome_init(&outcome, channel, method);
    grpc_op ops[N_START_OPS + 2];
    start_ops(ops, bytes, &outcome);
    ops[N_START_OPS] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &reply};
    ops[N_START_OPS + 1] = status_op(&outcome);
    const int64_t until_ns = own_deadline(deadline_ns);
    const size_t n_before = server.edition > 0; // the metadata alone: after that the server can be checked
    if (n_before > 0) {
        (void)sl_rpc_batch_run(server.call, ops, n_before, until_ns); // if it fails, the outcome has the reason
    }
    // If the status is among the operations, gRPC reports success regardless of the call's outcome.
    enum sl_status status = run_checked(&server, ops + n_before, N_START_OPS + 2 - n_before, until_ns);
    grpc_byte_buffer_destroy(bytes);
    status = finish_call(method, status, deadline_ns, &outcome, reply, reply_out, err);
    grpc_call_unref(server.call);
    sl_rpc_live_calls_add(-1);
    return status;
}

// ---- requests in parts ---------------------------------------------------------------------------------------------

// Sends all messages one after the other. SL_ERR_CANCELLED: the call has ended before the last one.
static enum sl_status send_all(struct server *server, const ProtobufCMessage *(*next_fn)(void *arg), void *arg,
                               int64_t deadline_ns) {
    const grpc_op close = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    grpc_op begin = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    struct sl_rpc_trace_entry trace;
    sl_rpc_trace_attach(&trace, &begin);
    enum sl_status status = sl_rpc_batch_run(server->call, &begin, 1, deadline_ns);
    const ProtobufCMessage *message;
    while (status == SL_OK && (message = next_fn(arg)) != NULL) {
        grpc_byte_buffer *bytes = sl_rpc_message_pack(message);
        const grpc_op send = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = bytes};
        status = run_checked(server, &send, 1, deadline_ns);
        grpc_byte_buffer_destroy(bytes);
        if (status == SL_OK) {
            end_if_revoked(server);
        }
    }
    return status == SL_OK ? sl_rpc_batch_run(server->call, &close, 1, deadline_ns) : status;
}

enum sl_status sl_rpc_upload(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                             const ProtobufCMessage *(*next_fn)(void *arg), void *arg, int64_t deadline_ns,
                             ProtobufCMessage **reply_out, struct sl_error *err) {
    SL_FAIL_IF(method->kind != SL_RPC_BIDI || deadline_ns == SL_NO_DEADLINE, err, SL_ERR_INTERNAL,
               "%s: is not called in parts, or without a deadline", method->path);
    sl_rpc_live_calls_add(1);
    struct server server;
    open_call(channel, method, deadline_ns, NULL, &server);
    grpc_byte_buffer *reply = NULL;
    struct outcome outcome;
    outcome_init(&outcome, channel, method);
    (void)send_all(&server, next_fn, arg, deadline_ns); // if it fails, the outcome has the reason
    const grpc_op ops[] = {
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &outcome.initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &reply},
        status_op(&outcome)};
    enum sl_status status = run_checked(&server, ops, sizeof ops / sizeof *ops, own_deadline(deadline_ns));
    status = finish_call(method, status, deadline_ns, &outcome, reply, reply_out, err);
    grpc_call_unref(server.call);
    sl_rpc_live_calls_add(-1);
    return status;
}

// ---- streams -------------------------------------------------------------------------------------------------------

struct sl_rpc_stream {
    struct server server;
    const struct sl_rpc_method *method;
    struct outcome outcome; // readable by us when status_done
    struct sl_rpc_tag sent_tag, status_tag, read_tag;
    atomic_bool is_connected; // the metadata were sent; only if there are lists of revoked servers
    pthread_mutex_t mutex;    // guards the fields below
    struct sl_bell changed;
    grpc_byte_buffer *landing, *messages[AHEAD]; // a ring of those that wait for the reader
    int first, n_messages;
    size_t n_bytes; // of these
    bool is_reading, read_done, status_done, closed;
    int n_pending;
    void (*news)(void *arg);
    void *news_arg;
};

// Returns whether there is a message, or the end: a read without a message means the end, and then the status follows.
static bool has_next(const struct sl_rpc_stream *stream) {
    return stream->n_messages > 0 || (stream->read_done && stream->status_done);
}

static grpc_byte_buffer *take_message(struct sl_rpc_stream *stream) {
    if (stream->n_messages == 0) {
        return NULL;
    }
    grpc_byte_buffer *bytes = stream->messages[stream->first];
    stream->first = (stream->first + 1) % AHEAD;
    stream->n_messages--;
    stream->n_bytes -= grpc_byte_buffer_length(bytes);
    return bytes;
}

static void free_stream(struct sl_rpc_stream *stream) {
    pthread_mutex_unlock(&stream->mutex);
    for (grpc_byte_buffer *bytes; (bytes = take_message(stream)) != NULL;) {
        grpc_byte_buffer_destroy(bytes);
    }
    outcome_cleanup(&stream->outcome);
    grpc_call_unref(stream->server.call);
    pthread_mutex_destroy(&stream->mutex);
    free(stream);
}

// Ends one of the tags under way. has_news: the reader may go on. Lock held; unlocks, and may free the stream.
static void complete(struct sl_rpc_stream *stream, bool has_news) {
    if (--stream->n_pending == 0 && stream->closed) {
        free_stream(stream);
        return;
    }
    if (has_news && !stream->closed) {
        if (stream->news) {
            stream->news(stream->news_arg);
        }
        sl_bell_ring(&stream->changed, &stream->mutex, INT_MAX); // the stream may be freed from here on
    } else {                                                     // else no thread could go on
        pthread_mutex_unlock(&stream->mutex);
    }
}

static void on_sent(struct sl_rpc_tag *tag, bool ok) {
    struct sl_rpc_stream *stream = (struct sl_rpc_stream *)((char *)tag - offsetof(struct sl_rpc_stream, sent_tag));
    atomic_store(&stream->is_connected, ok);
    pthread_mutex_lock(&stream->mutex);
    complete(stream, false);
}

static void on_status(struct sl_rpc_tag *tag, bool ok) {
    (void)ok; // always, if the status is among the operations
    struct sl_rpc_stream *stream = (struct sl_rpc_stream *)((char *)tag - offsetof(struct sl_rpc_stream, status_tag));
    pthread_mutex_lock(&stream->mutex);
    stream->status_done = true;
    complete(stream, has_next(stream));
}

// Returns whether another message should be read now, and notes it. Lock held.
static bool begin_reading(struct sl_rpc_stream *stream) {
    const bool reads = !stream->is_reading && !stream->read_done && !stream->closed && stream->n_messages < AHEAD &&
                       stream->n_bytes < AHEAD_BYTES;
    stream->is_reading |= reads;
    stream->n_pending += reads;
    return reads;
}

// Starts operations that n_pending counts already.
static enum sl_status start_counted(struct sl_rpc_stream *stream, const grpc_op *ops, size_t n_ops,
                                    struct sl_rpc_tag *tag) {
    const enum sl_status status = sl_rpc_batch_start(stream->server.call, ops, n_ops, tag);
    if (status != SL_OK) {
        pthread_mutex_lock(&stream->mutex);
        complete(stream, false);
    }
    return status;
}

static enum sl_status post_read(struct sl_rpc_stream *stream) {
    const grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &stream->landing};
    return start_counted(stream, &op, 1, &stream->read_tag);
}

static void on_read(struct sl_rpc_tag *tag, bool ok) {
    (void)ok; // no message: the status tells the reason
    struct sl_rpc_stream *stream = (struct sl_rpc_stream *)((char *)tag - offsetof(struct sl_rpc_stream, read_tag));
    pthread_mutex_lock(&stream->mutex);
    stream->is_reading = false;
    if (stream->landing) {
        stream->messages[(stream->first + stream->n_messages++) % AHEAD] = stream->landing;
        stream->n_bytes += grpc_byte_buffer_length(stream->landing);
        stream->landing = NULL;
    } else {
        stream->read_done = true;
    }
    if (!begin_reading(stream)) {
        complete(stream, has_next(stream));
        return;
    }
    pthread_mutex_unlock(&stream->mutex);
    const enum sl_status posted = post_read(stream); // this tag still counts: the stream stays
    pthread_mutex_lock(&stream->mutex);
    if (posted != SL_OK) { // gRPC refuses a read of a call that has ended
        stream->is_reading = false;
        stream->read_done = true;
    }
    complete(stream, has_next(stream));
}

// Starts the stream's call, and the first read of it.
static enum sl_status start_stream(struct sl_rpc_stream *stream, const grpc_op ops[N_START_OPS + 1]) {
    const int n_before = stream->server.edition > 0; // the metadata alone: after that the server can be checked
    int n_left = n_before + 2;                       // tags to start
    stream->n_pending = n_left;                      // no other thread knows it yet
    stream->is_reading = true;
    enum sl_status status = SL_OK;
    if (n_before > 0) {
        n_left--;
        status = start_counted(stream, ops, 1, &stream->sent_tag);
    }
    if (status == SL_OK) {
        n_left--;
        status = start_counted(stream, ops + n_before, (size_t)(N_START_OPS + 1 - n_before), &stream->status_tag);
    }
    if (status == SL_OK) {
        n_left--;
        status = post_read(stream);
    }
    SL_LOCKED(&stream->mutex);
    stream->n_pending -= n_left;
    return status;
}

enum sl_status sl_rpc_stream_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                                  const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                                  struct sl_rpc_stream **stream_out, struct sl_error *err) {
    SL_TRY(check_request(method, request, SL_RPC_SERVER_STREAM, err));
    SL_NEW_OR_FAIL(struct sl_rpc_stream, stream, err, "%s: no memory for a stream", method->path);
    stream->method = method;
    stream->sent_tag.fn = on_sent;
    stream->status_tag.fn = on_status;
    stream->read_tag.fn = on_read;
    pthread_mutex_init(&stream->mutex, NULL);
    outcome_init(&stream->outcome, channel, method);
    sl_rpc_live_calls_add(1);
    open_call(channel, method, deadline_ns, parent, &stream->server);

    grpc_byte_buffer *bytes = sl_rpc_message_pack(request);
    grpc_op ops[N_START_OPS + 1];
    start_ops(ops, bytes, &stream->outcome);
    ops[N_START_OPS] = status_op(&stream->outcome);
    const enum sl_status status = start_stream(stream, ops);
    grpc_byte_buffer_destroy(bytes);
    SL_FAIL_OR(status != SL_OK, sl_rpc_stream_close(&stream), err, status, "%s: the stream could not be started",
               method->path);
    *stream_out = stream;
    return SL_OK;
}

static enum sl_status stream_end(const struct sl_rpc_stream *stream, struct sl_error *err) {
    SL_TRY(outcome_status(&stream->outcome, err));
    if (err) { // distinguishes the orderly end from a server's own NOT_FOUND
        *err = (struct sl_error){.status = SL_OK};
    }
    return SL_ERR_NOT_FOUND;
}

// Ends the stream if its server was revoked. Before the metadata were sent, gRPC may still authenticate it.
static void check_server(struct sl_rpc_stream *stream) {
    if (atomic_load(&stream->is_connected)) {
        end_if_revoked(&stream->server);
    }
}

// Waits until there is a message, or the end. Looks meanwhile whether the server was revoked, if there are lists of
// revoked ones. False: there is none until the deadline. Lock held.
static bool await_next(struct sl_rpc_stream *stream, int64_t deadline_ns) {
    bool is_over = false;
    while (!has_next(stream) && !is_over) {
        const int64_t look_ns = stream->server.edition > 0 ? sl_deadline_in_ms(SL_RPC_LOOK_MS) : SL_NO_DEADLINE;
        const int64_t until_ns = deadline_ns < look_ns ? deadline_ns : look_ns;
        if (sl_bell_wait(&stream->changed, &stream->mutex, until_ns) == SL_ERR_DEADLINE) {
            is_over = until_ns == deadline_ns;
            pthread_mutex_unlock(&stream->mutex);
            check_server(stream);
            pthread_mutex_lock(&stream->mutex);
        }
    }
    return has_next(stream);
}

enum sl_status sl_rpc_stream_next(struct sl_rpc_stream *stream, int64_t wait_ms, ProtobufCMessage **message_out,
                                  struct sl_error *err) {
    const int64_t deadline_ns = sl_deadline_in_ms(wait_ms);
    check_server(stream);
    pthread_mutex_lock(&stream->mutex);
    if (!await_next(stream, deadline_ns)) {
        pthread_mutex_unlock(&stream->mutex);
        return SL_AGAIN;
    }
    grpc_byte_buffer *bytes = take_message(stream);
    const bool reads = begin_reading(stream); // if as many waited as may
    pthread_mutex_unlock(&stream->mutex);
    if (!bytes) {
        return stream_end(stream, err);
    }
    ProtobufCMessage *message = NULL;
    enum sl_status status = take_reply(stream->method, bytes, &message, err);
    grpc_byte_buffer_destroy(bytes);
    const enum sl_status posted = reads ? post_read(stream) : SL_OK;
    if (status == SL_OK && posted != SL_OK) {
        protobuf_c_message_free_unpacked(message, NULL);
        status = sl_fail(err, posted, "%s: the stream cannot go on", stream->method->path);
    }
    SL_TRY_OR(status, sl_rpc_stream_cancel(stream));
    atomic_store(&stream->outcome.channel->has_answered, true);
    *message_out = message;
    return SL_OK;
}

void sl_rpc_stream_on_news(struct sl_rpc_stream *stream, void (*fn)(void *arg), void *arg) {
    SL_LOCKED(&stream->mutex);
    stream->news = fn;
    stream->news_arg = arg;
    fn(arg);
}

void sl_rpc_stream_cancel(struct sl_rpc_stream *stream) {
    grpc_call_cancel(stream->server.call, NULL); // does nothing if the call has ended
}

void sl_rpc_stream_close(struct sl_rpc_stream **stream) {
    SL_TAKE_OR_RETURN(s, stream);
    grpc_call_cancel(s->server.call, NULL);
    sl_rpc_live_calls_add(-1);
    pthread_mutex_lock(&s->mutex);
    s->closed = true;
    if (s->n_pending > 0) { // a cancelled call's operations complete at once: the last one frees the stream
        pthread_mutex_unlock(&s->mutex);
    } else {
        free_stream(s);
    }
}
