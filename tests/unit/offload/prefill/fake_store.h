// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a kvstore's side of offloaded layers for tests of prefill's: annexes whose segments lie in a region of a
 *          fabric of its own, in this process. It keeps what has arrived as it came, and searches nothing.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/arena.h"
#include "net/fabric/fetch.h"
#include "engine/offload/annex/near.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc.h"

#define FAKE_MAX_ANNEXES  8
#define FAKE_MAX_SEGMENTS 64
#define FAKE_LEASE_MS     300

struct fake_segment {
    struct fake_annex *annex;
    struct sl_near_segment where;
    void *block;
    struct sl_grant *grant;
    bool arrived;
};

struct fake_annex {
    struct fake_store *store;
    bool leased;
    int32_t first_lane, n_lanes;
    int64_t n_tokens; // arrived, one after the other
    struct fake_segment segments[FAKE_MAX_SEGMENTS];
    int n_segments;
};

struct fake_store {
    struct sl_page_layout work;
    struct sl_fabric *fabric;
    uint8_t *region;
    struct sl_arena *arena;
    struct sl_window *window;
    uint8_t *ticket;
    size_t ticket_bytes;
    struct sl_rpc_server *server;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct fake_annex annexes[FAKE_MAX_ANNEXES];
    int n_annexes;
    int n_granted, n_renewed, n_maps; // calls
    bool full;                        // OpenAnnex is refused
    bool one_at_a_time;               // a grant is refused while something granted has not arrived
    int n_refused;                    // such grants
    bool says_exists;                 // OpenAnnex is answered by what is none of its answers
    int n_unready;                    // calls of AwaitAnnex that come back with nothing, after a while
};

void fake_store_start(struct fake_store *store, const char *transport, const struct sl_page_layout *work, size_t bytes);
const char *fake_store_address(const struct fake_store *store);
void fake_store_close_window(struct fake_store *store); // reads are refused from now on
void fake_store_stop(struct fake_store *store);         // idempotent
int fake_store_n_leased(struct fake_store *store);
// The annex of a share; NULL: it was never opened.
struct fake_annex *fake_store_annex(struct fake_store *store, int32_t first_lane);
// The page of `lane` (of the session) that holds `token`, as it has arrived.
const void *fake_annex_page(const struct fake_annex *annex, int32_t lane, int64_t token);
