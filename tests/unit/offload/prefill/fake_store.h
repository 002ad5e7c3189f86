// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a kvstore's side of offloaded layers for tests of prefill's: remote KVs whose segments lie in a region of a
 *          fabric of its own, in this process. It keeps what has arrived as it came, and searches nothing.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/arena.h"
#include "net/fabric/fetch.h"
#include "engine/offload/remote_kv/near.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc.h"

#define FAKE_MAX_REMOTE_KVS 8
#define FAKE_MAX_SEGMENTS   64
#define FAKE_LEASE_MS       300

struct fake_segment {
    struct fake_remote_kv *remote_kv;
    struct sl_near_segment where;
    void *block;
    struct sl_grant *grant;
    bool arrived;
};

struct fake_remote_kv {
    struct fake_store *store;
    bool leased;
    int32_t first_offloaded_head, n_offloaded_heads;
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
    struct fake_remote_kv remote_kvs[FAKE_MAX_REMOTE_KVS];
    int n_remote_kvs;
    int n_granted, n_renewed, n_maps; // calls
    bool full;                        // OpenAnnex is refused
    bool one_at_a_time;               // a grant is refused while something granted has not arrived
    int n_refused;                    // such grants
    bool says_exists;                 // OpenAnnex is answered by what is none of its answers
    int64_t lease_ms;                 // of its remote KVs
    int n_restoring;                  // calls of OpenAnnex that say that the document is read back
    int64_t wait_ms;                  // of the last call
    int64_t waited_ms;                // as the reply says
    int n_unready;                    // calls of AwaitAnnex that come back with nothing, after a while
};

void fake_store_start(struct fake_store *store, const char *transport, const struct sl_page_layout *work, size_t bytes);
const char *fake_store_address(const struct fake_store *store);
void fake_store_close_window(struct fake_store *store); // reads are refused from now on
void fake_store_stop(struct fake_store *store);         // idempotent
int fake_store_n_leased(struct fake_store *store);
// The remote KV of a share; NULL: it was never opened.
struct fake_remote_kv *fake_store_remote_kv(struct fake_store *store, int32_t first_offloaded_head);
// The page of `offloaded_head` (of the session) that holds `token`, as it has arrived.
const void *fake_remote_kv_page(const struct fake_remote_kv *remote_kv, int32_t offloaded_head, int64_t token);
