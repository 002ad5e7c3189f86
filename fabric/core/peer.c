// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: peers: connected to and accepted, kept alive by heartbeats, given up when an error or silence says so.
 *
 *      CONNECTING --- HELLO of the right epoch: on_hello -------------------> UP
 *      CONNECTING --- no HELLO in time, another epoch: peer_close ----------> CLOSING
 *      UP ----------- error callback, silence, BYE, stop: peer_close -------> CLOSING
 *      CLOSING ------ endpoint closed, all operations completed: settle ------> freed
 *
 * CONNECTING  messages may be sent (UCX queues them); the verbs wait, and their messages are dropped
 * UP          the epochs match; messages flow; the endpoint and the remote keys may be used
 * CLOSING     the verbs have been told; nothing may be sent; operations still complete, with errors
 *
 * Invariants: an endpoint is never created inside a callback of UCX, and never closed inside one.
 *             An operation of UCX holds its peer: peer->n_operations counts them, and a peer with operations is not freed.
 *             A process that was restarted at the same address has another epoch, and is another peer.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "fabric/core/core.h"

#define MISSED_BEATS 3
#define CONNECT_NS   (5 * SL_NS_PER_S)

// ---- sending messages ----------------------------------------------------------------------------------------------

struct sl_peer_send *sl_peer_send_create(struct sl_peer *peer, const void *header, size_t header_bytes) {
    struct sl_peer_send *send = calloc(1, sizeof *send + header_bytes);
    if (send) {
        send->peer = peer;
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

static void send_finish(struct sl_peer_send *send, ucs_status_t status) {
    send->peer->n_operations--;
    if (send->done) {
        send->done(send, status);
    }
    sl_peer_send_free(send);
}

static void on_sent(void *request, ucs_status_t status, void *user_data) {
    send_finish(user_data, status);
    ucp_request_free(request);
}

void sl_peer_send_start(struct sl_peer_send *send, enum sl_wire_id id, size_t header_bytes, const void *data,
                        size_t data_bytes, const ucp_request_param_t *with) {
    ucp_request_param_t param = with ? *with : (ucp_request_param_t){0};
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    param.cb.send = on_sent;
    param.user_data = send;
    param.flags |= UCP_AM_SEND_FLAG_REPLY;
    send->peer->n_operations++;
    if (send->peer->state == PEER_CLOSING) {
        send_finish(send, UCS_ERR_CANCELED);
        return;
    }
    void *request = ucp_am_send_nbx(send->peer->ep, id, send->header, header_bytes, data, data_bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) {
        send_finish(send, UCS_PTR_STATUS(request));
    }
}

void sl_peer_tell(struct sl_peer *peer, enum sl_wire_id id, const void *header, size_t header_bytes) {
    struct sl_peer_send *send = sl_peer_send_create(peer, header, header_bytes);
    if (!send) { // whoever waits for it asks again, or runs into its deadline
        sl_log_error("fabric", "no memory for a message to peer=%s", peer->name);
        return;
    }
    sl_peer_send_start(send, id, header_bytes, NULL, 0, NULL);
}

static void say_hello(struct sl_peer *peer, uint64_t wanted) {
    struct sl_wire_hello hello = {SL_WIRE_MAGIC, SL_WIRE_VERSION, peer->fabric->epoch, wanted,
                                  peer->fabric->heartbeat_ms};
    sl_peer_tell(peer, SL_WIRE_HELLO, &hello, sizeof hello);
}

// ---- making ----------------------------------------------------------------------------------------------------

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
    struct sl_peer *peer = arg;
    (void)ep;
    peer->error = status;
    peer->fabric->peers_changed = true;
}

static struct sl_peer *create_peer(struct sl_fabric *fabric, ucp_ep_params_t *params, struct sl_error *err) {
    struct sl_peer *peer = calloc(1, fabric->peer_bytes);
    if (!peer) {
        sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a peer");
        return NULL;
    }
    peer->fabric = fabric;
    peer->born_ns = peer->heard_ns = sl_now_ns();
    peer->silence_ns = MISSED_BEATS * fabric->heartbeat_ms * SL_NS_PER_MS;
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params->err_handler = (ucp_err_handler_t){on_error, peer};
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    ucs_status_t ucs = ucp_ep_create(fabric->worker, params, &peer->ep);
    if (ucs != UCS_OK) {
        sl_fail(err, SL_ERR_PEER_LOST, "cannot connect: %s", ucs_status_string(ucs));
        free(peer);
        return NULL;
    }
    peer->next = fabric->peers;
    fabric->peers = peer;
    return peer;
}

void sl_peer_on_connection(ucp_conn_request_h request, void *arg) {
    struct sl_fabric *fabric = arg;
    if (fabric->n_connecting == SL_MAX_CONNECTING) {
        ucp_listener_reject(fabric->listener, request);
        sl_fabric_unexpected(fabric, "connection", 0);
        return;
    }
    fabric->connecting[fabric->n_connecting++] = request;
}

void sl_peers_accept(struct sl_fabric *fabric) {
    while (fabric->n_connecting > 0) {
        ucp_conn_request_h request = fabric->connecting[--fabric->n_connecting];
        ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
        char host[INET_ADDRSTRLEN] = "?";
        if (ucp_conn_request_query(request, &attr) == UCS_OK && attr.client_address.ss_family == AF_INET) {
            inet_ntop(AF_INET, &((struct sockaddr_in *)&attr.client_address)->sin_addr, host, sizeof host);
        }
        ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
        struct sl_error err = {0};
        struct sl_peer *peer = create_peer(fabric, &params, &err);
        if (peer) {
            snprintf(peer->name, sizeof peer->name, "from %s", host);
        } else {
            sl_log_warn("fabric", "connection from=%s failed: %s", host, err.text);
        }
    }
}

struct sl_peer *sl_peer_connect(struct sl_fabric *fabric, const char *address, const struct sockaddr_storage *sockaddr,
                                socklen_t sockaddr_bytes, uint64_t epoch, struct sl_error *err) {
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        if (peer->connector && peer->state != PEER_CLOSING && peer->error == UCS_OK && peer->wanted == epoch &&
            strcmp(peer->name, address) == 0) {
            return peer;
        }
    }
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                              .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                              .sockaddr = {(const struct sockaddr *)sockaddr, sockaddr_bytes}};
    struct sl_peer *peer = create_peer(fabric, &params, err);
    if (peer) {
        snprintf(peer->name, sizeof peer->name, "%.*s", (int)sizeof peer->name - 1, address);
        peer->connector = true;
        peer->wanted = epoch;
        say_hello(peer, peer->wanted);
    }
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

static struct sl_peer *find_sender(struct sl_fabric *fabric, const ucp_am_recv_param_t *param) {
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) {
        return NULL;
    }
    struct sl_peer *peer = fabric->peers;
    while (peer && peer->ep != param->reply_ep) {
        peer = peer->next;
    }
    if (!peer || peer->state == PEER_CLOSING) {
        return NULL;
    }
    peer->heard_ns = sl_now_ns();
    return peer;
}

// Every message: to the handler that is bound to it, if its sender may send it and its header is long enough.
ucs_status_t sl_peer_on_message(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                const ucp_am_recv_param_t *param) {
    const struct sl_binding *binding = arg;
    const struct sl_handler *handler = binding->handler;
    struct sl_fabric *fabric = binding->verb->fabric;
    struct sl_peer *peer = find_sender(fabric, param);
    if (!peer || header_bytes < handler->least || (peer->state != PEER_UP && !handler->early)) {
        if (handler->name) {
            sl_fabric_unexpected(fabric, handler->name, header_bytes + bytes);
        }
        return UCS_OK;
    }
    struct sl_message message = {.header = header,
                                 .header_bytes = header_bytes,
                                 .data = data,
                                 .bytes = bytes,
                                 .by_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0};
    handler->run(binding->verb, peer, &message);
    return message.taken ? UCS_INPROGRESS : UCS_OK;
}

struct receive {
    struct sl_peer *peer;
    sl_received_fn done;
    void *arg;
};

static void received(struct receive *receive, ucs_status_t status, size_t bytes) {
    receive->peer->n_operations--;
    receive->done(receive->arg, receive->peer, status, bytes);
    free(receive);
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    received(user_data, status, bytes);
    ucp_request_free(request);
}

bool sl_peer_receive(struct sl_peer *peer, struct sl_message *message, void *to, sl_received_fn done, void *arg) {
    struct receive *receive = malloc(sizeof *receive);
    if (!receive) {
        return false;
    }
    *receive = (struct receive){peer, done, arg};
    ucp_request_param_t with = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                .cb.recv_am = on_received,
                                .user_data = receive};
    sl_fabric_use_region(peer->fabric, to, message->bytes, &with);
    message->taken = true;
    peer->n_operations++;
    void *request = ucp_am_recv_data_nbx(peer->fabric->worker, message->data, to, message->bytes, &with);
    if (!UCS_PTR_IS_PTR(request)) { // over already, well or badly
        received(receive, UCS_PTR_STATUS(request), message->bytes);
    }
    return true;
}

static void on_hello(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_fabric *fabric = peer->fabric;
    struct sl_wire_hello hello;
    (void)state;
    memcpy(&hello, message->header, sizeof hello);
    if (peer->state != PEER_CONNECTING) {
        sl_fabric_unexpected(fabric, "HELLO", message->header_bytes + message->bytes);
        return;
    }
    if (hello.magic != SL_WIRE_MAGIC || hello.version != SL_WIRE_VERSION || hello.heartbeat_ms < 1 ||
        hello.heartbeat_ms > 3600 * 1000) {
        sl_fabric_unexpected(fabric, "HELLO of another version", message->header_bytes + message->bytes);
        return; // it will be given up as never connected
    }
    if (!peer->connector) {
        say_hello(peer, hello.wanted);
    }
    uint64_t met = peer->connector ? hello.epoch : fabric->epoch;
    uint64_t wanted = peer->connector ? peer->wanted : hello.wanted;
    if (met != wanted) { // the connector closes; the acceptor has told it enough
        peer->epoch = hello.epoch;
        fabric->peers_changed = true;
        return;
    }
    int64_t silence_ns = MISSED_BEATS * hello.heartbeat_ms * SL_NS_PER_MS;
    peer->silence_ns = silence_ns > peer->silence_ns ? silence_ns : peer->silence_ns;
    peer->epoch = hello.epoch;
    peer->state = PEER_UP;
    atomic_fetch_add(&fabric->peers_connected, 1);
    sl_log_debug("fabric", "connected peer=%s epoch=%016llx", peer->name, (unsigned long long)peer->epoch);
}

static void on_beat(void *state, struct sl_peer *peer, struct sl_message *message) {
    (void)state, (void)peer, (void)message; // that it came is all it says
}

static void on_bye(void *state, struct sl_peer *peer, struct sl_message *message) {
    (void)state, (void)message;
    peer->goodbye = true;
    peer->fabric->peers_changed = true;
}

// ---- losing ----------------------------------------------------------------------------------------------------

void sl_peer_close(struct sl_peer *peer, enum sl_status status, const char *why) {
    if (peer->state == PEER_CLOSING) {
        return;
    }
    struct sl_fabric *fabric = peer->fabric;
    if (peer->state == PEER_UP) {
        atomic_fetch_sub(&fabric->peers_connected, 1);
    }
    if (!peer->goodbye && !peer->parting) {
        atomic_fetch_add(&fabric->peers_lost, 1);
        sl_log_warn("fabric", "lost peer=%s: %s", peer->name, why);
    }
    peer->state = PEER_CLOSING;
    fabric->peers_changed = true;
    char text[SL_ANSWER_TEXT_BYTES];
    snprintf(text, sizeof text, "%s: %s", peer->name, why);
    SL_VERBS_WITH(peer_closing, fabric, verb) {
        verb->ops->peer_closing(verb, peer, status, text);
    }
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    void *request = ucp_ep_close_nbx(peer->ep, &param);
    if (UCS_PTR_IS_PTR(request)) {
        peer->closing = request;
    } else {
        peer->closed = true;
    }
}

static void free_peer(struct sl_peer *peer) {
    SL_VERBS_WITH(peer_gone, peer->fabric, verb) {
        verb->ops->peer_gone(verb, peer);
    }
    sl_peer_free_regions(peer);
    free(peer);
}

// What the callbacks have noted down is acted upon here, outside of UCX.
void sl_peers_settle(struct sl_fabric *fabric) {
    fabric->peers_changed = false;
    struct sl_peer **at = &fabric->peers;
    while (*at) {
        struct sl_peer *peer = *at;
        if (peer->state != PEER_CLOSING) {
            if (peer->error != UCS_OK) {
                sl_peer_close(peer, SL_ERR_PEER_LOST, ucs_status_string(peer->error));
            } else if (peer->goodbye) {
                sl_peer_close(peer, SL_ERR_PEER_LOST, "the peer has stopped");
            } else if (peer->connector && peer->epoch != 0 && peer->epoch != peer->wanted) {
                peer->parting = true; // nobody is lost: the one we wanted was not there
                sl_peer_close(peer, SL_ERR_PEER_STALE, "another process answers at this address (restarted)");
            }
        }
        if (peer->closing && ucp_request_check_status(peer->closing) != UCS_INPROGRESS) {
            ucp_request_free(peer->closing);
            peer->closing = NULL;
            peer->closed = true;
        }
        if (peer->state == PEER_CLOSING && peer->closed && peer->n_operations == 0) {
            *at = peer->next;
            free_peer(peer);
            continue;
        }
        fabric->peers_changed |= peer->state == PEER_CLOSING;
        at = &peer->next;
    }
}

static void on_beaten(struct sl_peer_send *send, ucs_status_t status) {
    (void)status; // a failure is the error callback's business
    send->peer->beating = false;
}

static void tick(void *state, int64_t now_ns) {
    struct sl_fabric *fabric = ((struct sl_verb *)state)->fabric;
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        if (peer->state == PEER_CONNECTING && now_ns - peer->born_ns > CONNECT_NS) {
            sl_peer_close(peer, SL_ERR_PEER_LOST, "no answer to the connection");
        }
        if (peer->state != PEER_UP) {
            continue;
        }
        if (now_ns - peer->heard_ns > peer->silence_ns) {
            char why[64];
            snprintf(why, sizeof why, "silent for %lld ms", (long long)((now_ns - peer->heard_ns) / SL_NS_PER_MS));
            peer->silent = true;
            sl_peer_close(peer, SL_ERR_PEER_LOST, why);
        } else if (!peer->beating && now_ns - peer->beat_ns >= fabric->heartbeat_ms * SL_NS_PER_MS) {
            struct sl_peer_send *send = sl_peer_send_create(peer, &fabric->epoch, sizeof fabric->epoch);
            if (send) {
                peer->beat_ns = now_ns;
                peer->beating = true;
                send->done = on_beaten;
                sl_peer_send_start(send, SL_WIRE_BEAT, sizeof fabric->epoch, NULL, 0, NULL);
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
