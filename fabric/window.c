// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: windows, and the replies to reads that come by message.
 *
 * Design: a read names ranges of a window; they go back one behind the other in one message, from the window's memory where
 *         it is one range, packed where there are several: a scatter list of small ranges costs more than the copy.
 *         Nothing in a read is believed before it is checked; the reads of a peer that are being answered are bounded,
 *         and with them the memory for packing.
 *
 * Threads: windows are opened and closed by any thread, under the gate's lock; reads are the progress thread's. A window's
 *          memory belongs to a region and so outlives every read of it, also one that was being answered when it closed.
 */
#include <stdlib.h>
#include <string.h>

#include "fabric/core/core.h"
#include "fabric/fetch.h"

extern const struct sl_verb_ops sl_window_ops;

struct windows {
    struct sl_verb verb;
    struct sl_slots slots;
    _Atomic uint64_t n_open;
    _Atomic uint64_t n_stale;
};

struct peer_windows {
    size_t n_reads; // of its, being answered
};

struct sl_window {
    struct sl_gate *gate;
    struct windows *windows; // there while the gate is open
    uint32_t id;
    uint64_t generation;
    uint8_t *base;
    size_t bytes;
};

// ---- the owner's side ------------------------------------------------------------------------------------------------

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
    window->windows = sl_verb_of_fabric(fabric, &sl_window_ops);
    window->generation = atomic_fetch_add(&fabric->generation, 1) + 1;
    window->base = base;
    window->bytes = bytes;
    uint8_t *ticket = NULL;
    if (sl_slots_take(&window->windows->slots, window, &window->id)) {
        atomic_fetch_add(&window->windows->n_open, 1);
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
    if (it->gate->fabric) { // else the table has gone with it
        sl_slots_give(&it->windows->slots, it->id);
        atomic_fetch_sub(&it->windows->n_open, 1);
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

static const uint8_t *window_base(struct windows *windows, const struct sl_wire_read *read, size_t *bytes_out) {
    struct sl_gate *gate = windows->verb.fabric->gate;
    pthread_mutex_lock(&gate->lock); // it is not closed meanwhile
    const struct sl_window *window = sl_slots_find(&windows->slots, read->window_id);
    const uint8_t *base = window && window->generation == read->generation ? window->base : NULL;
    *bytes_out = base ? window->bytes : 0;
    pthread_mutex_unlock(&gate->lock);
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

static void on_read_sent(struct sl_peer_send *send, enum sl_status status) {
    struct peer_windows *of_peer = send->arg;
    (void)status;
    of_peer->n_reads--;
}

// SL_OK, or why not.
static enum sl_status serve(struct windows *windows, struct sl_peer *peer, const struct sl_wire_read *read,
                            struct ranges *ranges) {
    struct sl_fabric *fabric = peer->fabric;
    struct peer_windows *of_peer = sl_verb_of_peer(windows, peer);
    size_t window_bytes = 0;
    const uint8_t *base = window_base(windows, read, &window_bytes);
    if (!base) {
        atomic_fetch_add(&windows->n_stale, 1);
        return SL_ERR_PEER_STALE;
    }
    if (!ranges_fit(ranges, window_bytes)) {
        return SL_ERR_RANGE;
    }
    if (of_peer->n_reads >= 2 * SL_READS_PER_PEER) { // the news that one has been sent may be late
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
    send->done = on_read_sent;
    send->arg = of_peer;
    of_peer->n_reads++;
    sl_peer_send_start(send, SL_WIRE_READ_REPLY, data, ranges->bytes);
    return SL_OK;
}

static void on_read(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_read read;
    memcpy(&read, message->header, sizeof read);
    if (read.n_ranges == 0 || read.n_ranges > SL_READ_MAX_RANGES ||
        message->bytes != read.n_ranges * sizeof(struct sl_wire_range) || message->on_its_way) {
        sl_fabric_unexpected(peer->fabric, "READ with a wrong number of ranges",
                             message->header_bytes + message->bytes);
        return;
    }
    struct ranges ranges = {.n = read.n_ranges};
    memcpy(ranges.at, message->data, message->bytes);
    enum sl_status status = serve(state, peer, &read, &ranges);
    if (status != SL_OK) {
        struct sl_wire_read_reply reply = {read.slot, read.serial, status, 0};
        sl_peer_tell(peer, SL_WIRE_READ_REPLY, &reply, sizeof reply);
    }
}

// ---- the verb --------------------------------------------------------------------------------------------------------

static void init(void *state) {
    sl_slots_init(&((struct windows *)state)->slots);
}

static void cleanup(void *state) {
    sl_slots_cleanup(&((struct windows *)state)->slots);
}

const struct sl_verb_ops sl_window_ops = {
    .state_bytes = sizeof(struct windows),
    .peer_bytes = sizeof(struct peer_windows),
    .handlers = {{SL_WIRE_READ, "READ", sizeof(struct sl_wire_read), false, on_read}},
    .init = init,
    .cleanup = cleanup,
    .gauges = {SL_GAUGE(struct windows, n_open, windows_open), SL_GAUGE(struct windows, n_stale, stale_refused)},
};
