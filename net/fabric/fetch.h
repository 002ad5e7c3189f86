// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one-sided reads: ranges of a peer's memory into ours, without a thread of the peer if the transport supports
 *          that (shared memory, RDMA); on TCP the peer's progress thread sends them.
 *
 * Vocabulary: window  memory of a region, of which its owner has opened parts for reading; its ticket is its name
 *             fetch   ranges that are being read
 *
 * Protection: by message (TCP) the owner checks every range: it refuses ranges outside of what the window shows, and
 * everything from a closed window. Without a message there is no such check: a peer with a ticket learns the window's
 * address, and UCX's key covers the whole region. So that peer could read the whole region, and on shared memory write
 * it. Run peers that are not trusted this far with transport tcp. Our reader still stays within the window, and within
 * what is mapped. The owner must not change memory while it is read. Reads that are pending when a window closes may
 * still see the bytes, or what is written there next, so their memory must not be unmapped (regions live as long as
 * their fabric).
 */
#pragma once

#include "net/fabric/request.h"

struct sl_window;

/*
 * Opens a window that shows nothing yet. Offsets count from base. [base, base + bytes) must lie in a region
 * (SL_ERR_INVALID), and the fabric must listen (SL_ERR_PRECONDITION). *ticket_out is malloc'd, at most
 * SL_TICKET_MAX_BYTES; the caller frees it.
 */
enum sl_status sl_window_open(struct sl_fabric *fabric, void *base, size_t bytes, struct sl_window **window_out,
                              uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err);
// Makes [at, at + bytes) readable from now on. SL_ERR_INVALID: not inside the window. Not after the fabric's end.
enum sl_status sl_window_show(struct sl_window *window, const void *at, size_t bytes, struct sl_error *err);
void sl_window_close(struct sl_window **window); // accepts NULL, nulls; also after the fabric was destroyed

struct sl_fetch_range {
    uint64_t offset; // in the window
    void *to;
    size_t bytes;
};

struct sl_fetch_plan {
    const uint8_t *ticket; // of the window
    size_t ticket_bytes;
    const struct sl_fetch_range *ranges; // [n_ranges]
    size_t n_ranges;
    int64_t deadline_ns;
};

struct sl_fetch;

/*
 * Starts a fetch and returns at once. Copies the list of ranges; `to` must stay until the fetch is closed, and is best
 * in a region of this fabric. Adjacent ranges (in the window and in memory) travel as one. SL_ERR_INVALID: not a
 * window's ticket, or of another fabric than the connection's. SL_ERR_RANGE: outside of the window.
 */
enum sl_status sl_fetch_open(struct sl_connection *connection, const struct sl_fetch_plan *plan,
                             struct sl_fetch **fetch_out, struct sl_error *err);
// Waits like sl_fabric_request_wait(). SL_ERR_PEER_STALE: the window is closed (by message).
enum sl_status sl_fetch_wait(struct sl_fetch *fetch, int64_t until_ns, struct sl_error *err);
void sl_fetch_close(
    struct sl_fetch **fetch); // accepts NULL, nulls; after the return nothing writes to the ranges' `to` any more
