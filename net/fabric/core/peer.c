// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: peers: connects and accepts them, keeps them alive by heartbeats, and gives them up after an error or
 *          silence.
 *
 *      CONNECTING --- HELLO of the right epoch: on_hello -------------------> UP
 *      CONNECTING --- the link is lost, another epoch: peer_close ----------> CLOSING
 *      UP ----------- error, silence, BYE, stop: peer_close ----------------> CLOSING
 *      CLOSING ------ endpoint closed, all operations completed, and the
 *                     same at the other end, or FAREWELL_NS: settle --------> freed
 *
 * CONNECTING  messages may be sent (the link queues them); the verbs wait, and their messages are dropped
 * UP          the epochs match; messages flow; the endpoint and the remote keys may be used
 * CLOSING     the verbs have been told; nothing may be sent; operations still complete, with errors
 *
 * Design: two fabrics meet over one of our links. HELLO also has the address of UCX; if both ends can use it (shared
 *         memory, RDMA), it carries messages and one-sided transfers. The link carries the heartbeats and reports the
 *         other side's end: the kernel closes it with its process.
 *
 *         A side that ends a connection says so over the link when none of its own operations is pending, and waits for
 *         the other side to say the same: only then can no put of the other side land in our memory (peer->quiet). A
 *         peer that does not answer because it is suspended may resume in the middle of a put: peer->quiet stays false.
 *
 * Invariants: neither link nor endpoint is made or closed inside of one of their callbacks. Operations hold their peer:
 *             peer->n_operations counts them, and a peer with operations is not freed. A process that was restarted at
 *             the same address has another epoch, and is another peer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/fabric/core/ucx.h"

#define MISSED_BEATS     3
#define HANDSHAKE_NS     (3 * SL_NS_PER_S) // for the other side's UCX to answer ours before we close
#define HEARTBEAT_MAX_MS 60000             // upper limit for a peer's interval: it is lost after three missed beats
#define FAREWELL_NS      SL_NS_PER_S       // for the other side to end, too

// ---- sending messages ----------------------------------------------------------------------------------------------

struct sl_peer_send *sl_peer_send_create(struct sl_peer *peer, const void *header, size_t header_bytes) {
    struct sl_peer_send *send = calloc(1, sizeof *send + header_bytes);
    if (send) {
        send->peer = peer;
        send->to = peer->its_number;
        send->header_bytes = header_bytes;
        if (header_bytes > 0) {
            memcpy(send->header, header, header_bytes);
        }
    }
    return send;
}

void sl_peer_send_free(struct sl_peer_send *send) {
    sl_fabric_give_buffer(send->peer->fabric, send->buffer);
    free(send->iov);
    free(send);
}

static void finish_send(struct sl_peer_send *send, enum sl_status status) {
    send->peer->n_operations--;
    if (send->done) {
        send->done(send, status);
    }
    sl_peer_send_free(send);
}

static void on_sent(struct sl_link_send *by_link, enum sl_status status) {
    finish_send(SL_CONTAINER(by_link, struct sl_peer_send, by_link), status);
}

static void send_by_link(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes) {
    send->whole = (struct iovec){(void *)(uintptr_t)data, bytes};
    send->by_link = (struct sl_link_send){.id = id,
                                          .header = send->header,
                                          .header_bytes = send->header_bytes,
                                          .parts = send->n_iov > 0 ? send->iov : &send->whole,
                                          .n_parts = send->n_iov > 0 ? send->n_iov : bytes > 0,
                                          .done = on_sent};
    sl_link_send(send->peer->link, &send->by_link);
}

/*
 * Returns true for messages that go over the link, which authenticates its peer by a certificate: heartbeats, messages
 * before UCX is connected, and those that grant access to memory. ABORT goes there too, so that it cannot overtake its
 * CLAIM.
 */
static bool is_of_the_link(enum sl_wire_id id) {
    return id == SL_WIRE_HELLO || id == SL_WIRE_BEAT || id == SL_WIRE_CLAIM || id == SL_WIRE_PLACE ||
           id == SL_WIRE_ABORT || id == SL_WIRE_LOOK || id == SL_WIRE_LOOK_REPLY;
}

void sl_peer_send_start(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes) {
    struct sl_peer *peer = send->peer;
    peer->n_operations++;
    if (peer->state == PEER_CLOSING) {
        finish_send(send, SL_ERR_CANCELLED);
    } else if (peer->ep && !is_of_the_link(id)) {
        sl_ucx_send(send, id, data, bytes);
    } else {
        send_by_link(send, id, data, bytes);
    }
}

// Records the loss; sl_peers_reconcile() handles it.
static void lose(struct sl_peer *peer, enum sl_status status, const char *text) {
    if (peer->error == SL_OK) {
        peer->error = status;
        snprintf(peer->error_text, sizeof peer->error_text, "%s", text);
    }
    peer->fabric->peers_changed = true;
}

void sl_peer_tell(struct sl_peer *peer, enum sl_wire_id id, const void *header, size_t header_bytes) {
    struct sl_peer_send *send = sl_peer_send_create(peer, header, header_bytes);
    if (!send) { // a caller would wait for it until its deadline: end the connection at once instead
        lose(peer, SL_ERR_PEER_LOST, "no memory for a message to it");
        return;
    }
    sl_peer_send_start(send, id, NULL, 0);
}

// Sends HELLO. A peer that wants another epoch (to_stranger) gets no address or number that would help it to gain
// access.
static void say_hello(struct sl_peer *peer, uint64_t wanted, bool to_stranger) {
    struct sl_fabric *fabric = peer->fabric;
    struct {
        struct sl_wire_hello hello;
        uint8_t address[SL_HELLO_ADDRESS_MAX_BYTES];
    } message = {{.magic = SL_WIRE_MAGIC,
                  .version = SL_WIRE_VERSION,
                  .epoch = to_stranger ? SL_EPOCH_OF_ANOTHER : fabric->epoch,
                  .wanted = wanted,
                  .heartbeat_ms = fabric->heartbeat_ms,
                  .host_id = to_stranger ? 0 : fabric->host_id,
                  .number = to_stranger ? 0 : peer->number},
                 {0}};
    size_t bytes = 0;
    if (fabric->ucx && !to_stranger) {
        const void *address = sl_ucx_address(fabric->ucx, &bytes);
        memcpy(message.address, address, bytes);
    }
    message.hello.address_bytes = (uint32_t)bytes;
    sl_peer_tell(peer, SL_WIRE_HELLO, &message, sizeof message.hello + bytes);
}

// ---- making ----------------------------------------------------------------------------------------------------

static struct sl_peer *create_peer(struct sl_fabric *fabric) {
    struct sl_peer *peer = calloc(1, fabric->peer_bytes);
    uint64_t number = 0;
    if (!peer || getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
        free(peer);
        return NULL;
    }
    peer->fabric = fabric;
    peer->number = number | 1;
    sl_liveness_timer_reset(&peer->liveness, sl_now_ns());
    peer->silence_ns = MISSED_BEATS * fabric->heartbeat_ms * SL_NS_PER_MS;
    peer->next = fabric->peers;
    fabric->peers = peer;
    return peer;
}

static void *on_accepted(void *arg, struct sl_link *link, const char *from) {
    struct sl_fabric *fabric = arg;
    // A peer that is accepted while this fabric stops would never get BYE, and would delay the stop.
    struct sl_peer *peer = atomic_load(&fabric->stopping) ? NULL : create_peer(fabric);
    if (peer) {
        peer->link = link;
        snprintf(peer->name, sizeof peer->name, "from %s", from);
    }
    return peer;
}

struct sl_peer *sl_peer_connect(struct sl_fabric *fabric, const char *address, const struct sockaddr_storage *sockaddr,
                                socklen_t sockaddr_bytes, uint64_t epoch, struct sl_error *err) {
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        if (peer->connector && peer->state != PEER_CLOSING && peer->error == SL_OK && peer->wanted == epoch &&
            strcmp(peer->name, address) == 0) {
            return peer;
        }
    }
    struct sl_peer *peer = create_peer(fabric);
    if (!peer) {
        sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a peer");
        return NULL;
    }
    snprintf(peer->name, sizeof peer->name, "%.*s", (int)sizeof peer->name - 1, address);
    if (sl_link_connect(fabric->links, (const struct sockaddr *)sockaddr, sockaddr_bytes, peer, &peer->link, err) !=
        SL_OK) {
        fabric->peers = peer->next;
        free(peer);
        return NULL;
    }
    sl_link_expect(peer->link, address);
    peer->connector = true;
    peer->wanted = epoch;
    say_hello(peer, peer->wanted, false);
    return peer;
}

// ---- hearing ---------------------------------------------------------------------------------------------------

void sl_fabric_unexpected(struct sl_fabric *fabric, const char *what, size_t bytes) {
    fabric->n_unexpected++;
    int64_t now = sl_now_ns();
    if (now - fabric->complained_ns > SL_NS_PER_S) {
        fabric->complained_ns = now;
        sl_log_warn("fabric", "dropped message=%s bytes=%zu dropped_so_far=%llu", what, bytes,
                    (unsigned long long)fabric->n_unexpected);
    }
}

static struct sl_peer *find_peer(struct sl_fabric *fabric, uint64_t number) {
    struct sl_peer *peer = fabric->peers;
    while (peer && peer->number != number) {
        peer = peer->next;
    }
    return peer;
}

// Passes a message to its handler, if its sender may send it and its header is long enough.
static void on_message(struct sl_peer *peer, unsigned id, struct sl_message *message) {
    struct sl_fabric *fabric = peer->fabric;
    const struct sl_binding *binding = id < SL_WIRE_END ? &fabric->bindings[id] : NULL;
    const struct sl_handler *handler = binding ? binding->handler : NULL;
    sl_liveness_timer_reset(&peer->liveness, sl_now_ns());
    if (!handler || peer->state == PEER_CLOSING || message->header_bytes < handler->least ||
        (peer->state != PEER_UP && !handler->early)) {
        if (!handler || handler->name) {
            sl_fabric_unexpected(fabric, handler ? handler->name : "of no kind",
                                 message->header_bytes + message->bytes);
        }
        return;
    }
    handler->run(binding->verb, peer, message);
}

static void on_frame(void *owner, struct sl_link *, const struct sl_link_frame *frame) {
    struct sl_message message = {.header = frame->header,
                                 .header_bytes = frame->header_bytes,
                                 .data = frame->data,
                                 .bytes = frame->bytes,
                                 .on_its_way = frame->data == NULL};
    on_message(owner, frame->id, &message);
}

static void on_lost(void *owner, enum sl_status status, const char *text) {
    lose(owner, status, text);
}

const struct sl_link_events sl_peer_link_events = {on_accepted, on_frame, on_lost};

static void on_ucx_message(struct sl_fabric *fabric, uint64_t number, unsigned id, struct sl_message *message) {
    struct sl_peer *peer = number ? find_peer(fabric, number) : NULL;
    if (peer) {
        on_message(peer, id, message);
    } else {
        sl_fabric_unexpected(fabric, "of nobody", message->header_bytes + message->bytes);
    }
}

const struct sl_ucx_events sl_peer_ucx_events = {on_ucx_message, finish_send, lose};

struct receive {
    struct sl_peer *peer;
    sl_received_fn done;
    void *arg;
};

static void on_received(void *arg, enum sl_status status, size_t bytes) {
    struct receive *receive = arg;
    receive->peer->n_operations--;
    receive->done(receive->arg, receive->peer, status, bytes);
    free(receive);
}

bool sl_peer_receive(struct sl_peer *peer, struct sl_message *message, void *to, sl_received_fn done, void *arg) {
    if (message->data) {
        return sl_ucx_receive(peer, message, to, done, arg);
    }
    struct receive *receive = malloc(sizeof *receive);
    if (!receive) {
        return false;
    }
    *receive = (struct receive){peer, done, arg};
    message->taken = true;
    peer->n_operations++;
    sl_link_receive(peer->link, to, on_received, receive);
    return true;
}

void sl_peer_transport(const struct sl_peer *peer, char *name_out, size_t name_bytes) {
    if (peer->ep) {
        sl_ucx_transport(peer, name_out, name_bytes);
    } else {
        snprintf(name_out, name_bytes, "%s", sl_link_name(peer->link));
    }
}

bool sl_peer_by_rdma(const struct sl_peer *peer) {
    char transport[32];
    sl_peer_transport(peer, transport, sizeof transport);
    return strncmp(transport, "rc_", 3) == 0 || strncmp(transport, "dc_", 3) == 0;
}

// ---- HELLO, BEAT, BYE ------------------------------------------------------------------------------------------------

// Connects UCX, if both ends have it. Otherwise the link carries everything.
static void connect_ucx(struct sl_peer *peer, const struct sl_wire_hello *hello, const void *address) {
    struct sl_fabric *fabric = peer->fabric;
    bool near = peer->near = hello->host_id == fabric->host_id;
    bool reaches_far = fabric->has_rdma || fabric->transport == SL_TRANSPORT_UCX_TCP;
    if (!fabric->ucx || hello->address_bytes == 0 || (!near && !reaches_far)) {
        return;
    }
    struct sl_error err = {0};
    if (sl_ucx_connect(peer, address, hello->address_bytes, &err) != SL_OK) {
        sl_log_debug("fabric", "peer=%s goes over tcp: %s", peer->name, err.text);
    }
}

static void come_up(struct sl_peer *peer, const struct sl_wire_hello *hello) {
    struct sl_fabric *fabric = peer->fabric;
    int64_t silence_ns = MISSED_BEATS * hello->heartbeat_ms * SL_NS_PER_MS;
    peer->silence_ns = silence_ns > peer->silence_ns ? silence_ns : peer->silence_ns;
    peer->epoch = hello->epoch;
    peer->its_number = hello->number;
    peer->state = PEER_UP;
    sl_link_set_met(peer->link);
    atomic_fetch_add(&fabric->peers_connected, 1);
    sl_log_debug("fabric", "connected peer=%s epoch=%016llx", peer->name, (unsigned long long)peer->epoch);
}

static void on_hello(void *, struct sl_peer *peer, struct sl_message *message) {
    struct sl_fabric *fabric = peer->fabric;
    struct sl_wire_hello hello;
    memcpy(&hello, message->header, sizeof hello);
    if (peer->state != PEER_CONNECTING) {
        sl_fabric_unexpected(fabric, "HELLO", message->header_bytes + message->bytes);
        return;
    }
    if (hello.magic != SL_WIRE_MAGIC || hello.version != SL_WIRE_VERSION || hello.heartbeat_ms < 1 ||
        hello.heartbeat_ms > HEARTBEAT_MAX_MS || hello.address_bytes > SL_HELLO_ADDRESS_MAX_BYTES ||
        message->header_bytes != sizeof hello + hello.address_bytes) {
        sl_fabric_unexpected(fabric, "HELLO of another version", message->header_bytes + message->bytes);
        return; // the timeout for connecting ends it
    }
    uint64_t met = peer->connector ? hello.epoch : fabric->epoch;
    uint64_t wanted = peer->connector ? peer->wanted : hello.wanted;
    if (!peer->connector) {
        say_hello(peer, hello.wanted, met != wanted);
    }
    if (met != wanted) { // the connector closes; HELLO has told it enough
        peer->epoch = hello.epoch;
        fabric->peers_changed = true;
        return;
    }
    connect_ucx(peer, &hello, (const uint8_t *)message->header + sizeof hello);
    come_up(peer, &hello);
}

static void on_beat(void *state, struct sl_peer *peer, struct sl_message *message) {
    (void)state, (void)peer, (void)message; // its arrival is the whole message
}

static void on_bye(void *, struct sl_peer *peer, struct sl_message *) {
    peer->goodbye = true;
    peer->fabric->peers_changed = true;
}

// ---- losing ----------------------------------------------------------------------------------------------------

// CLOSING: closes UCX's endpoint when it has met the other end's, or when the other end does not answer in time.
static bool disconnect_ucx(struct sl_peer *peer, int64_t now_ns) {
    if (peer->ep && !peer->ep_met && now_ns - peer->closing_ns < HANDSHAKE_NS) {
        return false;
    }
    if (peer->ep) {
        sl_ucx_disconnect(peer);
    }
    return true;
}

void sl_peer_close(struct sl_peer *peer, enum sl_status status, const char *why) {
    if (peer->state == PEER_CLOSING) {
        return;
    }
    struct sl_fabric *fabric = peer->fabric;
    if (peer->state == PEER_UP) {
        atomic_fetch_sub(&fabric->peers_connected, 1);
    }
    if (peer->state == PEER_CONNECTING && !peer->connector) {
        sl_log_debug("fabric", "never met peer=%s: %s", peer->name, why);
    } else if (!peer->goodbye && !peer->parting) {
        atomic_fetch_add(&fabric->peers_lost, 1);
        sl_log_warn("fabric", "lost peer=%s: %s", peer->name, why);
    }
    peer->state = PEER_CLOSING;
    peer->closing_ns = sl_now_ns();
    fabric->peers_changed = true;
    char text[SL_ANSWER_TEXT_BYTES];
    snprintf(text, sizeof text, "%s: %s", peer->name, why);
    SL_VERBS_WITH(peer_closing, fabric, verb) {
        verb->ops->peer_closing(verb, peer, status, text);
    }
    disconnect_ucx(peer, peer->closing_ns);
}

/*
 * CLOSING: returns true when the peer can be freed. There is nothing to wait for if the other side was never admitted,
 * or ended first.
 */
static bool is_parted(struct sl_peer *peer, int64_t now_ns) {
    if (!disconnect_ucx(peer, now_ns)) {
        return false;
    }
    if (!peer->finished_ns) {
        if (peer->epoch == 0) {
            sl_link_close(&peer->link);
            peer->quiet = true; // it never had access to our memory
            return sl_ucx_is_disconnected(peer) && peer->n_operations == 0;
        }
        sl_link_end_sends(peer->link);
        if (!sl_ucx_is_disconnected(peer) || peer->n_operations > 0) {
            return false;
        }
        sl_link_finish(peer->link);
        peer->finished_ns = now_ns;
    }
    peer->quiet = sl_link_ended_by_peer(peer->link);
    return sl_link_is_over(peer->link) || now_ns - peer->finished_ns > FAREWELL_NS;
}

static void free_peer(struct sl_peer *peer) {
    sl_link_close(&peer->link);
    SL_VERBS_WITH(peer_gone, peer->fabric, verb) {
        verb->ops->peer_gone(verb, peer);
    }
    sl_peer_free_regions(peer);
    free(peer);
}

// Handles, outside of UCX, the events that callbacks have recorded.
void sl_peers_reconcile(struct sl_fabric *fabric) {
    fabric->peers_changed = false;
    struct sl_peer **at = &fabric->peers;
    while (*at) {
        struct sl_peer *peer = *at;
        if (peer->state != PEER_CLOSING) {
            if (peer->error != SL_OK && !peer->goodbye) {
                sl_peer_close(peer, SL_ERR_PEER_LOST, peer->error_text);
            } else if (peer->goodbye) {
                sl_peer_close(peer, SL_ERR_PEER_LOST, "the peer has stopped");
            } else if (peer->connector && peer->epoch != 0 && peer->epoch != peer->wanted) {
                peer->parting = true; // no loss: the wanted process was not there
                sl_peer_close(peer, SL_ERR_PEER_STALE, "another process answers at this address (restarted)");
            }
        }
        if (peer->state == PEER_CLOSING && is_parted(peer, sl_now_ns())) {
            *at = peer->next;
            free_peer(peer);
            continue;
        }
        fabric->peers_changed |= peer->state == PEER_CLOSING;
        at = &peer->next;
    }
}

static void on_beaten(struct sl_peer_send *send, enum sl_status status) {
    (void)status; // the link reports a failure
    send->peer->beating = false;
}

static void tick(void *state, int64_t now_ns) {
    struct sl_fabric *fabric = ((struct sl_verb *)state)->fabric;
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        if (peer->state != PEER_UP) {
            continue;
        }
        int64_t beat_ns = fabric->heartbeat_ms * SL_NS_PER_MS,
                silence_ns = sl_liveness_timer_poll(&peer->liveness, now_ns, beat_ns / 2);
        if (silence_ns > peer->silence_ns) {
            char why[64];
            snprintf(why, sizeof why, "silent for %lld ms", (long long)(silence_ns / SL_NS_PER_MS));
            sl_peer_close(peer, SL_ERR_PEER_LOST, why);
        } else if (!peer->beating && now_ns - peer->beat_ns >= beat_ns) {
            struct sl_peer_send *send = sl_peer_send_create(peer, &fabric->epoch, sizeof fabric->epoch);
            if (send) {
                peer->beat_ns = now_ns;
                peer->beating = true;
                send->done = on_beaten;
                sl_peer_send_start(send, SL_WIRE_BEAT, NULL, 0);
            }
        }
    }
}

const struct sl_verb_ops sl_peer_ops = {
    .state_bytes = sizeof(struct sl_verb),
    .handlers = {{SL_WIRE_HELLO, "HELLO", sizeof(struct sl_wire_hello), true, on_hello},
                 {SL_WIRE_BEAT, "BEAT", 0, true, on_beat},
                 {SL_WIRE_BYE, NULL, 0, true, on_bye}},
    .tick = tick,
};
