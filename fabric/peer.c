// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: connections: made and accepted, kept alive by heartbeats, given up when an error or silence says so.
 *
 *      CONNECTING --- HELLO of the right epoch: on_hello -------------------> UP
 *      CONNECTING --- no HELLO in time, another epoch: peer_close ----------> CLOSING
 *      UP ----------- error callback, silence, BYE, stop: peer_close -------> CLOSING
 *      CLOSING ------ endpoint closed, all requests completed: settle ------> freed
 *
 * CONNECTING  messages may be sent (UCX queues them); ships wait; grants are not served
 * UP          the epochs match; ships flow; the endpoint and the remote keys may be used
 * CLOSING     ships and grants have been told; nothing may be sent; requests still complete, with errors
 *
 * Invariants: an endpoint is never created inside a callback of UCX, and never closed inside one.
 *             A request holds its peer: peer->n_requests counts them, and a peer with requests is not freed.
 *             A process that was restarted at the same address has another epoch, and is another peer.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "fabric/line.h"

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
    send->peer->n_requests--;
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
    send->peer->n_requests++;
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
                                  peer->fabric->config.heartbeat_ms};
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
    struct sl_peer *peer = calloc(1, sizeof *peer);
    if (!peer) {
        sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a connection");
        return NULL;
    }
    peer->fabric = fabric;
    peer->born_ns = peer->heard_ns = sl_now_ns();
    peer->silence_ns = SL_MISSED_BEATS * fabric->config.heartbeat_ms * SL_NS_PER_MS;
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

// Attach the owner's region, and find out whether a put to it is more than an emulation.
struct sl_remote_region *sl_peer_region(struct sl_peer *peer, const struct sl_ticket *ticket, struct sl_error *err) {
    const struct sl_wire_ticket *head = &ticket->head;
    uint64_t hash = sl_hash(ticket->rkey, head->rkey_bytes, 0);
    for (struct sl_remote_region *at = peer->regions; at; at = at->next) {
        if (at->packed_hash == hash && at->packed_bytes == head->rkey_bytes) {
            return at;
        }
    }
    struct sl_remote_region *region = calloc(1, sizeof *region);
    if (!region) {
        sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a remote region");
        return NULL;
    }
    ucs_status_t ucs = ucp_ep_rkey_unpack(peer->ep, ticket->rkey, &region->rkey);
    if (ucs != UCS_OK) {
        sl_fail(err, SL_ERR_PEER_LOST, "remote region of %s: %s", peer->name, ucs_status_string(ucs));
        free(region);
        return NULL;
    }
    /*
     * ucp_rkey_ptr() succeeds exactly when the region has been attached to this process's address space: shared
     * memory, really mapped. Whether puts then take that way is a matter of the endpoint's lanes.
     */
    void *mapped = NULL;
    char transport[32];
    sl_fabric_transport(peer->ep, transport, sizeof transport);
    bool shared =
        head->host_id == peer->fabric->host_id && ucp_rkey_ptr(region->rkey, head->remote_address, &mapped) == UCS_OK;
    bool rdma = strncmp(transport, "rc_", 3) == 0 || strncmp(transport, "dc_", 3) == 0;
    region->one_sided = rdma || (shared && strcmp(transport, "posix") == 0);
    region->mapping = shared ? (intptr_t)((uintptr_t)mapped - (uintptr_t)head->remote_address) : 0;
    region->packed_hash = hash;
    region->packed_bytes = head->rkey_bytes;
    region->next = peer->regions;
    peer->regions = region;
    return region;
}

// ---- hearing ---------------------------------------------------------------------------------------------------

struct sl_peer *sl_peer_heard(struct sl_fabric *fabric, const ucp_am_recv_param_t *param) {
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

struct sl_peer *sl_peer_sender(struct sl_fabric *fabric, const char *what, size_t header_bytes, size_t least,
                               const ucp_am_recv_param_t *param) {
    struct sl_peer *peer = sl_peer_heard(fabric, param);
    if (!peer || peer->state != PEER_UP || header_bytes < least) {
        sl_fabric_unexpected(fabric, what, header_bytes);
        return NULL;
    }
    return peer;
}

ucs_status_t sl_peer_on_hello(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_peer *peer = sl_peer_heard(fabric, param);
    struct sl_wire_hello hello;
    (void)data;
    if (!peer || peer->state != PEER_CONNECTING || header_bytes < sizeof hello) {
        sl_fabric_unexpected(fabric, "HELLO", header_bytes + bytes);
        return UCS_OK;
    }
    memcpy(&hello, header, sizeof hello);
    if (hello.magic != SL_WIRE_MAGIC || hello.version != SL_WIRE_VERSION || hello.heartbeat_ms < 1 ||
        hello.heartbeat_ms > 3600 * 1000) {
        sl_fabric_unexpected(fabric, "HELLO of another version", header_bytes + bytes);
        return UCS_OK; // it will be given up as never connected
    }
    if (!peer->connector) {
        say_hello(peer, hello.wanted);
    }
    uint64_t met = peer->connector ? hello.epoch : fabric->epoch;
    uint64_t wanted = peer->connector ? peer->wanted : hello.wanted;
    if (met != wanted) { // the connector closes; the acceptor has told it enough
        peer->epoch = hello.epoch;
        fabric->peers_changed = true;
        return UCS_OK;
    }
    int64_t silence_ns = SL_MISSED_BEATS * hello.heartbeat_ms * SL_NS_PER_MS;
    peer->silence_ns = silence_ns > peer->silence_ns ? silence_ns : peer->silence_ns;
    peer->epoch = hello.epoch;
    peer->state = PEER_UP;
    atomic_fetch_add(&fabric->stats.peers_connected, 1);
    sl_log_debug("fabric", "connected peer=%s epoch=%016llx", peer->name, (unsigned long long)peer->epoch);
    return UCS_OK;
}

ucs_status_t sl_peer_on_beat(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ucp_am_recv_param_t *param) {
    (void)header, (void)data;
    if (!sl_peer_heard(arg, param)) {
        sl_fabric_unexpected(arg, "BEAT", header_bytes + bytes);
    }
    return UCS_OK;
}

ucs_status_t sl_peer_on_bye(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                            const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    (void)header, (void)header_bytes, (void)data, (void)bytes;
    struct sl_peer *peer = sl_peer_heard(fabric, param);
    if (peer) {
        peer->goodbye = true;
        fabric->peers_changed = true;
    }
    return UCS_OK;
}

// ---- losing ----------------------------------------------------------------------------------------------------

void sl_peer_close(struct sl_peer *peer, enum sl_status status, const char *why) {
    if (peer->state == PEER_CLOSING) {
        return;
    }
    struct sl_fabric *fabric = peer->fabric;
    if (peer->state == PEER_UP) {
        atomic_fetch_sub(&fabric->stats.peers_connected, 1);
    }
    if (!peer->goodbye && !peer->parting) {
        atomic_fetch_add(&fabric->stats.peers_lost, 1);
        sl_log_warn("fabric", "lost peer=%s: %s", peer->name, why);
    }
    peer->state = PEER_CLOSING;
    fabric->peers_changed = true;
    char text[SL_ANSWER_TEXT_BYTES];
    snprintf(text, sizeof text, "%s: %s", peer->name, why);
    sl_ships_peer_closing(fabric, peer, status, text);
    sl_grants_peer_closing(fabric, peer, status, text);
    sl_lines_peer_closing(fabric, peer, status, text);
    sl_questions_peer_closing(fabric, peer);
    sl_fetches_peer_closing(fabric, peer);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    void *request = ucp_ep_close_nbx(peer->ep, &param);
    if (UCS_PTR_IS_PTR(request)) {
        peer->closing = request;
    } else {
        peer->closed = true;
    }
}

static void free_peer(struct sl_peer *peer) {
    sl_grants_peer_gone(peer->fabric, peer);
    while (peer->regions) {
        struct sl_remote_region *region = peer->regions;
        peer->regions = region->next;
        ucp_rkey_destroy(region->rkey);
        free(region);
    }
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
        if (peer->state == PEER_CLOSING && peer->closed && peer->n_requests == 0) {
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

void sl_peers_tick(struct sl_fabric *fabric, int64_t now_ns) {
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        if (peer->state == PEER_CONNECTING && now_ns - peer->born_ns > SL_CONNECT_NS) {
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
        } else if (!peer->beating && now_ns - peer->beat_ns >= fabric->config.heartbeat_ms * SL_NS_PER_MS) {
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
