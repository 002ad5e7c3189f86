// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what UCX does for us: messages and one-sided transfers over shared memory and RDMA, between peers that have met
 *          over a link. Only ucx.c and ucx_transfer.c include its headers.
 *
 * Design: UCX listens to nothing and finds nobody: peers tell each other the addresses of their workers over their link,
 *         and each makes an endpoint of its own to the other's. Its TCP transport, which obeys whoever connects to it, is
 *         started only where it was asked for by name (ucx-tcp).
 *
 * Threads: the progress thread.
 */
#pragma once

#include "fabric/core/core.h"

struct sl_ucx_events {
    // number: what the message began with, which says who sent it; 0: nothing.
    void (*on_message)(struct sl_fabric *fabric, uint64_t number, unsigned id, struct sl_message *message);
    void (*on_sent)(struct sl_peer_send *send, enum sl_status status);
    void (*on_lost)(struct sl_peer *peer, enum sl_status status, const char *text);
};

// Nothing for transport tcp. events must stay.
enum sl_status sl_ucx_start(struct sl_fabric *fabric, const struct sl_ucx_events *events, struct sl_error *err);
bool sl_ucx_knows_cuda(const struct sl_fabric *fabric); // by whatever transport; for any thread
// Returns whether this UCX puts from a device's memory without the processor, as 1.16 and newer do; writes its version.
bool sl_ucx_puts_from_devices(char *version_out, size_t bytes);
void sl_ucx_stop(struct sl_fabric *fabric); // also one that has not started completely
bool sl_ucx_progress(struct sl_ucx *ucx);
int sl_ucx_arm(struct sl_ucx *ucx); // the descriptor that tells of news from now on; -1: there is news already
// Of the worker, for HELLO; there until sl_ucx_stop().
const void *sl_ucx_address(const struct sl_ucx *ucx, size_t *bytes_out);

// ---- endpoints: peer->ep ---------------------------------------------------------------------------------------------

// address is a stranger's: its bytes were sent by a peer that may be anybody.
enum sl_status sl_ucx_connect(struct sl_peer *peer, const void *address, size_t bytes, struct sl_error *err);
void sl_ucx_disconnect(struct sl_peer *peer); // everything under way ends with an error, perhaps later
bool sl_ucx_is_disconnected(struct sl_peer *peer);
void sl_ucx_transport(const struct sl_peer *peer, char *name_out, size_t name_bytes);

void sl_ucx_send(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes);
// What sl_peer_receive() does for a message of UCX.
bool sl_ucx_receive(struct sl_peer *peer, struct sl_message *message, void *to, sl_received_fn done, void *arg);

// ---- memory ----------------------------------------------------------------------------------------------------------

enum sl_status sl_ucx_map(struct sl_fabric *fabric, size_t bytes, struct sl_region *region, struct sl_error *err);
// Memory that is there: of a region with base, bytes and seen.
enum sl_status sl_ucx_register(struct sl_fabric *fabric, struct sl_region *region, struct sl_error *err);
void sl_ucx_unmap(struct sl_fabric *fabric, struct sl_region *region);
// place is a peer's word: what it leads to is found out, not believed.
enum sl_status sl_ucx_attach(struct sl_peer *peer, const struct sl_place *place, struct sl_remote_region *region,
                             struct sl_error *err);
void sl_ucx_detach(struct sl_remote_region *region);
