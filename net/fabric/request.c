// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the requester's side of requests.
 *
 *      (posted) --- run_open --------------------------------------------------> WAITING    in the table
 *      WAITING --- the connection is up: on_up --------------------------------> SENT
 *      SENT --- REPLY by rendezvous: on_reply ---------------------------------> SENT, receiving
 *      WAITING, SENT --- replied to, refused, late, lost, given up: release ----> GONE
 *
 * The progress thread owns the state; its outcome tells whether a request has ended, and the caller may end that too.
 *
 * Invariants: the caller's buffer is written only between the claim of the outcome and its end. A rendezvous therefore
 *             lands in a buffer of the fabric: it cannot be cancelled, and the caller may give up meanwhile. Nothing
 *             here waits for the other side: a request that is given up is gone for its caller at once, and
 *             reference-counted for the rest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/connection.h"
#include "net/fabric/core/outcome.h"

extern const struct sl_verb_ops sl_fabric_request_ops;

enum request_state { REQUEST_GONE, REQUEST_WAITING, REQUEST_SENT };

struct sl_fabric_request {
    struct sl_connection *connection;
    struct sl_connection_user user; // of the connection
    atomic_int refs; // the caller, the posted command or the table, the send, the receive, a pending cancellation
    struct sl_command open_command, cancel_command;
    struct sl_outcome outcome;
    int64_t deadline_ns;
    uint8_t *reply; // the caller's; written only by the thread that has claimed the outcome
    size_t reply_capacity, reply_bytes;
    // owned by the progress thread
    struct requests *requests;
    enum request_state state;
    uint64_t id;     // the low half is the slot, the high half differs between successive users of the slot
    uint8_t *buffer; // of a reply that is being received
    size_t buffer_bytes;
    size_t body_bytes;
    uint8_t body[];
};

struct requests {
    struct sl_verb verb;
    struct sl_slots slots;
    uint32_t serial;
    _Atomic uint64_t n_open;
};

// ---- the caller's side -----------------------------------------------------------------------------------------------

static void run_open(struct sl_fabric *fabric, struct sl_command *command);
static void run_cancel(struct sl_fabric *fabric, struct sl_command *command);

static void unref(struct sl_fabric_request *request) {
    if (atomic_fetch_sub(&request->refs, 1) == 1) {
        sl_outcome_cleanup(&request->outcome);
        sl_connection_unref(request->connection);
        free(request);
    }
}

enum sl_status sl_fabric_request_open(struct sl_connection *connection, const struct sl_fabric_question *question,
                                      struct sl_fabric_request **request_out, struct sl_error *err) {
    SL_FAIL_IF(question->body_bytes > SL_REQUEST_MAX_BYTES, err, SL_ERR_RANGE, "a request of %zu bytes; at most %u",
               question->body_bytes, SL_REQUEST_MAX_BYTES);
    struct sl_fabric_request *request = malloc(sizeof *request + question->body_bytes);
    SL_FAIL_IF(!request, err, SL_ERR_EXHAUSTED, "no memory for a request of %zu bytes", question->body_bytes);
    memset(request, 0, sizeof *request);
    request->connection = connection;
    sl_connection_ref(connection);
    atomic_init(&request->refs, 2);
    request->open_command.run = run_open;
    request->cancel_command.run = run_cancel;
    sl_outcome_init(&request->outcome);
    request->deadline_ns = question->deadline_ns;
    request->reply = question->reply_out;
    request->reply_capacity = question->reply_capacity;
    request->body_bytes = question->body_bytes;
    if (question->body_bytes > 0) {
        memcpy(request->body, question->body, question->body_bytes);
    }
    if (!sl_gate_post(connection->gate, &request->open_command)) {
        sl_outcome_end(&request->outcome, SL_ERR_CANCELLED, "the fabric has stopped");
        unref(request); // the command's
    }
    *request_out = request;
    return SL_OK;
}

// Called by the caller after it has ended the request: the progress thread forgets it and tells the responder.
static void cancel(struct sl_fabric_request *request) {
    atomic_fetch_add(&request->refs, 1);
    if (!sl_gate_post(request->connection->gate, &request->cancel_command)) {
        unref(request);
    }
}

enum sl_status sl_fabric_request_wait(struct sl_fabric_request *request, int64_t until_ns, size_t *bytes_out,
                                      struct sl_error *err) {
    struct sl_outcome *outcome = &request->outcome;
    if (!sl_outcome_wait(outcome, until_ns < request->deadline_ns ? until_ns : request->deadline_ns)) {
        if (sl_now_ns() < request->deadline_ns) {
            return SL_AGAIN;
        }
        if (sl_outcome_end(outcome, SL_ERR_DEADLINE, "no reply in time")) {
            cancel(request);
        } else {
            sl_outcome_wait(outcome, SL_NO_DEADLINE); // it is just being written
        }
    }
    SL_FAIL_IF(outcome->status != SL_OK, err, outcome->status, "request to %s: %s", request->connection->address,
               outcome->text);
    *bytes_out = request->reply_bytes;
    return SL_OK;
}

bool sl_fabric_request_is_done(const struct sl_fabric_request *request) {
    return sl_outcome_is_done(&request->outcome);
}

void sl_fabric_request_close(struct sl_fabric_request **request) {
    SL_TAKE_OR_RETURN(it, request);
    if (sl_outcome_end(&it->outcome, SL_ERR_CANCELLED, "given up")) {
        cancel(it);
    } else {
        sl_outcome_wait(&it->outcome, SL_NO_DEADLINE); // it may just be being written
    }
    unref(it);
}

// ---- the progress thread's side --------------------------------------------------------------------------------------

// Ends the request for the progress thread, after a pending receive. May free the request.
static void release(struct sl_fabric_request *request) {
    if (request->buffer || request->state == REQUEST_GONE) {
        return;
    }
    sl_slots_give(&request->requests->slots, (uint32_t)request->id);
    sl_connection_leave(request->connection, &request->user);
    request->state = REQUEST_GONE;
    atomic_fetch_sub(&request->requests->n_open, 1);
    unref(request);
}

static void end(struct sl_fabric_request *request, enum sl_status status, const char *text) {
    sl_outcome_end(&request->outcome, status, text);
    release(request);
}

static void on_sent(struct sl_peer_send *send, enum sl_status status) {
    struct sl_fabric_request *request = send->arg;
    if (status != SL_OK) {
        end(request, status, sl_status_text(status));
    }
    unref(request);
}

static void on_up(struct sl_connection_user *user) {
    struct sl_fabric_request *request = SL_CONTAINER(user, struct sl_fabric_request, user);
    struct sl_wire_request header = {request->id, request->reply_capacity, (uint32_t)request->body_bytes, 0};
    struct sl_peer_send *send = sl_peer_send_create(request->connection->peer, &header, sizeof header);
    request->state = REQUEST_SENT;
    if (!send) {
        end(request, SL_ERR_EXHAUSTED, "the requester has no memory for it");
        return;
    }
    send->arg = request;
    send->done = on_sent;
    atomic_fetch_add(&request->refs, 1);
    send->eager = request->body_bytes <= SL_EAGER_MAX_BYTES;
    sl_peer_send_start(send, SL_WIRE_REQUEST, request->body, request->body_bytes);
}

static void on_over(struct sl_connection_user *user, enum sl_status status, const char *text) {
    end(SL_CONTAINER(user, struct sl_fabric_request, user), status, text);
}

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_fabric_request *request = SL_CONTAINER(command, struct sl_fabric_request, open_command);
    struct requests *requests = request->requests = sl_verb_of_fabric(fabric, &sl_fabric_request_ops);
    uint32_t slot = 0;
    if (!sl_outcome_is_open(&request->outcome)) { // given up before it began
        unref(request);
        return;
    }
    if (!sl_slots_take(&requests->slots, request, &slot)) {
        sl_outcome_end(&request->outcome, SL_ERR_EXHAUSTED, "the requester has no memory for it");
        unref(request);
        return;
    }
    request->id = (uint64_t)++requests->serial << 32 | slot;
    request->state = REQUEST_WAITING;
    atomic_fetch_add(&requests->n_open, 1);
    request->user.up = on_up;
    request->user.over = on_over;
    sl_connection_join(request->connection, &request->user);
}

static void tell_cancelled(struct sl_fabric_request *request) {
    if (request->state == REQUEST_SENT && request->connection->peer) {
        struct sl_wire_cancel header = {request->id};
        sl_peer_tell(request->connection->peer, SL_WIRE_CANCEL, &header, sizeof header);
    }
}

static void run_cancel(struct sl_fabric *, struct sl_command *command) {
    struct sl_fabric_request *request = SL_CONTAINER(command, struct sl_fabric_request, cancel_command);
    tell_cancelled(request);
    release(request);
    unref(request);
}

static void tick(void *state, int64_t now_ns) {
    struct requests *requests = state;
    uint32_t id = 0;
    for (struct sl_fabric_request *request; (request = sl_slots_next(&requests->slots, &id)) != NULL;) {
        if (now_ns <= request->deadline_ns) {
            continue;
        }
        if (request->state == REQUEST_WAITING) {
            end(request, SL_ERR_DEADLINE, "no connection in time");
        } else if (sl_outcome_end(&request->outcome, SL_ERR_DEADLINE, "no reply in time")) {
            tell_cancelled(request);
            release(request);
        }
    }
}

// ---- REPLY -----------------------------------------------------------------------------------------------------------

static void deliver(struct sl_fabric_request *request, const void *data, size_t bytes) {
    if (sl_outcome_claim(&request->outcome)) {
        if (bytes > 0) {
            memcpy(request->reply, data, bytes);
        }
        request->reply_bytes = bytes;
        sl_outcome_done(&request->outcome, SL_OK, "");
    }
    release(request);
}

static void free_buffer(struct sl_fabric *fabric, uint8_t *buffer, size_t bytes) {
    if (bytes <= SL_SEGMENT_MAX_BYTES) {
        sl_fabric_give_buffer(fabric, buffer);
    } else {
        free(buffer);
    }
}

static void on_received(void *arg, struct sl_peer *peer, enum sl_status status, size_t bytes) {
    struct sl_fabric_request *request = arg;
    uint8_t *buffer = request->buffer;
    bytes = request->buffer_bytes; // 0 if it failed
    request->buffer = NULL;
    if (status == SL_OK) {
        deliver(request, buffer, bytes);
    } else {
        end(request, SL_ERR_PEER_LOST, sl_status_text(status));
    }
    free_buffer(peer->fabric, buffer, bytes);
}

static void receive_reply(struct sl_peer *peer, struct sl_fabric_request *request, struct sl_message *message) {
    size_t bytes = message->bytes;
    request->buffer = bytes <= SL_SEGMENT_MAX_BYTES ? sl_fabric_take_buffer(peer->fabric) : malloc(bytes);
    request->buffer_bytes = bytes;
    if (!request->buffer || !sl_peer_receive(peer, message, request->buffer, on_received, request)) {
        free_buffer(peer->fabric, request->buffer, bytes);
        request->buffer = NULL;
        end(request, SL_ERR_EXHAUSTED, "the requester has no memory for the reply");
    }
}

static void refuse(struct sl_fabric_request *request, enum sl_status status) {
    char text[SL_ANSWER_TEXT_BYTES];
    switch (status) {
    case SL_ERR_RANGE:
        snprintf(text, sizeof text, "the reply is longer than the %zu bytes there is room for",
                 request->reply_capacity);
        break;
    case SL_ERR_EXHAUSTED:
        snprintf(text, sizeof text, "too many requests without a reply there");
        break;
    case SL_ERR_UNSUPPORTED:
        snprintf(text, sizeof text, "nobody replies to requests there");
        break;
    default:
        snprintf(text, sizeof text, "refused: %s", sl_status_text(status));
        break;
    }
    end(request, status, text);
}

static void on_reply(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct requests *requests = state;
    struct sl_wire_reply reply;
    memcpy(&reply, message->header, sizeof reply);
    struct sl_fabric_request *request = sl_slots_find(&requests->slots, (uint32_t)reply.id);
    if (!request || request->id != reply.id || request->connection->peer != peer || request->state != REQUEST_SENT ||
        request->buffer) {
        return; // it was given up meanwhile
    }
    if (reply.status < 0) {
        refuse(request, (enum sl_status)reply.status);
    } else if (message->bytes > request->reply_capacity) {
        refuse(request, SL_ERR_RANGE);
    } else if (message->on_its_way) {
        receive_reply(peer, request, message);
    } else {
        deliver(request, message->data, message->bytes);
    }
}

// ---- the verb --------------------------------------------------------------------------------------------------------

static void init(void *state) {
    sl_slots_init(&((struct requests *)state)->slots);
}

static void cleanup(void *state) {
    sl_slots_cleanup(&((struct requests *)state)->slots);
}

const struct sl_verb_ops sl_fabric_request_ops = {
    .state_bytes = sizeof(struct requests),
    .handlers = {{SL_WIRE_REPLY, "REPLY", sizeof(struct sl_wire_reply), false, on_reply}},
    .init = init,
    .cleanup = cleanup,
    .gauges = {SL_GAUGE(struct requests, n_open, requests_open)},
    .tick = tick,
};
