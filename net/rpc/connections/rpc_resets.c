// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds connections that open calls and cancel them at once, or let too many wait; the server closes them.
 *
 * Design: HTTP/2 lets a client reset a stream for nine bytes, and open the next one at once: its limit of concurrent streams
 *         never applies, while gRPC core (seen in 1.51) keeps each call until a server has accepted it. So we count a peer's
 *         calls that were cancelled as soon as they were accepted. More than MOST in a second close its connection. Each
 *         closed connection halves MOST for the other connections of its host, down to a sixteenth, until none was closed
 *         for CALM_S. So a client that connects again at once may cancel fewer calls each time.
 *         A call counts as well that takes the place of another of its caller, who lets too many wait (rpc_call.c): else each
 *         of thousands in a second would be accepted, and another ended.
 *         Peers share N_ENTRIES entries by their hash. An entry counts all its peers together, so that a client cannot
 *         escape with two ports in one entry; the peer that crosses the limit loses its connection.
 *         A caller whose connection was closed gets connections with fewer streams for CALM_S (rpc_streams.c):
 *         else each of them costs the server hundreds of calls, which it accepts and ends, until it is closed too.
 *         gRPC core creates a call for each stream before a server accepts it, and frees it long after the reset. So
 *         rpc_headers.c also counts resets that arrive in the same read as the start of their stream. It does not know the
 *         host, so a closed connection halves that limit for everyone.
 * Threads: any.
 */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/locked.h"
#include "net/rpc/connections/rpc_connections.h"

enum { N_ENTRIES = 4096, MOST = 500, CALM_S = 10, MOST_HALVES = 4 };

struct closed {
    int64_t last_ns; // when a connection was last closed
    int n;
};

static struct {
    pthread_mutex_t mutex;
    struct {
        int64_t since_ns;
        int n;
        uint64_t closed; // hash of the peer whose connection was closed in this second; 0: none
    } entries[N_ENTRIES];
    struct closed hosts[N_ENTRIES], all;
} resets = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static atomic_llong
    closed_ns[N_ENTRIES]; // when a connection of a caller was last closed, by the caller's hash, which is odd

uint64_t sl_rpc_caller_hash(const struct sl_identity *caller) {
    const char *name = caller->tenant[0] ? caller->tenant : caller->name;
    return sl_hash(name, strlen(name), caller->role) | 1;
}

void sl_rpc_resets_note(uint64_t caller) {
    if (caller != 0) {
        atomic_store(&closed_ns[caller / 2 % N_ENTRIES], sl_now_ns());
    }
}

bool sl_rpc_resets_are_recent(uint64_t caller) {
    const long long last_ns = caller != 0 ? atomic_load(&closed_ns[caller / 2 % N_ENTRIES]) : 0;
    return last_ns != 0 && sl_now_ns() - last_ns < CALM_S * SL_NS_PER_S;
}

// Returns what is allowed in a second after connections were closed. Lock held.
static int most_after(struct closed *closed, int64_t now_ns) {
    closed->n = now_ns - closed->last_ns > CALM_S * SL_NS_PER_S ? 0 : closed->n;
    return MOST >> closed->n;
}

static void note_closed(struct closed *closed, int64_t now_ns) {
    closed->last_ns = now_ns;
    closed->n += closed->n < MOST_HALVES;
}

static bool is_too_often(uint64_t hash, uint64_t host) {
    const int64_t now_ns = sl_now_ns();
    SL_LOCKED(&resets.mutex);
    const size_t i = hash % N_ENTRIES, h = host % N_ENTRIES;
    if (now_ns - resets.entries[i].since_ns > SL_NS_PER_S) {
        resets.entries[i].since_ns = now_ns;
        resets.entries[i].n = 0;
        resets.entries[i].closed = 0;
    }
    // The other calls of a closed connection end with it, and do not count.
    const bool too_often =
        resets.entries[i].closed != hash && ++resets.entries[i].n > most_after(&resets.hosts[h], now_ns);
    if (too_often) {
        note_closed(&resets.hosts[h], now_ns);
        note_closed(&resets.all, now_ns);
        resets.entries[i].n = 0;
        resets.entries[i].closed = hash;
    }
    return too_often;
}

bool sl_rpc_resets_of_peer(const char *peer) {
    const char *port = strrchr(peer, ':');
    return port && is_too_often(sl_hash(peer, strlen(peer), 0), sl_hash(peer, (size_t)(port - peer), 0));
}

bool sl_rpc_resets_in_a_read(int64_t *since_ns, int *n) {
    const int64_t now_ns = sl_now_ns();
    *n = now_ns - *since_ns > SL_NS_PER_S ? 1 : *n + 1;
    *since_ns = *n == 1 ? now_ns : *since_ns;
    SL_LOCKED(&resets.mutex);
    const bool too_often = *n > most_after(&resets.all, now_ns);
    if (too_often) {
        note_closed(&resets.all, now_ns);
    }
    return too_often;
}
