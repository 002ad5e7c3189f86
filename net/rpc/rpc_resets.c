// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: closes connections that open calls and cancel them at once.
 *
 * Design: HTTP/2 lets a client reset a stream for nine bytes, and open the next one at once: its limit of concurrent streams
 *         never applies, while gRPC core (seen in 1.51) keeps each call until a server has accepted it. Calls of a peer that
 *         were cancelled as soon as they were accepted are counted for a second; more than MOST close its connection. A
 *         peer has an entry by its hash. Peers with the same hash take turns in it, so that some are counted too low.
 * Threads: any.
 */
#include <grpc/support/alloc.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/rpc/rpc_internal.h"

enum { N_ENTRIES = 4096, MOST = 500 };

static struct {
    pthread_mutex_t mutex;
    struct {
        uint64_t hash;
        int64_t since_ns;
        int n;
    } entries[N_ENTRIES];
} resets = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool is_too_often(uint64_t hash) {
    const int64_t now_ns = sl_now_ns();
    pthread_mutex_lock(&resets.mutex);
    const size_t i = hash % N_ENTRIES;
    if (resets.entries[i].hash != hash || now_ns - resets.entries[i].since_ns > SL_NS_PER_S) {
        resets.entries[i].hash = hash;
        resets.entries[i].since_ns = now_ns;
        resets.entries[i].n = 0;
    }
    const bool too_often = ++resets.entries[i].n > MOST;
    if (too_often) {
        resets.entries[i].n = INT_MIN; // its other calls end with the connection
    }
    pthread_mutex_unlock(&resets.mutex);
    return too_often;
}

void sl_rpc_resets_count(grpc_call *call) {
    char *peer = grpc_call_get_peer(call);
    if (peer && is_too_often(sl_hash(peer, strlen(peer), 0))) {
        sl_rpc_accept_cut(peer);
    }
    gpr_free(peer);
}
