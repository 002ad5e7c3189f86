// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the reader's side of windows.
 *
 *      (posted) --- the connection is up, something to do: pump ------------------------> running, in a mode below
 *      running ---- everything has arrived: check_end ----------------------------------> ended (status OK)
 *      any -------- refused, lost, late, closed: the first to notice ends the outcome --> ended
 *      ended ------ nothing writes to the caller's memory any more: check_end -------> detached: the caller may free it
 *
 * The reader asks the owner for a window's address (LOOK), once per connection; without UCX there is nothing to ask.
 * Modes: copy  the window is mapped into this process: slices of COPY_SLICE_BYTES a turn, so that requests and other
 *              fetches on the progress thread go on
 *        get   RDMA: at most GET_WINDOW_BYTES unacknowledged
 *        read  else: READ messages of at most SL_SEGMENT_MAX_BYTES, SL_READS_PER_PEER unanswered ones per peer
 *
 * Invariants: n_writes counts operations that may still write to the caller's memory: gets, and rendezvous straight
 *             into it. A fetch is detached only at 0. A read that is merely unanswered is abandoned at once: its slot
 *             of the peer becomes free when its reply has come and was dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "net/fabric/connection.h"
#include "net/fabric/fetch.h"
#include "net/fabric/core/outcome.h"
#include "net/fabric/core/places.h"

#define DIRECT_BYTES     65536      // a range of at least this size is read alone, straight into the caller's memory
#define GET_BYTES        (1u << 20) // per get
#define GET_WINDOW_BYTES ((size_t)4 << 20)   // of one fetch by gets, unacknowledged
#define COPY_SLICE_BYTES ((size_t)128 << 10) // of a mapped window, in one turn of the progress thread
#define FETCH_MAX_RANGES (1u << 20)

extern const struct sl_verb_ops sl_fetch_ops;

struct fetches {
    struct sl_verb verb;
    struct sl_fetch *first;
    _Atomic uint64_t n_open;
    uint64_t get; // not a fault: use gets with any transport
};

struct read {
    bool used, receiving;
    bool direct; // by rendezvous into the caller's memory: it ends before the fetch does
    uint32_t serial, n_ranges;
    struct sl_fetch *fetch; // NULL: ended, the reply will be dropped
    size_t cursor, at;      // its start in the fetch's ranges
    size_t bytes;
    uint8_t *buffer; // receiving, but not direct
};

struct peer_reads {
    struct read at[SL_READS_PER_PEER];
    struct sl_places places; // of its windows
};

struct sl_fetch {
    struct sl_fetch *next;
    struct sl_connection *connection;
    struct sl_connection_user user; // of the connection
    struct sl_command open_command;
    struct sl_outcome outcome;
    bool detached; // under outcome.lock: the progress thread does not know it any more
    int64_t deadline_ns;
    struct sl_ticket ticket;
    // owned by the progress thread
    struct fetches *fetches;
    struct sl_peer *peer;            // NULL: not yet, or lost
    bool placed;                     // it is known how to reach the window:
    struct sl_remote_region *region; // NULL: by messages
    uint64_t address;                // of the window in it
    int64_t ended_ns;                // 0: not ended
    size_t cursor, at;               // the next byte to get: its range, and the offset in it
    size_t n_writes, get_bytes;
    size_t n_missing; // bytes that have not arrived
    size_t n_ranges;
    struct sl_fetch_range ranges[];
};

// ---- the caller's side -----------------------------------------------------------------------------------------------

static void run_open(struct sl_fabric *fabric, struct sl_command *command);

// Merges ranges that are adjacent in the window and in memory; drops empty ones.
static enum sl_status copy_ranges(struct sl_fetch *fetch, const struct sl_fetch_range *ranges, size_t n,
                                  struct sl_error *err) {
    const struct sl_wire_ticket *head = &fetch->ticket.head;
    for (size_t i = 0; i < n; i++) {
        const struct sl_fetch_range *range = &ranges[i];
        SL_FAIL_IF(range->offset > head->bytes || range->bytes > head->bytes - range->offset, err, SL_ERR_RANGE,
                   "a fetch of %zu bytes at %llu from a window of %llu", range->bytes,
                   (unsigned long long)range->offset, (unsigned long long)head->bytes);
        struct sl_fetch_range *last = fetch->n_ranges > 0 ? &fetch->ranges[fetch->n_ranges - 1] : NULL;
        if (last && last->offset + last->bytes == range->offset && (uint8_t *)last->to + last->bytes == range->to) {
            last->bytes += range->bytes;
        } else if (range->bytes > 0) {
            fetch->ranges[fetch->n_ranges++] = *range;
        }
        fetch->n_missing += range->bytes;
    }
    return SL_OK;
}

enum sl_status sl_fetch_open(struct sl_connection *connection, const struct sl_fetch_plan *plan,
                             struct sl_fetch **fetch_out, struct sl_error *err) {
    SL_FAIL_IF(plan->n_ranges > FETCH_MAX_RANGES, err, SL_ERR_RANGE, "a fetch of %zu ranges; at most %u",
               plan->n_ranges, FETCH_MAX_RANGES);
    struct sl_fetch *fetch = calloc(1, sizeof *fetch + plan->n_ranges * sizeof *plan->ranges);
    SL_FAIL_IF(!fetch, err, SL_ERR_EXHAUSTED, "no memory for a fetch of %zu ranges", plan->n_ranges);
    enum sl_status status =
        sl_ticket_unpack(&fetch->ticket, SL_WIRE_WINDOW_MAGIC, "window", plan->ticket, plan->ticket_bytes, err);
    SL_THEN_FAIL_IF(status, fetch->ticket.head.epoch != connection->epoch, err, SL_ERR_INVALID,
                    "a window of another fabric than the connection's, %s", connection->address);
    SL_THEN(status, copy_ranges(fetch, plan->ranges, plan->n_ranges, err));
    SL_TRY_OR(status, free(fetch));
    fetch->connection = connection;
    sl_connection_ref(connection);
    fetch->open_command.run = run_open;
    sl_outcome_init(&fetch->outcome);
    fetch->deadline_ns = plan->deadline_ns;
    if (!sl_gate_post(connection->gate, &fetch->open_command)) {
        sl_outcome_end(&fetch->outcome, SL_ERR_CANCELLED, "the fabric has stopped");
        fetch->detached = true;
    }
    *fetch_out = fetch;
    return SL_OK;
}

enum sl_status sl_fetch_wait(struct sl_fetch *fetch, int64_t until_ns, struct sl_error *err) {
    struct sl_outcome *outcome = &fetch->outcome;
    if (!sl_outcome_wait(outcome, until_ns < fetch->deadline_ns ? until_ns : fetch->deadline_ns)) {
        if (sl_now_ns() < fetch->deadline_ns) {
            return SL_AGAIN;
        }
        if (!sl_outcome_end(outcome, SL_ERR_DEADLINE, "not everything has come in time")) {
            sl_outcome_wait(outcome, SL_NO_DEADLINE); // another thread is just ending it
        }
    }
    return outcome->status == SL_OK
               ? SL_OK
               : sl_fail(err, outcome->status, "fetch from %s: %s", fetch->connection->address, outcome->text);
}

void sl_fetch_close(struct sl_fetch **fetch) {
    SL_TAKE_OR_RETURN(it, fetch);
    sl_outcome_end(&it->outcome, SL_ERR_CANCELLED, "closed before it was over");
    pthread_mutex_lock(&it->outcome.lock);
    bool detached = it->detached;
    pthread_mutex_unlock(&it->outcome.lock);
    if (!detached) {
        sl_gate_wake(it->connection->gate);
    }
    // The progress thread releases every fetch: at the latest SL_DRAIN_NS after its end, by closing the peer.
    pthread_mutex_lock(&it->outcome.lock);
    while (!it->detached) {
        pthread_cond_wait(&it->outcome.changed, &it->outcome.lock);
    }
    pthread_mutex_unlock(&it->outcome.lock);
    sl_outcome_cleanup(&it->outcome);
    sl_connection_unref(it->connection);
    free(it);
}

// ---- ending ----------------------------------------------------------------------------------------------------------

// Gives the fetch to the caller, who may then free it.
static void detach(struct sl_fetch *fetch) {
    struct fetches *fetches = fetch->fetches;
    struct sl_fetch **at = &fetches->first;
    while (*at != fetch) {
        at = &(*at)->next;
    }
    *at = fetch->next;
    sl_connection_leave(fetch->connection, &fetch->user);
    atomic_fetch_sub(&fetches->n_open, 1);
    SL_LOCKED(&fetch->outcome.lock);
    fetch->detached = true;
    pthread_cond_broadcast(&fetch->outcome.changed);
}

static struct read *reads_of(const struct fetches *fetches, struct sl_peer *peer) {
    return ((struct peer_reads *)sl_verb_of_peer(fetches, peer))->at;
}

static void abandon_reads(struct sl_fetch *fetch) {
    for (size_t i = 0; fetch->peer && i < SL_READS_PER_PEER; i++) {
        struct read *read = &reads_of(fetch->fetches, fetch->peer)[i];
        if (read->fetch == fetch && !read->direct) {
            read->fetch = NULL;
        }
    }
}

// Ends or detaches the fetch if nothing is pending; the caller may then free it.
static void check_end(struct sl_fetch *fetch) {
    if (fetch->n_missing == 0) {
        sl_outcome_end(&fetch->outcome, SL_OK, "");
    }
    if (!sl_outcome_is_done(&fetch->outcome)) { // or the caller is just ending it, and will wake us
        return;
    }
    abandon_reads(fetch);
    fetch->ended_ns = fetch->ended_ns ? fetch->ended_ns : sl_now_ns();
    if (fetch->n_writes == 0) {
        detach(fetch);
    }
}

static void fail(struct sl_fetch *fetch, enum sl_status status, const char *text) {
    sl_outcome_end(&fetch->outcome, status, text);
}

// ---- copy ------------------------------------------------------------------------------------------------------------

// Returns the next range, at most `most` bytes of it, within the rest of a slice. NULL: everything is pending.
static const struct sl_fetch_range *next_range(const struct sl_fetch *fetch, size_t most, size_t *bytes_out) {
    if (fetch->cursor == fetch->n_ranges) {
        return NULL;
    }
    const struct sl_fetch_range *range = &fetch->ranges[fetch->cursor];
    size_t left = range->bytes - fetch->at;
    *bytes_out = left < most ? left : most;
    return range;
}

static void step(struct sl_fetch *fetch, size_t bytes) {
    fetch->at += bytes;
    if (fetch->at == fetch->ranges[fetch->cursor].bytes) {
        fetch->cursor++;
        fetch->at = 0;
    }
}

static bool pump_copy(struct sl_fetch *fetch) {
    const uint8_t *window = (const uint8_t *)((uintptr_t)fetch->address + (uintptr_t)fetch->region->mapping);
    size_t room = COPY_SLICE_BYTES, bytes = 0, copied = 0;
    const struct sl_fetch_range *range;
    while (room > 0 && (range = next_range(fetch, room, &bytes)) != NULL) {
        memcpy((uint8_t *)range->to + fetch->at, window + range->offset + fetch->at, bytes);
        step(fetch, bytes);
        room -= bytes;
        copied += bytes;
    }
    fetch->n_missing -= copied;
    return copied > 0;
}

// ---- get -------------------------------------------------------------------------------------------------------------

struct get {
    struct sl_peer_op op;
    struct sl_fetch *fetch;
    size_t bytes;
};

static void got(struct get *get, enum sl_status status) {
    struct sl_fetch *fetch = get->fetch;
    fetch->n_writes--;
    fetch->get_bytes -= get->bytes;
    if (status != SL_OK) {
        fail(fetch, status, sl_status_text(status));
    } else {
        fetch->n_missing -= get->bytes;
    }
    free(get);
}

static void on_got(struct sl_peer_op *op, enum sl_status status) {
    struct get *get = SL_CONTAINER(op, struct get, op);
    struct sl_fetch *fetch = get->fetch;
    got(get, status);
    check_end(fetch);
}

static bool pump_get(struct sl_fetch *fetch) {
    struct sl_peer *peer = fetch->peer;
    size_t bytes = 0;
    bool moved = false;
    const struct sl_fetch_range *range;
    while (sl_outcome_is_open(&fetch->outcome) && fetch->get_bytes < GET_WINDOW_BYTES &&
           (range = next_range(fetch, GET_BYTES, &bytes)) != NULL) {
        struct get *get = malloc(sizeof *get);
        if (!get) {
            fail(fetch, SL_ERR_EXHAUSTED, "no memory for a get");
            break;
        }
        *get = (struct get){{peer, on_got}, fetch, bytes};
        uint8_t *to = (uint8_t *)range->to + fetch->at;
        uint64_t from = fetch->address + range->offset + fetch->at;
        step(fetch, bytes);
        fetch->n_writes++;
        fetch->get_bytes += bytes;
        enum sl_status status = sl_peer_get(&get->op, fetch->region, to, bytes, from);
        if (status != SL_INPROGRESS) {
            got(get, status);
        }
        moved = true;
    }
    return moved;
}

// ---- read ------------------------------------------------------------------------------------------------------------

// Gathers the ranges of the next READ. Returns their number.
static uint32_t gather(struct sl_fetch *fetch, struct sl_wire_range *ranges, struct read *read) {
    uint32_t n = 0;
    size_t bytes = 0;
    const struct sl_fetch_range *range;
    read->cursor = fetch->cursor;
    read->at = fetch->at;
    read->bytes = 0;
    while (n < SL_READ_MAX_RANGES && read->bytes < SL_SEGMENT_MAX_BYTES &&
           (range = next_range(fetch, SL_SEGMENT_MAX_BYTES - read->bytes, &bytes)) != NULL) {
        bool large = range->bytes - fetch->at >= DIRECT_BYTES;
        if (large && n > 0) {
            break;
        }
        ranges[n++] = (struct sl_wire_range){range->offset + fetch->at, bytes};
        read->bytes += bytes;
        step(fetch, bytes);
        if (large) {
            break;
        }
    }
    read->n_ranges = n;
    return n;
}

static struct read *free_slot(struct read *reads) {
    for (size_t i = 0; i < SL_READS_PER_PEER; i++) {
        if (!reads[i].used) {
            return &reads[i];
        }
    }
    return NULL;
}

static bool pump_read(struct sl_fetch *fetch) {
    struct sl_peer *peer = fetch->peer;
    struct read *reads = reads_of(fetch->fetches, peer), *read;
    bool moved = false;
    while (fetch->cursor < fetch->n_ranges && (read = free_slot(reads)) != NULL) {
        struct sl_wire_range ranges[SL_READ_MAX_RANGES];
        uint32_t n = gather(fetch, ranges, read);
        struct sl_wire_read header = {.generation = fetch->ticket.head.generation,
                                      .secret = fetch->ticket.head.secret,
                                      .window_id = fetch->ticket.head.id,
                                      .slot = (uint32_t)(read - reads),
                                      .serial = ++read->serial,
                                      .n_ranges = n};
        size_t list_bytes = n * sizeof *ranges;
        struct sl_peer_send *send = sl_peer_send_create(peer, &header, sizeof header);
        void *list = sl_fabric_take_buffer(peer->fabric);
        if (!send || !list) {
            sl_fabric_give_buffer(peer->fabric, list);
            free(send);
            fail(fetch, SL_ERR_EXHAUSTED, "no memory for a read");
            return moved;
        }
        memcpy(list, ranges, list_bytes);
        send->buffer = list;
        read->used = true;
        read->direct = read->receiving = false;
        read->fetch = fetch;
        moved = true;
        send->eager = true;
        sl_peer_send_start(send, SL_WIRE_READ, list, list_bytes);
    }
    return moved;
}

static void scatter(const struct sl_fetch *fetch, const struct read *read, const uint8_t *data) {
    size_t cursor = read->cursor, at = read->at;
    for (size_t done = 0; done < read->bytes; cursor++, at = 0) {
        const struct sl_fetch_range *range = &fetch->ranges[cursor];
        size_t left = read->bytes - done, bytes = range->bytes - at < left ? range->bytes - at : left;
        memcpy((uint8_t *)range->to + at, data + done, bytes);
        done += bytes;
    }
}

// Ends a read: its bytes are here (`data`, or in place already), or will not come.
static void finish_read(struct read *read, enum sl_status status, const uint8_t *data) {
    struct sl_fetch *fetch = read->fetch;
    read->used = false;
    read->fetch = NULL;
    if (!fetch) { // the fetch has ended
        return;
    }
    fetch->n_writes -= read->direct;
    if (status != SL_OK) {
        fail(fetch, SL_ERR_PEER_LOST, sl_status_text(status));
    } else {
        if (data) {
            scatter(fetch, read, data);
        }
        fetch->n_missing -= read->bytes;
    }
    check_end(fetch);
}

static void on_received(void *arg, struct sl_peer *peer, enum sl_status status, size_t) {
    struct read *read = arg;
    uint8_t *buffer = read->buffer;
    finish_read(read, status, buffer);
    sl_fabric_give_buffer(peer->fabric, buffer);
}

static void receive_ranges(struct sl_peer *peer, struct read *read, struct sl_message *message) {
    struct sl_fetch *fetch = read->fetch;
    const struct sl_fetch_range *range = &fetch->ranges[read->cursor];
    read->direct = read->n_ranges == 1;
    read->buffer = read->direct ? NULL : sl_fabric_take_buffer(peer->fabric);
    read->receiving = true;
    fetch->n_writes += read->direct;
    uint8_t *to = read->direct ? (uint8_t *)range->to + read->at : read->buffer;
    if (!to || !sl_peer_receive(peer, message, to, on_received, read)) {
        sl_fabric_give_buffer(peer->fabric, read->buffer);
        fetch->n_writes -= read->direct;
        read->used = false;
        fail(fetch, SL_ERR_EXHAUSTED, "no memory to receive a read");
    }
}

static void refuse(struct sl_fetch *fetch, enum sl_status status) {
    fail(fetch, status,
         status == SL_ERR_PEER_STALE ? "the window is closed"
         : status == SL_ERR_RANGE    ? "a range is outside of the window there"
                                     : sl_status_text(status));
}

static void on_read_reply(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_read_reply reply;
    memcpy(&reply, message->header, sizeof reply);
    struct read *read = reply.slot < SL_READS_PER_PEER ? &reads_of(state, peer)[reply.slot] : NULL;
    if (!read || !read->used || read->receiving || read->serial != reply.serial ||
        (reply.status == SL_OK && message->bytes != read->bytes)) {
        sl_fabric_unexpected(peer->fabric, "READ_REPLY", message->header_bytes + message->bytes);
        return;
    }
    struct sl_fetch *fetch = read->fetch;
    if (!fetch || reply.status != SL_OK) {
        read->used = false;
        read->fetch = NULL;
        if (fetch) {
            refuse(fetch, reply.status < 0 ? (enum sl_status)reply.status : SL_ERR_INTERNAL);
            check_end(fetch);
        }
    } else if (message->on_its_way) {
        receive_ranges(peer, read, message);
    } else {
        finish_read(read, SL_OK, message->data);
    }
}

// ---- the progress thread's side --------------------------------------------------------------------------------------

static void on_over(struct sl_connection_user *user, enum sl_status status, const char *text) {
    struct sl_fetch *fetch = SL_CONTAINER(user, struct sl_fetch, user);
    fail(fetch, status, text);
    check_end(fetch);
}

static void run_open(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_fetch *fetch = SL_CONTAINER(command, struct sl_fetch, open_command);
    struct fetches *fetches = fetch->fetches = sl_verb_of_fabric(fabric, &sl_fetch_ops);
    fetch->next = fetches->first;
    fetches->first = fetch;
    atomic_fetch_add(&fetches->n_open, 1);
    fetch->user.over = on_over;
    sl_connection_join(fetch->connection, &fetch->user);
}

static void on_look_reply(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct peer_reads *reads = sl_verb_of_peer(state, peer);
    sl_places_hear(&reads->places, peer, message);
}

// Returns true once it is known how to reach the window, or that it cannot be reached.
static bool find_place(struct sl_fetch *fetch) {
    struct peer_reads *reads = sl_verb_of_peer(fetch->fetches, fetch->peer);
    struct sl_error err = {0};
    enum sl_status status =
        sl_places_find(&reads->places, fetch->peer, &fetch->ticket.head, &fetch->region, &fetch->address, &err);
    if (status < 0) {
        fail(fetch, status, err.text);
    }
    fetch->placed = status == SL_OK;
    return status != SL_AGAIN;
}

static bool advance(struct sl_fetch *fetch) {
    struct sl_connection *connection = fetch->connection;
    if (!connection->up) {
        return false;
    }
    fetch->peer = connection->peer;
    if (!fetch->placed) {
        return find_place(fetch);
    }
    if (!fetch->region) {
        return pump_read(fetch);
    }
    return fetch->region->mapping != 0 && fetch->fetches->get == 0 ? pump_copy(fetch) : pump_get(fetch);
}

static bool pump(void *state, int64_t now_ns) {
    struct fetches *fetches = state;
    bool moved = false;
    for (struct sl_fetch *fetch = fetches->first, *next; fetch; fetch = next) {
        next = fetch->next;
        if (sl_outcome_is_open(&fetch->outcome) && now_ns > fetch->deadline_ns) {
            fail(fetch, SL_ERR_DEADLINE, "not everything has come in time");
        }
        if (sl_outcome_is_open(&fetch->outcome)) {
            moved |= advance(fetch);
        }
        check_end(fetch);
    }
    return moved;
}

static void tick(void *state, int64_t now_ns) {
    struct fetches *fetches = state;
    for (struct sl_fetch *fetch = fetches->first; fetch; fetch = fetch->next) {
        if (fetch->ended_ns && now_ns - fetch->ended_ns > SL_DRAIN_NS && fetch->peer) {
            sl_peer_close(fetch->peer, SL_ERR_PEER_LOST, "it does not send what was asked of it");
            return; // it has changed the list
        }
    }
}

static void peer_closing(void *state, struct sl_peer *peer, enum sl_status, const char *) {
    struct fetches *fetches = state;
    for (struct sl_fetch *fetch = fetches->first; fetch; fetch = fetch->next) {
        if (fetch->peer == peer) { // ended because its connection has; pending reads end with the peer
            abandon_reads(fetch);
            fetch->peer = NULL;
        }
    }
}

static void release(void *state) {
    struct fetches *fetches = state;
    while (fetches->first) {
        detach(fetches->first);
    }
}

const struct sl_verb_ops sl_fetch_ops = {
    .state_bytes = sizeof(struct fetches),
    .peer_bytes = sizeof(struct peer_reads),
    .handlers = {{SL_WIRE_READ_REPLY, "READ_REPLY", sizeof(struct sl_wire_read_reply), false, on_read_reply},
                 {SL_WIRE_LOOK_REPLY, "LOOK_REPLY", sizeof(struct sl_wire_look_reply), false, on_look_reply}},
    .faults = {{"get", offsetof(struct fetches, get)}},
    .gauges = {SL_GAUGE(struct fetches, n_open, fetches_open)},
    .pump = pump,
    .tick = tick,
    .peer_closing = peer_closing,
    .release = release,
};
