// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: UCX's part: messages and one-sided transfers over shared memory and RDMA, between peers that have met over a
 *          link. Only ucx.c and ucx_transfer.c include its headers.
 *
 * Design: UCX does not listen or look for peers: peers send each other the addresses of their workers over their link,
 *         and each makes its own endpoint to the other's. UCX's TCP transport accepts any peer that connects, so it is
 *         started only if it was requested by name (ucx-tcp).
 *
 * Threads: the progress thread.
 */
#pragma once

#include "net/fabric/core/core.h"

struct sl_ucx_events {
    // number: the first field of the message, which identifies its sender; 0: none.
    void (*on_message)(struct sl_fabric *fabric, uint64_t number, unsigned id, struct sl_message *message);
    void (*on_sent)(struct sl_peer_send *send, enum sl_status status);
    void (*on_lost)(struct sl_peer *peer, enum sl_status status, const char *text);
};

// Does nothing for transport tcp. events must stay valid.
enum sl_status sl_ucx_start(struct sl_fabric *fabric, const struct sl_ucx_events *events, struct sl_error *err);
bool sl_ucx_knows_cuda(const struct sl_fabric *fabric); // by any transport; for any thread
// Returns whether this UCX puts from a device's memory without the processor, as 1.16 and newer do; writes its version.
bool sl_ucx_puts_from_devices(char *version_out, size_t bytes);
void sl_ucx_stop(struct sl_fabric *fabric); // also one that has not started completely
bool sl_ucx_progress(struct sl_ucx *ucx);
int sl_ucx_arm(struct sl_ucx *ucx); // returns the descriptor to poll for events; -1: there are events already
// Returns the worker's address, for HELLO; valid until sl_ucx_stop().
const void *sl_ucx_address(const struct sl_ucx *ucx, size_t *bytes_out);

// ---- endpoints: peer->ep ---------------------------------------------------------------------------------------------

// Makes the endpoint. address is untrusted: any peer may have sent these bytes.
enum sl_status sl_ucx_connect(struct sl_peer *peer, const void *address, size_t bytes, struct sl_error *err);
void sl_ucx_disconnect(struct sl_peer *peer); // every pending operation ends with an error, perhaps later
bool sl_ucx_is_disconnected(struct sl_peer *peer);
void sl_ucx_transport(const struct sl_peer *peer, char *name_out, size_t name_bytes);
bool sl_ucx_shares_memory(const struct sl_peer *peer); // returns whether UCX attaches the peer's shared memory

void sl_ucx_send(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes);
// Implements sl_peer_receive() for a message of UCX.
bool sl_ucx_receive(struct sl_peer *peer, struct sl_message *message, void *to, sl_received_fn done, void *arg);

// ---- memory ----------------------------------------------------------------------------------------------------------

// Allocates a region: at region->base, which is reserved address space, or anywhere if that is NULL.
enum sl_status sl_ucx_map(struct sl_fabric *fabric, size_t bytes, struct sl_region *region, struct sl_error *err);
// Registers existing memory: of a region with base, bytes and seen.
enum sl_status sl_ucx_register(struct sl_fabric *fabric, struct sl_region *region, struct sl_error *err);
void sl_ucx_unmap(struct sl_fabric *fabric, struct sl_region *region);
// Attaches a peer's region. The peer made `place`, so the function verifies the memory that it leads to.
enum sl_status sl_ucx_attach(struct sl_peer *peer, const struct sl_place *place, struct sl_remote_region *region,
                             struct sl_error *err);
void sl_ucx_detach(struct sl_remote_region *region);
