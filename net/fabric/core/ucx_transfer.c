// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: endpoints of UCX, messages over them, and one-sided transfers.
 *
 * Design: a message begins with the number that its receiver gave the sender over their link. Numbers are random:
 *         messages without a known number are dropped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/fabric/core/ucx_internal.h"

static_assert(sizeof(struct iovec) == sizeof(ucp_dt_iov_t) &&
                  offsetof(struct iovec, iov_base) == offsetof(ucp_dt_iov_t, buffer) &&
                  offsetof(struct iovec, iov_len) == offsetof(ucp_dt_iov_t, length),
              "a scatter list is one for both");

enum sl_status sl_ucx_status(ucs_status_t status) {
    switch (status) {
    case UCS_OK:
        return SL_OK;
    case UCS_INPROGRESS:
        return SL_INPROGRESS;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
        return SL_ERR_EXHAUSTED;
    case UCS_ERR_BUSY:
    case UCS_ERR_ALREADY_EXISTS:
        return SL_ERR_EXISTS;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return SL_ERR_UNSUPPORTED;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return SL_ERR_INVALID;
    case UCS_ERR_CANCELED:
        return SL_ERR_CANCELLED;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
        return SL_ERR_PEER_LOST;
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_SHMEM_SEGMENT:
        return SL_ERR_IO;
    default:
        return UCS_IS_LINK_ERROR(status) || UCS_IS_ENDPOINT_ERROR(status) ? SL_ERR_PEER_LOST : SL_ERR_INTERNAL;
    }
}

// ---- endpoints -------------------------------------------------------------------------------------------------------

static void on_error(void *arg, ucp_ep_h, ucs_status_t status) {
    struct sl_peer *peer = arg;
    peer->fabric->ucx->events->on_lost(peer, SL_ERR_PEER_LOST, ucs_status_string(status));
}

static void on_met(void *request, ucs_status_t status, void *user_data) {
    (void)status; // after a failure nothing is pending
    struct sl_peer *peer = user_data;
    peer->n_operations--;
    peer->ep_met = true;
    ucp_request_free(request);
}

/*
 * UCX 1.13 pairs two endpoints by one request of each side; the two may cross. A request that arrives after its
 * endpoint was closed is answered by a new endpoint. The other side, to which our own request announced the closed one,
 * then aborts its process (ucp_ep.inl: `remote_id == ucp_ep_ext_control(ep)->remote_ep_id', from
 * ucp_wireup_process_reply()). Its request arrives before its answer to ours, and no flush ends before that answer.
 */
static void await_handshake(struct sl_peer *peer) {
    const ucp_request_param_t with = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = on_met, .user_data = peer};
    peer->ep_met = !UCS_PTR_IS_PTR(ucp_ep_flush_nbx(peer->ep, &with));
    peer->n_operations += !peer->ep_met;
}

enum sl_status sl_ucx_connect(struct sl_peer *peer, const void *address, size_t bytes, struct sl_error *err) {
    (void)bytes; // UCX reads its own length
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                              .address = address,
                              .err_handler = {on_error, peer},
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER};
    ucp_ep_h ep = NULL;
    ucs_status_t ucs = ucp_ep_create(peer->fabric->ucx->worker, &params, &ep);
    SL_FAIL_IF(ucs != UCS_OK, err, sl_ucx_status(ucs), "no way of UCX to it: %s", ucs_status_string(ucs));
    peer->ep = ep;
    await_handshake(peer);
    return SL_OK;
}

void sl_ucx_disconnect(struct sl_peer *peer) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    void *request = ucp_ep_close_nbx(peer->ep, &param);
    peer->ep = NULL;
    peer->ep_closing = UCS_PTR_IS_PTR(request) ? request : NULL;
}

bool sl_ucx_is_disconnected(struct sl_peer *peer) {
    if (peer->ep_closing && ucp_request_check_status(peer->ep_closing) != UCS_INPROGRESS) {
        ucp_request_free(peer->ep_closing);
        peer->ep_closing = NULL;
    }
    return peer->ep_closing == NULL;
}

// Writes the lanes of an endpoint, which the caller frees; NULL: no memory. UCX 1.13 has no query for them, but prints
// them: a line such as "lane[1]: 0:rc_mlx5/mlx5_0:1.0 md[0] -> ... rma#0 am".
static void print_lanes(const struct sl_peer *peer, char **text_out) {
    size_t bytes = 0;
    *text_out = NULL;
    FILE *file = open_memstream(text_out, &bytes);
    if (file) {
        ucp_ep_print_info(peer->ep, file);
        fclose(file);
    }
}

bool sl_ucx_shares_memory(const struct sl_peer *peer) {
    char *text;
    print_lanes(peer, &text);
    const bool shares = text && strstr(text, ":posix/");
    free(text);
    return shares;
}

// Returns the transport of an endpoint's one-sided writes. tcp counts only if there is nothing better.
void sl_ucx_transport(const struct sl_peer *peer, char *name_out, size_t name_bytes) {
    char *text;
    print_lanes(peer, &text);
    snprintf(name_out, name_bytes, "unknown");
    static const char *const best_first[] = {":rc_", ":dc_", ":posix/", ":self/", ":tcp/"};
    for (size_t i = 0; text && i < sizeof best_first / sizeof *best_first; i++) {
        const char *at = strstr(text, best_first[i]);
        if (at) {
            snprintf(name_out, name_bytes, "%.*s", (int)strcspn(at + 1, "/ \n"), at + 1);
            break;
        }
    }
    free(text);
}

// ---- messages --------------------------------------------------------------------------------------------------------

// Passes the handle of the region that contains the data, so that the transfer need not register it.
static void use_region(struct sl_fabric *fabric, const void *data, size_t bytes, ucp_request_param_t *with) {
    const struct sl_region *region = sl_fabric_region(fabric, data, bytes);
    if (region && region->handle) {
        with->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        with->memh = region->handle;
    }
}

static void on_sent(void *request, ucs_status_t status, void *user_data) {
    struct sl_peer_send *send = user_data;
    send->peer->fabric->ucx->events->on_sent(send, sl_ucx_status(status));
    ucp_request_free(request);
}

void sl_ucx_send(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes) {
    ucp_request_param_t with = {.op_attr_mask =
                                    UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                .cb.send = on_sent,
                                .user_data = send,
                                .flags = send->eager ? UCP_AM_SEND_FLAG_EAGER : 0};
    if (send->n_iov > 0) {
        with.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        with.datatype = ucp_dt_make_iov();
        data = send->iov;
        bytes = send->n_iov;
    } else if (bytes > 0) {
        use_region(send->peer->fabric, data, bytes, &with);
    }
    void *request =
        ucp_am_send_nbx(send->peer->ep, id, &send->to, sizeof send->to + send->header_bytes, data, bytes, &with);
    if (!UCS_PTR_IS_PTR(request)) {
        send->peer->fabric->ucx->events->on_sent(send, sl_ucx_status(UCS_PTR_STATUS(request)));
    }
}

ucs_status_t sl_ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    const struct sl_binding *binding = arg;
    struct sl_fabric *fabric = binding->verb->fabric;
    uint64_t number = 0;
    bool has_number = header_bytes >= sizeof number;
    if (has_number) {
        memcpy(&number, header, sizeof number);
    }
    struct sl_message message = {.header = (const uint8_t *)header + (has_number ? sizeof number : 0),
                                 .header_bytes = header_bytes - (has_number ? sizeof number : 0),
                                 .data = data,
                                 .bytes = bytes,
                                 .on_its_way = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0};
    fabric->ucx->events->on_message(fabric, number, binding->handler->id, &message);
    return message.taken ? UCS_INPROGRESS : UCS_OK;
}

struct receive {
    struct sl_peer *peer;
    sl_received_fn done;
    void *arg;
};

static void received(struct receive *receive, ucs_status_t status, size_t bytes) {
    receive->peer->n_operations--;
    receive->done(receive->arg, receive->peer, sl_ucx_status(status), bytes);
    free(receive);
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    received(user_data, status, bytes);
    ucp_request_free(request);
}

bool sl_ucx_receive(struct sl_peer *peer, struct sl_message *message, void *to, sl_received_fn done, void *arg) {
    struct receive *receive = malloc(sizeof *receive);
    if (!receive) {
        return false;
    }
    *receive = (struct receive){peer, done, arg};
    ucp_request_param_t with = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                .cb.recv_am = on_received,
                                .user_data = receive};
    use_region(peer->fabric, to, message->bytes, &with);
    message->taken = true;
    peer->n_operations++;
    void *descriptor = (void *)(uintptr_t)message->data;
    void *request = ucp_am_recv_data_nbx(peer->fabric->ucx->worker, descriptor, to, message->bytes, &with);
    if (!UCS_PTR_IS_PTR(request)) { // ended already, successfully or not
        received(receive, UCS_PTR_STATUS(request), message->bytes);
    }
    return true;
}

// ---- one-sided -------------------------------------------------------------------------------------------------------

static void on_op(void *request, ucs_status_t status, void *user_data) {
    struct sl_peer_op *op = user_data;
    op->peer->n_operations--;
    op->done(op, sl_ucx_status(status));
    ucp_request_free(request);
}

static enum sl_status started(struct sl_peer_op *op, void *request) {
    if (UCS_PTR_IS_PTR(request)) {
        op->peer->n_operations++;
        return SL_INPROGRESS;
    }
    return sl_ucx_status(UCS_PTR_STATUS(request));
}

static ucp_request_param_t param_of(struct sl_peer_op *op) {
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = on_op, .user_data = op};
}

// Returns device memory as the network sees it, and sets its type.
static const void *seen(struct sl_fabric *fabric, const void *data, size_t bytes, ucp_request_param_t *with) {
    const struct sl_region *region = sl_fabric_region(fabric, data, bytes);
    if (!region || !region->seen) {
        return data;
    }
    if (sl_region_is_cuda(region)) {
        with->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        with->memory_type = UCS_MEMORY_TYPE_CUDA;
    }
    return region->seen + ((const uint8_t *)data - region->base);
}

enum sl_status sl_peer_put(struct sl_peer_op *op, const struct sl_remote_region *region, const void *data, size_t bytes,
                           uint64_t remote) {
    ucp_request_param_t with = param_of(op);
    use_region(op->peer->fabric, data, bytes, &with);
    data = seen(op->peer->fabric, data, bytes, &with);
    return started(op, ucp_put_nbx(op->peer->ep, data, bytes, remote, region->rkey, &with));
}

enum sl_status sl_peer_get(struct sl_peer_op *op, const struct sl_remote_region *region, void *data, size_t bytes,
                           uint64_t remote) {
    ucp_request_param_t with = param_of(op);
    use_region(op->peer->fabric, data, bytes, &with);
    return started(op, ucp_get_nbx(op->peer->ep, data, bytes, remote, region->rkey, &with));
}

enum sl_status sl_peer_flush(struct sl_peer_op *op) {
    ucp_request_param_t with = param_of(op);
    return started(op, ucp_ep_flush_nbx(op->peer->ep, &with));
}
