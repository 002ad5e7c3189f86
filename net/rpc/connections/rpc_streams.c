// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: bounds the memory of messages that have arrived in part, and the open calls of a connection.
 *
 * Design: gRPC core (seen in 1.51) compares a message with its limit when all of it has arrived; until then it keeps what
 *         comes, up to the 4 GiB that a message's head may announce. Its resource quota does not bound this: 1,000 calls with
 *         3 of 4 MiB each took 2.9 GB of a quota of 1 GiB. And a client that does not acknowledge the settings may open any
 *         number of calls. So rpc_headers.c, which follows the frames of each connection, tells of the streams that open and
 *         close, in both directions, and of the data between. Only an unfinished message counts: gRPC passes on a
 *         finished one, and its windows limit what may follow it.
 *         When all connections hold three quarters of what they may, the servers refuse calls of the caller with most, the one
 *         that waits longest for its request first: gRPC then resets the stream, and frees what it holds. Not the bytes of a
 *         connection but only calls can be refused, so this takes a thread of the server, which may be too late, and a
 *         stream of requests is its handler's. So when they hold all, the next data of a caller with more than an equal part
 *         closes its connection. Callers with less keep theirs.
 *         A server may announce 4 GiB as well: gRPC would keep them, and then refuse the reply. So the connection of one that
 *         announces more than a reply may have is closed at once.
 *         A caller is a tenant, or another role's name; without TLS a host, or a connection of this machine.
 * Threads: any; one at a time for a connection, under the mutex of its frames.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/locked.h"
#include "net/rpc/connections/rpc_connections.h"

enum {
    FIRST_STREAMS = 16,
    FEWER = 16,        // times fewer streams, after a connection of the caller was closed for its calls
    IDLE_STREAMS = 64, // what the table of a connection without calls may keep
};

struct sl_rpc_open_stream {
    uint32_t id;
    uint32_t left; // bytes to come of the message; in a message's head: what is known of its length
    uint32_t held; // bytes that came of the message
    uint8_t n_head;
    bool has_closed; // kept until the table is packed
};

static struct {
    pthread_mutex_t mutex;
    int64_t bytes, most; // of unfinished messages: held, and allowed
    int64_t owned[SL_RPC_OWNERS];
    atomic_bool is_much;                   // more than many()
    struct sl_loop *loops[SL_RPC_SERVERS]; // which are woken then
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static atomic_size_t most_streams; // of a connection
static atomic_llong most_of_reply;

void sl_rpc_streams_allow(size_t n_streams, int64_t n_bytes) {
    SL_LOCKED(&all.mutex);
    if (n_streams > atomic_load(&most_streams)) {
        atomic_store(&most_streams, n_streams);
    }
    all.most = n_bytes > all.most ? n_bytes : all.most;
}

void sl_rpc_streams_allow_replies(int64_t n_bytes) {
    long long before = atomic_load(&most_of_reply);
    while (n_bytes > before && !atomic_compare_exchange_weak(&most_of_reply, &before, n_bytes)) {
    }
}

void sl_rpc_streams_wake(struct sl_loop *loop, bool wakes) {
    SL_LOCKED(&all.mutex);
    for (size_t i = 0; i < SL_RPC_SERVERS; i++) {
        if (all.loops[i] == (wakes ? NULL : loop)) {
            all.loops[i] = wakes ? loop : NULL;
            return;
        }
    }
}

bool sl_rpc_streams_are_much(void) {
    return atomic_load(&all.is_much);
}

int64_t sl_rpc_streams_most(size_t *owner_out) {
    SL_LOCKED(&all.mutex);
    *owner_out = 0;
    for (size_t i = 1; i < SL_RPC_OWNERS; i++) {
        *owner_out = all.owned[i] > all.owned[*owner_out] ? i : *owner_out;
    }
    return atomic_load(&all.is_much) ? all.owned[*owner_out] : 0;
}

// Notes whether all hold much, and wakes the servers when that begins. Lock held.
static void note_much(void) {
    const bool is_much = all.bytes > all.most / 4 * 3;
    if (atomic_exchange(&all.is_much, is_much) || !is_much) {
        return;
    }
    for (size_t i = 0; i < SL_RPC_SERVERS; i++) {
        if (all.loops[i]) {
            SL_LOCKED(&all.loops[i]->mutex);
            pthread_cond_broadcast(&all.loops[i]->changed);
        }
    }
}

// Counts bytes of a connection. Returns false if its caller then holds more than its part of too much.
static bool count(struct sl_rpc_streams *streams, int64_t more) {
    SL_LOCKED(&all.mutex);
    all.bytes += more;
    all.owned[streams->owner] += more;
    note_much();
    size_t n_owners = 0;
    for (size_t i = 0; more > 0 && all.bytes > all.most && i < SL_RPC_OWNERS; i++) {
        n_owners += all.owned[i] > 0;
    }
    const bool is_too_much = n_owners > 0 && all.owned[streams->owner] > all.most / (int64_t)n_owners;
    return !is_too_much;
}

static struct sl_rpc_open_stream *find(struct sl_rpc_streams *streams, uint32_t id) {
    size_t from = 0, to = streams->n; // ids ascend
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (streams->table[middle].id < id) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    struct sl_rpc_open_stream *found = from < streams->n ? &streams->table[from] : NULL;
    return found && found->id == id && !found->has_closed ? found : NULL;
}

// Makes room for a stream, in place of closed ones if there are many.
static bool make_room(struct sl_rpc_streams *streams) {
    if (streams->n_closed > streams->n / 2) {
        size_t n = 0;
        for (size_t i = 0; i < streams->n; i++) {
            if (!streams->table[i].has_closed) {
                streams->table[n++] = streams->table[i];
            }
        }
        streams->n = n;
        streams->n_closed = 0;
    }
    if (streams->n < streams->cap) {
        return true;
    }
    const size_t cap = streams->cap ? 2 * streams->cap : FIRST_STREAMS;
    struct sl_rpc_open_stream *table = realloc(streams->table, cap * sizeof *table);
    if (!table) {
        return false;
    }
    streams->table = table;
    streams->cap = cap;
    return true;
}

bool sl_rpc_streams_open(struct sl_rpc_streams *streams, uint32_t id) {
    if (id <= streams->newest) { // its trailers
        return true;
    }
    streams->newest = id;
    const size_t n_open = streams->n - streams->n_closed;
    const size_t most = streams->are_replies ? SIZE_MAX : atomic_load(&most_streams);
    if (n_open >= most) {
        sl_rpc_resets_note(streams->caller);
        return false;
    }
    const bool needs_more = n_open > most / FEWER && !streams->has_more;
    if ((needs_more && sl_rpc_resets_are_recent(streams->caller)) ||
        (streams->n == streams->cap && !make_room(streams))) {
        return false;
    }
    streams->has_more |= needs_more;
    streams->table[streams->n++] = (struct sl_rpc_open_stream){.id = id};
    return true;
}

void sl_rpc_streams_close(struct sl_rpc_streams *streams, uint32_t id) {
    struct sl_rpc_open_stream *stream = find(streams, id);
    if (!stream) {
        return;
    }
    if (stream->held > 0) {
        (void)count(streams, -(int64_t)stream->held); // to hold less is always allowed
    }
    stream->has_closed = true;
    if (++streams->n_closed == streams->n) {
        streams->n = streams->n_closed = 0;
        if (streams->cap > IDLE_STREAMS) {
            free(streams->table);
            streams->table = NULL;
            streams->cap = 0;
        }
    }
}

bool sl_rpc_streams_data(struct sl_rpc_streams *streams, uint32_t id, const uint8_t *bytes, size_t n) {
    enum { HEAD = 5 }; // of a message: whether it is compressed, and its length
    struct sl_rpc_open_stream *stream = find(streams, id);
    if (!stream) { // gRPC drops it
        return true;
    }
    const int64_t before = stream->held;
    while (n > 0) {
        size_t n_taken = 1;
        if (stream->n_head < HEAD) {
            stream->left = stream->n_head == 0 ? 0 : stream->left << 8 | *bytes;
            stream->n_head++;
        } else {
            n_taken = n < stream->left ? n : stream->left;
            stream->left -= (uint32_t)n_taken;
            stream->held += (uint32_t)n_taken;
        }
        if (streams->are_replies && stream->n_head == 1 && *bytes > 1) { // not gRPC's, which will find that itself
            sl_rpc_streams_close(streams, id);
            return true;
        }
        if (streams->are_replies && stream->n_head == HEAD) {
            if (stream->left > atomic_load(&most_of_reply)) {
                return false;
            }
            stream->held =
                0; // a call gets one reply, or takes them one after the other: only the length is of interest
        }
        if (stream->n_head == HEAD && stream->left == 0) {
            stream->n_head = 0;
            stream->held = 0;
        }
        bytes += n_taken;
        n -= n_taken;
    }
    return stream->held == before || count(streams, (int64_t)stream->held - before);
}

void sl_rpc_streams_end(struct sl_rpc_streams *streams) {
    for (size_t i = 0; i < streams->n; i++) {
        if (!streams->table[i].has_closed && streams->table[i].held > 0) {
            (void)count(streams, -(int64_t)streams->table[i].held); // to hold less is always allowed
        }
    }
    free(streams->table);
    *streams = (struct sl_rpc_streams){
        .owner = streams->owner, .caller = streams->caller, .are_replies = streams->are_replies};
}
