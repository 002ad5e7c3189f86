// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: windows, what they show, and the replies to reads by message.
 *
 * Design: a read names ranges of a window; they go back in order in one message: straight from the window's memory if
 *         it is one range, packed if there are several, because a scatter list of small ranges costs more than the
 *         copy. Every read is checked before it is used; the number of reads of a peer that are being answered is
 *         bounded, and so is the memory for packing.
 *
 * Threads: any thread opens and closes windows, under the gate's lock; the progress thread serves reads. A window's
 *          memory belongs to a region and so outlives every read of it, also one that was being answered when it
 *          closed.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "net/fabric/core/core.h"
#include "base/locked.h"
#include "net/fabric/fetch.h"

extern const struct sl_verb_ops sl_window_ops;

struct windows {
    struct sl_verb verb;
    struct sl_slots slots;
    _Atomic uint64_t n_open;
    _Atomic uint64_t n_stale;
};

struct peer_windows {
    size_t n_reads; // of this peer, being answered
};

struct sl_window {
    struct sl_gate *gate;
    struct windows *windows; // valid while the gate is open
    uint32_t id;
    uint64_t generation;
    struct sl_wire_secret secret;
    const struct sl_region *region;
    uint8_t *base;
    size_t bytes;
    // Under the gate's lock: the readable ranges, ascending, not adjacent.
    struct sl_wire_range *shown;
    size_t n_shown, capacity;
};

// ---- the owner's side ------------------------------------------------------------------------------------------------

enum sl_status sl_window_open(struct sl_fabric *fabric, void *base, size_t bytes, struct sl_window **window_out,
                              uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err) {
    SL_FAIL_IF(!fabric->address[0], err, SL_ERR_PRECONDITION,
               "this fabric does not listen, so nobody can read from it");
    const struct sl_region *region = sl_fabric_region(fabric, base, bytes);
    SL_FAIL_IF(!region || region->seen || bytes == 0, err, SL_ERR_INVALID,
               "a window of %zu bytes at %p is not inside a region", bytes, base);
    SL_NEW_OR_FAIL(struct sl_window, window, err, "no memory for a window");
    window->gate = sl_gate_ref(fabric->gate);
    window->windows = sl_verb_of_fabric(fabric, &sl_window_ops);
    window->generation = atomic_fetch_add(&fabric->generation, 1) + 1;
    window->region = region;
    window->base = base;
    window->bytes = bytes;
    uint8_t *ticket = NULL;
    enum sl_status status = sl_secret_draw(&window->secret, err);
    if (status != SL_OK) {
        sl_gate_unref(window->gate);
        free(window);
        return status;
    }
    if (sl_slots_take(&window->windows->slots, window, &window->id)) {
        atomic_fetch_add(&window->windows->n_open, 1);
        struct sl_wire_ticket what = {.magic = SL_WIRE_WINDOW_MAGIC,
                                      .generation = window->generation,
                                      .secret = window->secret,
                                      .bytes = bytes,
                                      .id = window->id};
        ticket = sl_ticket_pack(fabric, &what, ticket_bytes_out);
        if (!ticket) {
            sl_window_close(&window);
        }
    } else {
        sl_gate_unref(window->gate);
        free(window);
    }
    SL_FAIL_IF(!ticket, err, SL_ERR_EXHAUSTED, "no memory for a window");
    *window_out = window;
    *ticket_out = ticket;
    return SL_OK;
}

void sl_window_close(struct sl_window **window) {
    SL_TAKE_OR_RETURN(it, window);
    pthread_mutex_lock(&it->gate->lock);
    if (it->gate->fabric) { // else the table was freed with it
        sl_slots_give(&it->windows->slots, it->id);
        atomic_fetch_sub(&it->windows->n_open, 1);
    }
    pthread_mutex_unlock(&it->gate->lock);
    sl_gate_unref(it->gate);
    free(it->shown);
    free(it);
}

// Returns the first range that does not end before `offset`.
static size_t first_from(const struct sl_window *window, uint64_t offset) {
    size_t low = 0, high = window->n_shown;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct sl_wire_range *range = &window->shown[middle];
        if (range->offset + range->bytes < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Adds a range and merges it with those that it touches.
static enum sl_status show(struct sl_window *window, uint64_t begin, uint64_t end) {
    size_t first = first_from(window, begin), behind = first;
    while (behind < window->n_shown && window->shown[behind].offset <= end) {
        const struct sl_wire_range *range = &window->shown[behind++];
        begin = range->offset < begin ? range->offset : begin;
        end = range->offset + range->bytes > end ? range->offset + range->bytes : end;
    }
    if (first == behind && !SL_GROW(window->shown, window->n_shown, window->capacity)) {
        return SL_ERR_EXHAUSTED;
    }
    memmove(&window->shown[first + 1], &window->shown[behind], (window->n_shown - behind) * sizeof *window->shown);
    window->n_shown = window->n_shown - (behind - first) + 1;
    window->shown[first] = (struct sl_wire_range){begin, end - begin};
    return SL_OK;
}

enum sl_status sl_window_show(struct sl_window *window, const void *at, size_t bytes, struct sl_error *err) {
    uintptr_t base = (uintptr_t)window->base, from = (uintptr_t)at;
    SL_FAIL_IF(from < base || from - base > window->bytes || bytes == 0 || bytes > window->bytes - (from - base), err,
               SL_ERR_INVALID, "%zu bytes at %p are not inside the window", bytes, at);
    pthread_mutex_lock(&window->gate->lock);
    enum sl_status status = show(window, from - base, from - base + bytes);
    pthread_mutex_unlock(&window->gate->lock);
    return status == SL_OK ? SL_OK : sl_fail(err, status, "no memory for what a window shows");
}

// ---- READ ------------------------------------------------------------------------------------------------------------

struct ranges {
    uint32_t n;
    size_t bytes;
    struct sl_wire_range at[SL_READ_MAX_RANGES];
};

// Call with the lock held: it cannot be closed meanwhile. NULL: no such window, or the secret is wrong.
static const struct sl_window *find(struct windows *windows, uint32_t id, uint64_t generation,
                                    const struct sl_wire_secret *secret) {
    const struct sl_window *window = sl_slots_find(&windows->slots, id);
    bool known = window && window->generation == generation && sl_secret_equals(&window->secret, secret);
    return known ? window : NULL;
}

static bool is_shown(const struct sl_window *window, const struct sl_wire_range *range) {
    size_t i = first_from(window, range->offset + 1); // skips a range that ends exactly there
    return i < window->n_shown && window->shown[i].offset <= range->offset &&
           range->bytes <= window->shown[i].bytes - (range->offset - window->shown[i].offset);
}

static bool ranges_fit(struct ranges *ranges, const struct sl_window *window) {
    ranges->bytes = 0;
    for (uint32_t i = 0; i < ranges->n; i++) {
        const struct sl_wire_range *range = &ranges->at[i];
        if (range->offset > window->bytes || range->bytes > window->bytes - range->offset || range->bytes == 0 ||
            range->bytes > SL_SEGMENT_MAX_BYTES - ranges->bytes || !is_shown(window, range)) {
            return false;
        }
        ranges->bytes += range->bytes;
    }
    return true;
}

// Returns SL_OK if the ranges may be read, from *base on.
static enum sl_status check(struct windows *windows, const struct sl_wire_read *read, struct ranges *ranges,
                            const uint8_t **base_out) {
    struct sl_gate *gate = windows->verb.fabric->gate;
    SL_LOCKED(&gate->lock);
    const struct sl_window *window = find(windows, read->window_id, read->generation, &read->secret);
    enum sl_status status = !window ? SL_ERR_PEER_STALE : ranges_fit(ranges, window) ? SL_OK : SL_ERR_RANGE;
    *base_out = window ? window->base : NULL;
    return status;
}

static void on_read_sent(struct sl_peer_send *send, enum sl_status) {
    struct peer_windows *of_peer = send->arg;
    of_peer->n_reads--;
}

// Returns SL_OK, or why the read is refused.
static enum sl_status serve(struct windows *windows, struct sl_peer *peer, const struct sl_wire_read *read,
                            struct ranges *ranges) {
    struct sl_fabric *fabric = peer->fabric;
    struct peer_windows *of_peer = sl_verb_of_peer(windows, peer);
    const uint8_t *base;
    enum sl_status status = check(windows, read, ranges, &base);
    if (status != SL_OK) {
        atomic_fetch_add(&windows->n_stale, status == SL_ERR_PEER_STALE);
        return status;
    }
    if (of_peer->n_reads >= 2 * SL_READS_PER_PEER) { // the notice that one has been sent may be late
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

// ---- LOOK ------------------------------------------------------------------------------------------------------------

// Tells the window's address to a reader that will read without asking us. Does not check what the window shows: see
// fetch.h.
static void on_look(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct windows *windows = state;
    struct sl_wire_look look;
    memcpy(&look, message->header, sizeof look);
    uint8_t reply[sizeof(struct sl_wire_look_reply) + SL_PLACE_KEY_MAX_BYTES];
    const size_t at = offsetof(struct sl_wire_look_reply, place);
    struct sl_wire_look_reply head = {.generation = look.generation, .window_id = look.window_id, .status = SL_OK};
    size_t bytes = 0;
    struct sl_gate *gate = windows->verb.fabric->gate;
    pthread_mutex_lock(&gate->lock);
    const struct sl_window *window = find(windows, look.window_id, look.generation, &look.secret);
    if (!window) {
        atomic_fetch_add(&windows->n_stale, 1);
        head.status = SL_ERR_PEER_STALE;
    } else {
        bytes = peer->ep ? sl_place_pack(window->region, window->base, window->bytes, reply + at) : 0;
        head.status = bytes > 0 ? SL_OK : SL_ERR_UNSUPPORTED;
    }
    pthread_mutex_unlock(&gate->lock);
    memcpy(reply, &head, bytes > 0 ? at : sizeof head);
    sl_peer_tell(peer, SL_WIRE_LOOK_REPLY, reply, bytes > 0 ? at + bytes : sizeof head);
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
    .handlers = {{SL_WIRE_READ, "READ", sizeof(struct sl_wire_read), false, on_read},
                 {SL_WIRE_LOOK, "LOOK", sizeof(struct sl_wire_look), false, on_look}},
    .init = init,
    .cleanup = cleanup,
    .gauges = {SL_GAUGE(struct windows, n_open, windows_open), SL_GAUGE(struct windows, n_stale, stale_refused)},
};
