// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the files of the remote source alone.
 *
 *     remote_source.c  shares and their stores; questions, answers, the order in which stores are asked
 *     asked.c          the memory of a question and its answers
 *     remote_reads.c   retrieve=pull: reads from a store's memory instead of asking
 */
#pragma once

#include "net/offload/remote/remote_kv_map.h"
#include "net/offload/remote/remote_source.h"

#define SL_MAX_REPLICAS 2

struct sl_replica {
    char *store, *address; // of its gRPC server, for messages; of its fabric
    uint64_t epoch, remote_kv_id;
    struct sl_connection *connection; // NULL while disconnected
    int n_connections;                // opened so far
    // another process is there now, or one that does not answer such questions, or holds no such remote KV
    bool is_gone;
    // For reads:
    bool is_read;    // retrieve=pull, and reading is possible
    uint8_t *window; // its ticket
    size_t window_bytes;
    int64_t lease_ms, renewed_ns; // the remote KV lives at least lease_ms after renewed_ns
    struct sl_remote_kv_map map;
    struct sl_fabric_request *map_request; // pending
    void *map_answer;
};

struct sl_remote_share {
    int n_replicas, first; // first: the replica that is asked first
    struct sl_replica replicas[SL_MAX_REPLICAS];
};

struct sl_remote {
    struct sl_source base;
    struct sl_connections *connections;
    struct sl_remote_share shares[SL_MAX_SHARES];
    // [n_offloaded_heads] by first offloaded head of a TOPK request: the replica whose answer was used last; -1: none
    int8_t *holder;
    int n_offloaded_heads;
    int64_t n_prompt;
    struct sl_fetch_range *ranges; // [ranges_cap] scratch
    size_t ranges_cap;
    struct sl_asked *unused;
};

struct sl_asked {
    struct sl_asked *next; // in the list remote.unused
    struct sl_remote_share *share;
    char *request;
    size_t request_bytes, request_cap;
    int64_t asked_ns, deadline_ns;
    size_t capacity;        // of an answer
    struct sl_fetch *fetch; // into the answer buffer of replica `reads`, which is asked only if the fetch fails
    int reads;
    size_t read_bytes; // of the answer
    struct {
        struct sl_fabric_request *request;
        void *answer;
        size_t cap;
        int64_t sent_ns;
        int n_connections; // of the replica: identifies the connection that carried the question
        int64_t retry_ns;  // not asked again before
        bool was_cut;      // its connection was cut meanwhile
    } replicas[SL_MAX_REPLICAS];
};

// Returns the time until which only the first store is waited for.
static inline int64_t sl_asked_half(const struct sl_asked *asked) {
    return asked->asked_ns + (asked->deadline_ns - asked->asked_ns) / 2;
}

// Returns true if the store was only unavailable: it may answer the same question a little later.
static inline bool sl_ask_may_pass(enum sl_status status) {
    return status == SL_ERR_DEADLINE || status == SL_ERR_PEER_LOST || status == SL_ERR_EXHAUSTED;
}

// asked.c:
// Takes a question, not sent yet, from the list of unused ones, or makes one. NULL: no memory.
struct sl_asked *sl_asked_take(struct sl_asked **unused, const struct sl_near_request *request, size_t request_bytes,
                               size_t capacity);
void sl_asked_give(struct sl_asked **unused, struct sl_asked **asked); // nothing may be pending
// Makes room for asked->capacity bytes of that replica's answer; false: no memory.
bool sl_asked_make_room(const struct sl_source *source, struct sl_asked *asked, int replica);
void sl_asked_free_all(const struct sl_source *source, struct sl_asked **unused);

// remote_reads.c
// Sets up reads of a replica; where they would be invalid or of no use, it is asked for everything. False: no memory.
bool sl_replica_set_up_reads(struct sl_replica *replica, const Sluice__V1__AnnexShare *remote_kv,
                             const struct sl_plan *plan);
// Starts to read what the request asks for into an answer; false: the store must be asked.
bool sl_remote_begin_read(struct sl_remote *r, struct sl_asked *asked);
// Ends the read. SL_OK: everything was read while the remote KV had its lease. Otherwise the read counts as not begun.
enum sl_status sl_remote_end_read(struct sl_remote *r, struct sl_asked *asked);
