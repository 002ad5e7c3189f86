// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: windows, and the answers to reads that come by message.
 *
 * Design: a read names ranges of a window; they go back one behind the other in one message, from the window's memory where
 *         it is one range, packed where there are several: a scatter list of small ranges costs more than the copy.
 *         Nothing in a read is believed before it is checked; the reads of a peer that are being answered are bounded,
 *         and with them the memory for packing.
 *
 * Threads: windows are opened and closed by any thread, under fabric->lock; reads are the progress thread's. A window's
 *          memory belongs to a region and so outlives every read of it, also one that was being answered when it closed.
 */
#include <stdlib.h>
#include <string.h>

#include "fabric/line.h"

struct sl_window {
    struct sl_gate *gate;
    uint32_t id; // in fabric->windows
    uint64_t generation;
    uint8_t *base;
    size_t bytes;
};

// ---- the owner's side ------------------------------------------------------------------------------------------------

static bool take_slot(struct sl_fabric *fabric, struct sl_window *window) {
    bool taken = true;
    pthread_mutex_lock(&fabric->lock);
    uint32_t id = 0;
    while (id < fabric->n_windows && fabric->windows[id]) {
        id++;
    }
    if (id == fabric->n_windows) {
        uint32_t n = fabric->n_windows ? 2 * fabric->n_windows : 16;
        struct sl_window **grown = realloc(fabric->windows, n * sizeof *grown);
        taken = grown != NULL;
        if (taken) {
            memset(grown + fabric->n_windows, 0, (n - fabric->n_windows) * sizeof *grown);
            fabric->windows = grown;
            fabric->n_windows = n;
        }
    }
    if (taken) {
        window->id = id;
        window->generation = ++fabric->next_generation;
        fabric->windows[id] = window;
        atomic_fetch_add(&fabric->stats.windows_open, 1);
    }
    pthread_mutex_unlock(&fabric->lock);
    return taken;
}

enum sl_status sl_window_open(struct sl_fabric *fabric, void *base, size_t bytes, struct sl_window **window_out,
                              uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err) {
    if (!fabric->address[0]) {
        return sl_fail(err, SL_ERR_PRECONDITION, "this fabric does not listen, so nobody can read from it");
    }
    const struct sl_region *region = sl_fabric_region(fabric, base, bytes);
    if (!region || bytes == 0) {
        return sl_fail(err, SL_ERR_INVALID, "a window of %zu bytes at %p is not inside a region", bytes, base);
    }
    struct sl_window *window = calloc(1, sizeof *window);
    if (!window) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a window");
    }
    window->gate = sl_gate_ref(fabric->gate);
    window->base = base;
    window->bytes = bytes;
    uint8_t *ticket = NULL;
    if (take_slot(fabric, window)) {
        struct sl_wire_ticket what = {.magic = SL_WIRE_WINDOW_MAGIC,
                                      .generation = window->generation,
                                      .remote_address = (uint64_t)(uintptr_t)base,
                                      .bytes = bytes,
                                      .id = window->id};
        ticket = sl_ticket_pack(fabric, region, &what, ticket_bytes_out);
        if (!ticket) {
            sl_window_close(&window);
        }
    } else {
        sl_gate_unref(window->gate);
        free(window);
    }
    if (!ticket) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a window");
    }
    *window_out = window;
    *ticket_out = ticket;
    return SL_OK;
}

void sl_window_close(struct sl_window **window) {
    if (!window || !*window) {
        return;
    }
    struct sl_window *it = *window;
    pthread_mutex_lock(&it->gate->lock);
    struct sl_fabric *fabric = it->gate->fabric;
    if (fabric) { // else the table has gone with it
        pthread_mutex_lock(&fabric->lock);
        fabric->windows[it->id] = NULL;
        pthread_mutex_unlock(&fabric->lock);
        atomic_fetch_sub(&fabric->stats.windows_open, 1);
    }
    pthread_mutex_unlock(&it->gate->lock);
    sl_gate_unref(it->gate);
    free(it);
    *window = NULL;
}

// ---- READ ------------------------------------------------------------------------------------------------------------

struct ranges {
    uint32_t n;
    size_t bytes;
    struct sl_wire_range at[SL_READ_MAX_RANGES];
};

static const uint8_t *window_base(struct sl_fabric *fabric, const struct sl_wire_read *read, size_t *bytes_out) {
    pthread_mutex_lock(&fabric->lock);
    const struct sl_window *window = read->window_id < fabric->n_windows ? fabric->windows[read->window_id] : NULL;
    const uint8_t *base = window && window->generation == read->generation ? window->base : NULL;
    *bytes_out = base ? window->bytes : 0;
    pthread_mutex_unlock(&fabric->lock);
    return base;
}

static bool ranges_fit(struct ranges *ranges, size_t window_bytes) {
    ranges->bytes = 0;
    for (uint32_t i = 0; i < ranges->n; i++) {
        const struct sl_wire_range *range = &ranges->at[i];
        if (range->offset > window_bytes || range->bytes > window_bytes - range->offset || range->bytes == 0 ||
            range->bytes > SL_SEGMENT_MAX_BYTES - ranges->bytes) {
            return false;
        }
        ranges->bytes += range->bytes;
    }
    return true;
}

static void on_read_sent(struct sl_peer_send *send, ucs_status_t status) {
    send->peer->n_reads_served--;
    if (status == UCS_OK) {
        atomic_fetch_add(&send->peer->fabric->stats.bytes_sent, send->bytes);
    }
}

// SL_OK, or why not.
static enum sl_status serve(struct sl_fabric *fabric, struct sl_peer *peer, const struct sl_wire_read *read,
                            struct ranges *ranges) {
    size_t window_bytes = 0;
    const uint8_t *base = window_base(fabric, read, &window_bytes);
    if (!base) {
        atomic_fetch_add(&fabric->stats.stale_refused, 1);
        return SL_ERR_PEER_STALE;
    }
    if (!ranges_fit(ranges, window_bytes)) {
        return SL_ERR_RANGE;
    }
    if (peer->n_reads_served >= 2 * SL_READS_PER_PEER) { // the news that one has been sent may be late
        return SL_ERR_EXHAUSTED;
    }
    struct sl_wire_read_reply reply = {read->slot, read->serial, SL_OK, 0};
    struct sl_peer_send *send = sl_peer_send_create(peer, &reply, sizeof reply);
    if (!send) {
        return SL_ERR_EXHAUSTED;
    }
    const uint8_t *data = base + ranges->at[0].offset;
    if (ranges->n > 1) {
        uint8_t *packed = sl_fabric_take_buffer(fabric);
        if (!packed) {
            sl_peer_send_free(send);
            return SL_ERR_EXHAUSTED;
        }
        size_t at = 0;
        for (uint32_t i = 0; i < ranges->n; i++) {
            memcpy(packed + at, base + ranges->at[i].offset, ranges->at[i].bytes);
            at += ranges->at[i].bytes;
        }
        send->buffer = packed;
        data = packed;
    }
    ucp_request_param_t with = {0};
    const struct sl_region *region = sl_fabric_region(fabric, data, ranges->bytes);
    if (region) {
        with.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
        with.memh = region->handle;
    }
    send->bytes = ranges->bytes;
    send->done = on_read_sent;
    peer->n_reads_served++;
    sl_peer_send_start(send, SL_WIRE_READ_REPLY, sizeof reply, data, ranges->bytes, &with);
    return SL_OK;
}

ucs_status_t sl_window_on_read(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_read read;
    struct sl_peer *peer = sl_peer_sender(fabric, "READ", header_bytes, sizeof read, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&read, header, sizeof read);
    if (read.n_ranges == 0 || read.n_ranges > SL_READ_MAX_RANGES ||
        bytes != read.n_ranges * sizeof(struct sl_wire_range) || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        sl_fabric_unexpected(fabric, "READ with a wrong number of ranges", header_bytes + bytes);
        return UCS_OK;
    }
    struct ranges ranges = {.n = read.n_ranges};
    memcpy(ranges.at, data, bytes);
    enum sl_status status = serve(fabric, peer, &read, &ranges);
    if (status != SL_OK) {
        struct sl_wire_read_reply reply = {read.slot, read.serial, status, 0};
        sl_peer_tell(peer, SL_WIRE_READ_REPLY, &reply, sizeof reply);
    }
    return UCS_OK;
}
