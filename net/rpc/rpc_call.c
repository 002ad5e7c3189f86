// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one call at the server, from its request to gRPC until it is freed.
 *
 *      created --accept_tag ok--> accepted --its request--> handled --finish--> freed with the last reference
 *         \----accept_tag failed (the server stops)--> freed
 *
 * Design: the handler, the close operation (which reports that the client has gone) and the final status hold
 *         references. A unary call's reply, or the last message of a stream, is kept and travels in one batch with the status. A
 *         client may never read it, or never send its request: such calls end after a time, and when too many wait for their
 *         clients, the caller with most of them loses the one that waits longest.
 * Threads: a handler may send on one thread and receive on another; each operation on one thread at a time.
 */
#include <assert.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/rpc/rpc_internal.h"

// A client that cancels a call within this time, before it got a message, never wanted the answer. The time is long because
// a loaded server notices a cancellation late. A cancellation after a message does not count: a gateway cancels Watch as
// soon as its own HTTP client leaves.
#define AT_ONCE_MS 250

#define LARGE_REPLY (64 << 10) // smaller ones do not wait for others to be read
#define UNREAD_S    5          // after which a caller that has read none is not waited for

#define OWNER(tag, member) ((struct sl_rpc_call *)((char *)(tag)-offsetof(struct sl_rpc_call, member)))

// ---- all calls of a server -----------------------------------------------------------------------------------------

void sl_rpc_calls_init(struct sl_rpc_calls *calls, int64_t most_unsent) {
    pthread_mutex_init(&calls->mutex, NULL);
    calls->unsent.most = most_unsent;
}

void sl_rpc_calls_cleanup(struct sl_rpc_calls *calls) {
    pthread_mutex_destroy(&calls->mutex);
}

static void enter(struct sl_rpc_calls *calls) {
    SL_LOCKED(&calls->mutex);
    calls->n++;
}

static void leave(struct sl_rpc_calls *calls) {
    pthread_mutex_lock(&calls->mutex);
    calls->n--;
    sl_bell_ring(&calls->gone, &calls->mutex, 1); // the server may be freed from here on
}

// Takes a call out of a line. False: it is not in it. Lock held.
static bool leave_line(struct sl_rpc_call *call, struct sl_rpc_line *line) {
    if (call->line != line) {
        return false;
    }
    *(call->older ? &call->older->newer : &line->oldest) = call->newer;
    *(call->newer ? &call->newer->older : &line->newest) = call->older;
    line->n--;
    line->bytes -= call->line_bytes;
    line->owned[call->owner] -= call->line_bytes;
    call->line = NULL;
    return true;
}

// Adds a call to a line. Lock held.
static void join_line(struct sl_rpc_line *line, struct sl_rpc_call *call, size_t bytes) {
    call->line = line;
    call->line_bytes = SL_RPC_CALL_BYTES + (int64_t)bytes;
    call->joined_ns = sl_now_ns();
    line->n++;
    line->bytes += call->line_bytes;
    line->owned[call->owner] += call->line_bytes;
    call->older = line->newest;
    call->newer = NULL;
    *(line->newest ? &line->newest->newer : &line->oldest) = call;
    line->newest = call;
}

// Takes a call out of a line that is too long: of the callers with most bytes there, the one that waits longest; the
// newest stays. So a caller with few calls loses none to one with many. NULL: there is room. Lock held.
static struct sl_rpc_call *make_room(struct sl_rpc_line *line) {
    if ((line->n <= line->most && line->bytes <= SL_RPC_LINE_BYTES) || line->n <= 1) {
        return NULL;
    }
    size_t most = 0;
    for (size_t i = 1; i < SL_RPC_OWNERS; i++) {
        most = line->owned[i] > line->owned[most] ? i : most;
    }
    struct sl_rpc_call *call = line->oldest;
    while (call->owner != most && call != line->newest) {
        call = call->newer;
    }
    call = call == line->newest ? line->oldest : call;
    leave_line(call, line);
    return call;
}

// Takes a call out of a line that waits since before a time, or must make room. NULL: there is none. Lock held.
static struct sl_rpc_call *take_out(struct sl_rpc_line *line, int64_t before_ns) {
    struct sl_rpc_call *oldest = line->oldest;
    if (oldest && oldest->joined_ns < before_ns) {
        leave_line(oldest, line);
        return oldest;
    }
    return make_room(line);
}

static struct sl_rpc_call *take_out_unsent(struct sl_rpc_calls *calls, int64_t before_ns) {
    SL_LOCKED(&calls->mutex);
    struct sl_rpc_call *call = take_out(&calls->unsent, before_ns);
    if (call) {
        atomic_fetch_add(&call->refs, 1);
        atomic_store(&call->has_made_room, true);
    }
    return call;
}

static void cancel_unsent(void *call) {
    grpc_call_cancel_with_status(call, GRPC_STATUS_RESOURCE_EXHAUSTED, "the reply was not read", NULL);
}

void sl_rpc_calls_end_unsent(struct sl_rpc_calls *calls, int64_t before_ns, struct sl_rpc_call *newest) {
    struct sl_rpc_call *call;
    while ((call = take_out_unsent(calls, before_ns)) != NULL) { // without the lock: gRPC may work for long
        sl_fiber_call(cancel_unsent, call->call);
        if (newest && newest->owner == call->owner) {
            sl_rpc_call_count_waste(newest);
        }
        sl_rpc_call_unref(call);
    }
}

// Puts a call that is to be sent into the line. Lock held.
static void begin_sending(struct sl_rpc_call *call) {
    if (call->line) { // it is there
        return;
    }
    join_line(&call->calls->unsent, call, call->reply ? grpc_byte_buffer_length(call->reply) : 0);
}

// Returns whether the caller must read other replies first: of a line that is full, or of its own part. Those of a caller with
// few never wait; when the line is full, one of the caller with most is ended for them. Lock held.
static bool must_wait(const struct sl_rpc_call *call, int64_t bytes) {
    const struct sl_rpc_line *line = &call->calls->unsent;
    const int64_t part = line->bytes + bytes > SL_RPC_LINE_BYTES ? SL_RPC_LINE_BYTES / 16 : SL_RPC_LINE_BYTES / 4;
    return line->owned[call->owner] > 0 && line->owned[call->owner] + bytes > part;
}

void sl_rpc_call_await_room(struct sl_rpc_call *call) {
    struct sl_rpc_calls *calls = call->calls;
    const int64_t bytes = call->reply ? (int64_t)grpc_byte_buffer_length(call->reply) : 0, began_ns = sl_now_ns();
    SL_LOCKED(&calls->mutex);
    if (bytes < LARGE_REPLY || calls->waiting_bytes + bytes > SL_RPC_WAITING_BYTES) {
        return;
    }
    calls->waiting_bytes += bytes;
    while (must_wait(call, bytes) && !sl_rpc_call_cancelled(call)) {
        const int64_t read_ns = calls->read_ns[call->owner], since_ns = read_ns > began_ns ? read_ns : began_ns;
        if (sl_bell_wait(&calls->left, &calls->mutex, since_ns + UNREAD_S * SL_NS_PER_S) != SL_OK &&
            calls->read_ns[call->owner] == read_ns) {
            break;
        }
    }
    calls->waiting_bytes -= bytes;
    begin_sending(call); // before another that waits looks
}

void sl_rpc_call_await(struct sl_rpc_call *call) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < call->metadata.count; i++) {
        const grpc_metadata *one = &call->metadata.metadata[i];
        n_bytes += GRPC_SLICE_LENGTH(one->key) + GRPC_SLICE_LENGTH(one->value);
    }
    SL_LOCKED(&call->calls->mutex);
    join_line(&call->bound->quota->awaited, call, n_bytes);
}

bool sl_rpc_call_leave_line(struct sl_rpc_call *call, struct sl_rpc_line *line) {
    SL_LOCKED(&call->calls->mutex);
    return leave_line(call, line);
}

struct sl_rpc_call *sl_rpc_calls_take_out(struct sl_rpc_calls *calls, struct sl_rpc_line *line, int64_t before_ns) {
    SL_LOCKED(&calls->mutex);
    return take_out(line, before_ns);
}

struct sl_rpc_call *sl_rpc_calls_take_out_of(struct sl_rpc_calls *calls, struct sl_rpc_line *line, size_t owner) {
    SL_LOCKED(&calls->mutex);
    struct sl_rpc_call *call = line->oldest;
    while (call && call->owner != owner) {
        call = call->newer;
    }
    if (call) {
        leave_line(call, line);
    }
    return call;
}

enum sl_status sl_rpc_calls_wait(struct sl_rpc_calls *calls, int64_t deadline_ns) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&calls->mutex);
    while (calls->n && status == SL_OK) {
        status = sl_bell_wait(&calls->gone, &calls->mutex, deadline_ns);
    }
    status = calls->n ? SL_ERR_DEADLINE : SL_OK;
    return status;
}

// ---- callers that are revoked ----------------------------------------------------------------------------------------

void sl_rpc_call_note_accepted(struct sl_rpc_call *call) {
    SL_LOCKED(&call->calls->mutex);
    call->next_accepted = call->calls->accepted;
    call->at_accepted = &call->calls->accepted;
    if (call->next_accepted) {
        call->next_accepted->at_accepted = &call->next_accepted;
    }
    call->calls->accepted = call;
}

static void forget_accepted(struct sl_rpc_call *call) {
    SL_LOCKED(&call->calls->mutex);
    if (call->at_accepted) {
        *call->at_accepted = call->next_accepted;
        if (call->next_accepted) {
            call->next_accepted->at_accepted = call->at_accepted;
        }
    }
}

// Returns the call after `call`, or the first, with a reference; passes over those that are about to be freed. NULL: there is none.
static struct sl_rpc_call *next_accepted(struct sl_rpc_calls *calls, const struct sl_rpc_call *call) {
    SL_LOCKED(&calls->mutex);
    for (struct sl_rpc_call *at = call ? call->next_accepted : calls->accepted; at; at = at->next_accepted) {
        int n = atomic_load(&at->refs);
        while (n > 0 && !atomic_compare_exchange_weak(&at->refs, &n, n + 1)) {
        }
        if (n > 0) {
            return at;
        }
    }
    return NULL;
}

void sl_rpc_calls_end_revoked(struct sl_rpc_calls *calls, const struct sl_rpc_credentials *credentials) {
    const uint64_t edition = sl_rpc_credentials_edition(credentials);
    struct sl_rpc_call *call = edition != calls->edition ? next_accepted(calls, NULL) : NULL;
    calls->edition = edition;
    while (call) { // callers of those that are accepted meanwhile are identified by the new lists
        struct sl_error err;
        if (sl_rpc_check_revoked(credentials, call->call, &err) != SL_OK) {
            sl_log_warn("rpc", "%s is cancelled: %s", call->bound ? call->bound->method->path : "a call", err.text);
            atomic_store(&call->has_made_room, true);
            grpc_call_cancel_with_status(call->call, GRPC_STATUS_PERMISSION_DENIED, err.text, NULL);
        }
        struct sl_rpc_call *next = next_accepted(calls, call);
        sl_rpc_call_unref(call);
        call = next;
    }
}

// ---- one call ------------------------------------------------------------------------------------------------------

struct sl_rpc_call *sl_rpc_call_create(struct sl_rpc_server *server, struct sl_rpc_calls *calls,
                                       const struct sl_rpc_bound *bound) {
    struct sl_rpc_call *call = calloc(1, sizeof *call);
    if (!call) {
        return NULL;
    }
    call->server = server;
    call->calls = calls;
    call->bound = bound;
    atomic_init(&call->deadline_ns, SL_NO_DEADLINE);
    atomic_init(&call->refs, 1);
    atomic_init(&call->cancelled, false);
    atomic_init(&call->has_message, false);
    atomic_init(&call->is_streaming, false);
    atomic_init(&call->has_made_room, false);
    grpc_metadata_array_init(&call->metadata);
    grpc_call_details_init(&call->details);
    pthread_mutex_init(&call->mutex, NULL);
    enter(calls);
    return call;
}

void sl_rpc_call_unref(struct sl_rpc_call *call) {
    if (atomic_fetch_sub(&call->refs, 1) != 1) {
        return;
    }
    struct sl_rpc_calls *calls = call->calls;
    forget_accepted(call);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    grpc_byte_buffer_destroy(call->payload);
    grpc_byte_buffer_destroy(call->reply);
    if (call->call) {
        grpc_call_unref(call->call);
        sl_rpc_live_calls_add(-1);
    }
    pthread_mutex_destroy(&call->mutex);
    free(call);
    leave(calls);
}

// ---- cancellation --------------------------------------------------------------------------------------------------

static void run_on_cancel_locked(struct sl_rpc_call *call) {
    void (*fn)(void *) = call->on_cancel;
    void *arg = call->on_cancel_arg;
    if (!fn) {
        return;
    }
    call->on_cancel = NULL; // call it only once
    call->on_cancel_running = true;
    call->on_cancel_locals = sl_locals();
    pthread_mutex_unlock(&call->mutex);
    fn(arg);
    pthread_mutex_lock(&call->mutex);
    call->on_cancel_running = false;
}

void sl_rpc_call_count_waste(struct sl_rpc_call *call) {
    char *peer = grpc_call_get_peer(call->call);
    if (peer && sl_rpc_resets_of_peer(peer)) {
        sl_rpc_resets_note(call->caller_hash);
        sl_rpc_accept_cut(peer);
    }
    gpr_free(peer);
}

static void on_close(struct sl_rpc_tag *tag, bool ok) {
    (void)ok;
    struct sl_rpc_call *call = OWNER(tag, close_tag);
    const int64_t now_ns = sl_now_ns();
    // A gateway's users may leave before a stream's first message. Handlers that have begun are limited by the quota.
    const bool is_answered =
        atomic_load(&call->has_message) || atomic_load(&call->is_streaming) || atomic_load(&call->has_made_room);
    if (call->close_cancelled && !is_answered && now_ns < atomic_load(&call->deadline_ns) &&
        now_ns - call->accepted_ns < AT_ONCE_MS * SL_NS_PER_MS) {
        sl_rpc_call_count_waste(call);
    }
    if (call->close_cancelled) {
        pthread_mutex_lock(&call->mutex);
        atomic_store(&call->cancelled, true);
        run_on_cancel_locked(call);
        sl_bell_ring(&call->changed, &call->mutex, INT_MAX);
    }
    sl_rpc_call_unref(call);
}

enum sl_status sl_rpc_call_watch(struct sl_rpc_call *call) {
    const grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                        .data.recv_close_on_server.cancelled = &call->close_cancelled};
    call->close_tag.fn = on_close;
    atomic_fetch_add(&call->refs, 1);
    const enum sl_status status = sl_rpc_batch_start(call->call, &op, 1, &call->close_tag);
    if (status != SL_OK) {
        atomic_fetch_sub(&call->refs, 1); // never the last reference: the caller has one
    }
    return status;
}

const struct sl_identity *sl_rpc_call_identity(const struct sl_rpc_call *call) {
    return &call->caller;
}

uint64_t sl_rpc_call_caller(const struct sl_rpc_call *call) {
    return call->caller_hash;
}

const char *sl_rpc_call_caller_name(const struct sl_rpc_call *call) {
    const struct sl_identity *caller = &call->caller;
    return caller->tenant[0] ? caller->tenant : caller->name[0] ? caller->name : "this client";
}

bool sl_rpc_call_cancelled(const struct sl_rpc_call *call) {
    return atomic_load(&call->cancelled);
}

void sl_rpc_call_on_cancel(struct sl_rpc_call *call, void (*fn)(void *), void *arg) {
    pthread_mutex_lock(&call->mutex);
    call->on_cancel = fn;
    call->on_cancel_arg = arg;
    if (fn && atomic_load(&call->cancelled)) {
        run_on_cancel_locked(call);
    }
    // The callback itself may unregister; it cannot wait for its own end.
    while (!fn && call->on_cancel_running && call->on_cancel_locals != sl_locals()) {
        sl_bell_wait(&call->changed, &call->mutex, SL_NO_DEADLINE);
    }
    sl_bell_ring(&call->changed, &call->mutex, INT_MAX);
}

// ---- messages ------------------------------------------------------------------------------------------------------

// Rejects a message after the last one, or of another type than the method's reply (NULL: it is packed already).
static enum sl_status check_message(const struct sl_rpc_call *call, const ProtobufCMessageDescriptor *type) {
    const struct sl_rpc_method *method = call->bound->method;
    if (sl_rpc_call_cancelled(call)) {
        return SL_ERR_CANCELLED;
    }
    const bool is_other = type && method->kind != SL_RPC_BIDI && type != method->reply;
    if (call->reply || is_other) {
        sl_log_error("rpc", "%s: sends a %s%s", method->path, type ? type->name : "message",
                     is_other ? ", which is not its reply" : " after the last one");
        return SL_ERR_INTERNAL;
    }
    return SL_OK;
}

static void on_sent(struct sl_rpc_tag *tag, bool ok) {
    struct sl_rpc_call *call = OWNER(tag, send_tag);
    if (ok) {
        atomic_store(&call->has_message, true);
    }
    pthread_mutex_lock(&call->mutex);
    call->is_sending = false;
    call->send_failed |= !ok;
    sl_bell_ring(&call->changed, &call->mutex, INT_MAX);
    sl_rpc_call_unref(call);
}

bool sl_rpc_call_wait_sent(struct sl_rpc_call *call, int64_t deadline_ns) {
    SL_LOCKED(&call->mutex);
    while (call->is_sending && sl_bell_wait(&call->changed, &call->mutex, deadline_ns) == SL_OK) {
    }
    return !call->is_sending;
}

enum sl_status sl_rpc_call_flush(struct sl_rpc_call *call) {
    (void)sl_rpc_call_wait_sent(call, sl_deadline_in_ms(call->send_ms));
    SL_LOCKED(&call->mutex);
    if (call->is_sending) {
        sl_log_warn("rpc", "%s: the client has read nothing for %" PRId64 " ms: the call is cancelled",
                    call->bound->method->path, call->send_ms);
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_DEADLINE_EXCEEDED, "the time for a message is over", NULL);
    }
    while (call->is_sending) { // a cancelled call's operations complete at once
        sl_bell_wait(&call->changed, &call->mutex, SL_NO_DEADLINE);
    }
    const bool failed = call->send_failed;
    return failed ? SL_ERR_CANCELLED : SL_OK;
}

// follows: another message or the status does at once, and this one goes out with it.
static enum sl_status send_bytes(struct sl_rpc_call *call, grpc_byte_buffer *bytes, bool follows) {
    grpc_op ops[2] = {0};
    size_t n_ops = 0;
    enum sl_status status = sl_rpc_call_flush(call);
    if (status == SL_OK) {
        if (!call->metadata_sent) {
            call->metadata_sent = true;
            follows = false; // gRPC writes the metadata before it calls the batch complete
            ops[n_ops++].op = GRPC_OP_SEND_INITIAL_METADATA;
        }
        ops[n_ops].op = GRPC_OP_SEND_MESSAGE;
        ops[n_ops].flags = follows ? GRPC_WRITE_BUFFER_HINT : 0;
        ops[n_ops++].data.send_message.send_message = bytes;
        call->is_sending = true; // only this thread sends, and nothing is under way
        call->send_tag.fn = on_sent;
        atomic_fetch_add(&call->refs, 1);
        status = sl_rpc_batch_start(call->call, ops, n_ops, &call->send_tag);
        if (status != SL_OK) {
            call->is_sending = false;
            atomic_fetch_sub(&call->refs, 1); // never the last reference: the caller has one
        }
    }
    grpc_byte_buffer_destroy(bytes); // gRPC has taken the slices
    return status;
}

enum sl_status sl_rpc_call_send(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    if (call->bound->method->kind == SL_RPC_UNARY) {
        return sl_rpc_call_send_last(call, message);
    }
    SL_TRY(check_message(call, message->descriptor));
    return send_bytes(call, sl_rpc_message_pack(message), false);
}

enum sl_status sl_rpc_call_send_last(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    SL_TRY(check_message(call, message->descriptor));
    call->reply = sl_rpc_message_pack(message);
    return SL_OK;
}

enum sl_status sl_rpc_call_send_packed(struct sl_rpc_call *call, const uint8_t *packed, size_t n_bytes, bool follows) {
    SL_TRY(check_message(call, NULL));
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)packed, n_bytes);
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1); // takes a reference of its own
    grpc_slice_unref(slice);
    return send_bytes(call, bytes, follows);
}

enum sl_status sl_rpc_call_receive(struct sl_rpc_call *call, const ProtobufCMessageDescriptor *type,
                                   ProtobufCMessage **message_out, struct sl_error *err) {
    assert(call->bound->method->kind == SL_RPC_BIDI);
    grpc_byte_buffer *bytes = NULL;
    const grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &bytes};
    const int64_t deadline_ns = atomic_load(&call->deadline_ns);
    const enum sl_status status = sl_rpc_batch_run(call->call, &op, 1, deadline_ns);
    SL_FAIL_IF(status != SL_OK, err, status, "%s", sl_status_text(status));
    SL_FAIL_IF(!bytes && sl_now_ns() >= deadline_ns, err, SL_ERR_DEADLINE, "the time for it is over");
    if (!bytes) { // the client has half-closed, or the call has failed (client gone, deadline, message over the limit)
        const bool failed = sl_rpc_call_cancelled(call) || grpc_call_failed_before_recv_message(call->call);
        return failed ? sl_fail(err, SL_ERR_CANCELLED, "%s", sl_status_text(SL_ERR_CANCELLED)) : SL_ERR_NOT_FOUND;
    }
    sl_rpc_account_begin(&call->account, grpc_byte_buffer_length(bytes));
    const enum sl_status unpacked = sl_rpc_message_unpack(bytes, "the message", type, &call->account, message_out, err);
    grpc_byte_buffer_destroy(bytes);
    const enum sl_status over = sl_rpc_account_complain(&call->account, "the message", err);
    return over != SL_OK ? over : unpacked;
}

enum sl_status sl_rpc_call_hold(struct sl_rpc_call *call, size_t bytes, struct sl_error *err) {
    return bytes < INT64_MAX && sl_rpc_account_hold(&call->account, (int64_t)bytes)
               ? SL_OK
               : sl_rpc_account_complain(&call->account, call->bound->method->path, err);
}

void sl_rpc_call_end_message(struct sl_rpc_call *call, bool is_kept) {
    sl_rpc_account_end_message(&call->account, is_kept);
}

int64_t sl_rpc_call_bytes(const struct sl_rpc_call *call) {
    return call->account.taken + call->account.held;
}

void sl_rpc_call_limit(struct sl_rpc_call *call, int64_t deadline_ns) {
    int64_t before_ns = atomic_load(&call->deadline_ns);
    while (deadline_ns < before_ns && !atomic_compare_exchange_weak(&call->deadline_ns, &before_ns, deadline_ns)) {
    }
}

// ---- the end -------------------------------------------------------------------------------------------------------

static void on_finish(struct sl_rpc_tag *tag, bool ok) {
    struct sl_rpc_call *call = OWNER(tag, finish_tag);
    pthread_mutex_lock(&call->calls->mutex);
    if (leave_line(call, &call->calls->unsent) && ok) { // else the client may be gone, and no process needs the result
        call->calls->read_ns[call->owner] = sl_now_ns();
    }
    sl_bell_ring(&call->calls->left, &call->calls->mutex, INT_MAX); // those that wait are of several callers
    sl_rpc_call_unref(call);
}

void sl_rpc_call_finish(struct sl_rpc_call *call, enum sl_status status, const struct sl_error *err) {
    sl_rpc_call_on_cancel(call, NULL, NULL); // the handler's callback argument may be on its stack
    const char *text = status == SL_OK ? "" : err ? err->text : sl_status_text(status);
    char of_peer[sizeof err->text + 16];
    if (status != SL_OK && err && err->reason == SL_REASON_UNCONNECTED) { // another process, not this one, is not there
        snprintf(of_peer, sizeof of_peer, "another process: %s", err->text);
        text = of_peer;
    }
    grpc_slice details = grpc_slice_from_copied_string(text);
    grpc_op ops[3] = {0};
    size_t n_ops = 0;
    if (!call->metadata_sent) {
        ops[n_ops++].op = GRPC_OP_SEND_INITIAL_METADATA;
    }
    if (status == SL_OK && call->reply) {
        ops[n_ops].op = GRPC_OP_SEND_MESSAGE;
        ops[n_ops++].data.send_message.send_message = call->reply;
    }
    ops[n_ops].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[n_ops].data.send_status_from_server.status = (grpc_status_code)sl_rpc_code_of_status(status);
    if (status != SL_OK && err) {
        ops[n_ops].data.send_status_from_server.trailing_metadata_count = sl_rpc_reason_attach(&call->reason, err);
        ops[n_ops].data.send_status_from_server.trailing_metadata = call->reason.metadata;
    }
    ops[n_ops++].data.send_status_from_server.status_details = &details;
    call->finish_tag.fn = on_finish;
    atomic_fetch_add(&call->refs, 1);
    pthread_mutex_lock(&call->calls->mutex);
    begin_sending(call);
    pthread_mutex_unlock(&call->calls->mutex);
    sl_rpc_calls_end_unsent(call->calls, 0, call);
    if (sl_rpc_batch_start(call->call, ops, n_ops, &call->finish_tag) != SL_OK) {
        (void)sl_rpc_call_leave_line(call, &call->calls->unsent);
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_INTERNAL, "the server could not send its status", NULL);
        atomic_fetch_sub(&call->refs, 1); // never the last reference: the caller has one
    }
    grpc_slice_unref(details);
}

int64_t sl_rpc_call_deadline_ns(const struct sl_rpc_call *call) {
    return atomic_load(&call->deadline_ns);
}
