// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one-sided reads: ranges of a peer's memory into ours, without a thread of the peer where the transport can do
 *          that (shared memory, RDMA); on TCP the peer's progress thread sends them.
 *
 * Vocabulary: window  memory of a region, of which its owner has opened parts for reading; a window's ticket is its name
 *             fetch   ranges on their way
 *
 * What holds where. By message (TCP) the owner checks every range: it is inside of what the window shows, or refused; a window that
 * is closed refuses everything. Without a message nobody checks: whoever has a ticket is told where the window lies, and
 * UCX's key for that is one of the whole region, so it could read all of that, and on shared memory write. A peer of which that must
 * not be believed is one to run with transport tcp. Here a reader keeps to the window all the same, and to what is mapped.
 * The owner must not change what is being read; reads under way when a window closes may still see the bytes, or what comes there
 * next, so their memory must not be unmapped (regions live as long as their fabric).
 */
#pragma once

#include "fabric/request.h"

struct sl_window;

/*
 * A window that shows nothing yet. Offsets count from base. [base, base + bytes) must lie in a region (SL_ERR_INVALID), and the
 * fabric must listen (SL_ERR_PRECONDITION).
 * *ticket_out is malloc'd, at most SL_TICKET_MAX_BYTES, the caller's to free.
 */
enum sl_status sl_window_open(struct sl_fabric *fabric, void *base, size_t bytes, struct sl_window **window_out,
                              uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err);
// [at, at + bytes) may be read from now on. SL_ERR_INVALID: not inside the window. Not behind the fabric's end.
enum sl_status sl_window_show(struct sl_window *window, const void *at, size_t bytes, struct sl_error *err);
void sl_window_close(struct sl_window **window); // accepts NULL, nulls; also after the fabric was destroyed

struct sl_fetch_range {
    uint64_t offset; // in the window
    void *to;
    size_t bytes;
};

struct sl_fetch;

/*
 * The list of ranges is copied; `to` must stay until the fetch is closed, and is best in a region of this fabric. Returns
 * at once. Neighbours (in the window and in memory) travel as one range. SL_ERR_INVALID: not a window's ticket, or of
 * another fabric than the connection's. SL_ERR_RANGE: outside of the window.
 */
enum sl_status sl_fetch_open(struct sl_connection *connection, const uint8_t *ticket, size_t ticket_bytes,
                             const struct sl_fetch_range *ranges, size_t n_ranges, int64_t deadline_ns,
                             struct sl_fetch **fetch_out, struct sl_error *err);
// As sl_fabric_request_wait(). SL_ERR_PEER_STALE: the window is closed (by message).
enum sl_status sl_fetch_wait(struct sl_fetch *fetch, int64_t until_ns, struct sl_error *err);
void sl_fetch_close(
    struct sl_fetch **fetch); // accepts NULL, nulls; when it returns nothing writes to the ranges' `to` any more
