// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the responder's side of requests.
 *
 *      RECEIVING --- the body is here: deliver --------------------------------> OPEN       the owner's
 *      OPEN -------- sl_fabric_incoming_reply(): run_reply --------------------> SENDING    (DELAYED by fault injection)
 *      SENDING ----- sent, or the requester has gone: finish ------------------> freed
 *
 * A request whose requester has gone, or has given up, is cancelled: its reply is not sent. When the fabric stops, open
 * requests are left to their owners, who free them by replying.
 *
 * Threads: any thread may make the owner's calls; the progress thread does everything else. The lock of the gate guards
 *          `replied`, so that a reply either reaches the fabric or finds the request left to it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/core/core.h"
#include "net/fabric/request.h"

#define REQUESTS_MAX_BYTES ((size_t)256 << 20) // bodies held here, from all peers

extern const struct sl_verb_ops sl_fabric_incoming_ops;

enum incoming_state { INCOMING_RECEIVING, INCOMING_OPEN, INCOMING_DELAYED, INCOMING_SENDING };

struct sl_fabric_incoming {
    struct sl_fabric_incoming *next, **link; // of the list
    struct inbox *inbox;
    struct sl_gate *gate;
    struct sl_command reply_command;
    enum incoming_state state;
    struct sl_peer *peer; // NULL: it has gone
    uint64_t id;          // the requester's
    uint64_t capacity;
    atomic_bool is_cancelled;
    bool replied;
    int64_t due_ns; // DELAYED
    // the reply
    const void *reply;
    size_t reply_bytes;
    void (*release)(void *arg);
    void *arg;
    size_t body_bytes;
    uint8_t body[];
};

struct inbox {
    struct sl_verb verb;
    _Atomic(sl_fabric_request_fn) fn;
    void *arg;
    struct sl_fabric_incoming *first;
    size_t body_bytes; // of all of them
    _Atomic uint64_t n_open;
    uint64_t drop_reply, slow_reply; // fault injection: the Nth, counted down, 0: none; ms
};

struct peer_inbox {
    size_t n; // requests of the peer that are here and not yet replied to
};

// ---- the owner's side ------------------------------------------------------------------------------------------------

void sl_fabric_on_request(struct sl_fabric *fabric, sl_fabric_request_fn fn, void *arg) {
    struct inbox *inbox = sl_verb_of_fabric(fabric, &sl_fabric_incoming_ops);
    inbox->arg = arg;
    atomic_store(&inbox->fn, fn);
}

const void *sl_fabric_incoming_body(const struct sl_fabric_incoming *incoming, size_t *bytes_out) {
    *bytes_out = incoming->body_bytes;
    return incoming->body;
}

bool sl_fabric_incoming_is_cancelled(const struct sl_fabric_incoming *incoming) {
    return atomic_load(&((struct sl_fabric_incoming *)(uintptr_t)incoming)->is_cancelled);
}

static void release_and_free(struct sl_fabric_incoming *incoming) {
    if (incoming->release) {
        incoming->release(incoming->arg);
    }
    sl_gate_unref(incoming->gate);
    free(incoming);
}

void sl_fabric_incoming_reply(struct sl_fabric_incoming **incoming, const void *reply, size_t bytes,
                              void (*release)(void *arg), void *arg) {
    struct sl_fabric_incoming *it = *incoming;
    *incoming = NULL;
    it->reply = reply;
    it->reply_bytes = bytes;
    it->release = release;
    it->arg = arg;
    struct sl_gate *gate = sl_gate_ref(it->gate); // `it` may be freed before the unlock
    pthread_mutex_lock(&gate->lock);
    bool open = gate->fabric != NULL;
    if (open) {
        it->replied = true;
        sl_fabric_post(gate->fabric, &it->reply_command);
    }
    pthread_mutex_unlock(&gate->lock);
    sl_gate_unref(gate);
    if (!open) { // the fabric has stopped, and left the request to us
        release_and_free(it);
    }
}

// ---- the list --------------------------------------------------------------------------------------------------------

static size_t *count_of(const struct inbox *inbox, struct sl_peer *peer) {
    return &((struct peer_inbox *)sl_verb_of_peer(inbox, peer))->n;
}

static void enlist(struct inbox *inbox, struct sl_fabric_incoming *incoming) {
    incoming->next = inbox->first;
    incoming->link = &inbox->first;
    if (incoming->next) {
        incoming->next->link = &incoming->next;
    }
    inbox->first = incoming;
    inbox->body_bytes += incoming->body_bytes;
    ++*count_of(inbox, incoming->peer);
    atomic_fetch_add(&inbox->n_open, 1);
}

static void unlist(struct sl_fabric_incoming *incoming) {
    struct inbox *inbox = incoming->inbox;
    *incoming->link = incoming->next;
    if (incoming->next) {
        incoming->next->link = incoming->link;
    }
    inbox->body_bytes -= incoming->body_bytes;
    if (incoming->peer) {
        --*count_of(inbox, incoming->peer);
    }
    atomic_fetch_sub(&inbox->n_open, 1);
}

static void finish(struct sl_fabric_incoming *incoming) {
    unlist(incoming);
    release_and_free(incoming);
}

// ---- replying --------------------------------------------------------------------------------------------------------

static void reply_status(struct sl_peer *peer, uint64_t id, enum sl_status status) {
    struct sl_wire_reply reply = {id, status, 0};
    sl_peer_tell(peer, SL_WIRE_REPLY, &reply, sizeof reply);
}

static void on_replied(struct sl_peer_send *send, enum sl_status) {
    finish(send->arg);
}

static void reply(struct sl_fabric_incoming *incoming) {
    if (!incoming->peer || atomic_load(&incoming->is_cancelled)) {
        finish(incoming);
        return;
    }
    if (incoming->reply_bytes > incoming->capacity) {
        reply_status(incoming->peer, incoming->id, SL_ERR_RANGE);
        finish(incoming);
        return;
    }
    struct sl_wire_reply header = {incoming->id, SL_OK, 0};
    struct sl_peer_send *send = sl_peer_send_create(incoming->peer, &header, sizeof header);
    if (!send) { // the requester's deadline ends it
        finish(incoming);
        return;
    }
    send->arg = incoming;
    send->done = on_replied;
    incoming->state = INCOMING_SENDING;
    send->eager = incoming->reply_bytes <= SL_EAGER_MAX_BYTES;
    sl_peer_send_start(send, SL_WIRE_REPLY, incoming->reply, incoming->reply_bytes);
}

static void run_reply(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_fabric_incoming *incoming = SL_CONTAINER(command, struct sl_fabric_incoming, reply_command);
    struct inbox *inbox = incoming->inbox;
    if (inbox->drop_reply > 0 && --inbox->drop_reply == 0) {
        finish(incoming);
    } else if (inbox->slow_reply > 0 && !atomic_load(&incoming->is_cancelled)) {
        incoming->state = INCOMING_DELAYED;
        incoming->due_ns = sl_deadline_in_ms((int64_t)inbox->slow_reply);
        if (incoming->due_ns < fabric->next_tick_ns) {
            fabric->next_tick_ns = incoming->due_ns;
        }
    } else {
        reply(incoming);
    }
}

// ---- REQUEST ---------------------------------------------------------------------------------------------------------

static void deliver(struct sl_fabric_incoming *incoming) {
    struct inbox *inbox = incoming->inbox;
    if (!incoming->peer || atomic_load(&incoming->is_cancelled) || atomic_load(&inbox->verb.fabric->stopping)) {
        finish(incoming);
        return;
    }
    incoming->state = INCOMING_OPEN;
    atomic_load (&inbox->fn)(inbox->arg, incoming);
}

static void on_received(void *arg, struct sl_peer *, enum sl_status status, size_t) {
    if (status == SL_OK) {
        deliver(arg);
    } else { // the error callback closes the peer
        finish(arg);
    }
}

static enum sl_status refusal(struct inbox *inbox, struct sl_peer *peer, size_t bytes) {
    if (!atomic_load(&inbox->fn)) {
        return SL_ERR_UNSUPPORTED;
    }
    if (atomic_load(&peer->fabric->stopping)) {
        return SL_ERR_CANCELLED;
    }
    return *count_of(inbox, peer) >= SL_MAX_INCOMING || inbox->body_bytes + bytes > REQUESTS_MAX_BYTES
               ? SL_ERR_EXHAUSTED
               : SL_OK;
}

static void on_request(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct inbox *inbox = state;
    struct sl_wire_request request;
    size_t bytes = message->bytes;
    memcpy(&request, message->header, sizeof request);
    if (bytes != request.body_bytes || bytes > SL_REQUEST_MAX_BYTES) {
        sl_fabric_unexpected(peer->fabric, "REQUEST with another length than announced", message->header_bytes + bytes);
        return;
    }
    enum sl_status status = refusal(inbox, peer, bytes);
    struct sl_fabric_incoming *incoming = status == SL_OK ? malloc(sizeof *incoming + bytes) : NULL;
    if (!incoming) {
        reply_status(peer, request.id, status == SL_OK ? SL_ERR_EXHAUSTED : status);
        return;
    }
    memset(incoming, 0, sizeof *incoming);
    incoming->inbox = inbox;
    incoming->gate = sl_gate_ref(peer->fabric->gate);
    incoming->reply_command.run = run_reply;
    incoming->peer = peer;
    incoming->id = request.id;
    incoming->capacity = request.reply_capacity;
    incoming->body_bytes = bytes;
    enlist(inbox, incoming);
    if (!message->on_its_way) {
        if (bytes > 0) {
            memcpy(incoming->body, message->data, bytes);
        }
        deliver(incoming);
    } else if (!sl_peer_receive(peer, message, incoming->body, on_received, incoming)) {
        reply_status(peer, request.id, SL_ERR_EXHAUSTED);
        finish(incoming);
    }
}

// ---- endings ---------------------------------------------------------------------------------------------------------

static void on_cancel(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct inbox *inbox = state;
    struct sl_wire_cancel cancel;
    memcpy(&cancel, message->header, sizeof cancel);
    for (struct sl_fabric_incoming *incoming = inbox->first; incoming; incoming = incoming->next) {
        if (incoming->peer == peer && incoming->id == cancel.id) {
            atomic_store(&incoming->is_cancelled, true);
        }
    }
}

static void peer_closing(void *state, struct sl_peer *peer, enum sl_status, const char *) {
    struct inbox *inbox = state;
    for (struct sl_fabric_incoming *incoming = inbox->first; incoming; incoming = incoming->next) {
        if (incoming->peer == peer) {
            incoming->peer = NULL;
            atomic_store(&incoming->is_cancelled, true);
        }
    }
}

static void tick(void *state, int64_t now_ns) {
    struct inbox *inbox = state;
    struct sl_fabric *fabric = inbox->verb.fabric;
    for (struct sl_fabric_incoming *incoming = inbox->first, *next; incoming; incoming = next) {
        next = incoming->next;
        if (incoming->state == INCOMING_DELAYED && now_ns >= incoming->due_ns) {
            reply(incoming);
        } else if (incoming->state == INCOMING_DELAYED && incoming->due_ns < fabric->next_tick_ns) {
            fabric->next_tick_ns = incoming->due_ns;
        }
    }
}

static void leave(void *state) {
    struct inbox *inbox = state;
    for (struct sl_fabric_incoming *incoming = inbox->first, *next; incoming; incoming = next) {
        next = incoming->next;
        atomic_store(&incoming->is_cancelled, true);
        if (incoming->state == INCOMING_OPEN && !incoming->replied) {
            unlist(incoming);
        } else if (incoming->state == INCOMING_DELAYED) {
            incoming->due_ns = 0;
        }
    }
}

static void stop(void *state) {
    tick(state, sl_now_ns()); // sends delayed replies: all are due now
}

const struct sl_verb_ops sl_fabric_incoming_ops = {
    .state_bytes = sizeof(struct inbox),
    .peer_bytes = sizeof(struct peer_inbox),
    .handlers = {{SL_WIRE_REQUEST, "REQUEST", sizeof(struct sl_wire_request), false, on_request},
                 {SL_WIRE_CANCEL, "CANCEL", sizeof(struct sl_wire_cancel), false, on_cancel}},
    .faults = {{"drop_reply", offsetof(struct inbox, drop_reply)}, {"slow_reply", offsetof(struct inbox, slow_reply)}},
    .gauges = {SL_GAUGE(struct inbox, n_open, incoming_open)},
    .tick = tick,
    .peer_closing = peer_closing,
    .leave = leave,
    .stop = stop,
};
