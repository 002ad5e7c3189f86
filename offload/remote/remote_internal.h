// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of the remote source share and nobody else needs.
 *
 *     remote_source.c  shares and their stores; questions, answers, who is asked next
 *     asked.c          the memory of a question and its answers
 *     remote_reads.c   retrieve=pull: what can be read from a store's memory instead of being asked for
 */
#pragma once

#include "offload/remote/annex_map.h"
#include "offload/remote/remote_source.h"

#define SL_MAX_REPLICAS 2

struct sl_replica {
    char *store, *address; // of its gRPC, for people; of its fabric
    uint64_t epoch, annex_id;
    struct sl_connection *connection; // NULL while it is cut
    int n_connections;                // that have been opened
    bool is_gone; // another process is there now, one that does not answer such questions, or holds no such annex
    // Reads:
    bool is_read;    // retrieve=pull, and nothing speaks against it
    uint8_t *window; // its ticket
    size_t window_bytes;
    int64_t lease_ms, renewed_ns; // the annex lives so long from then on, at least
    struct sl_annex_map map;
    struct sl_fabric_request *map_request; // under way
    void *map_answer;
};

struct sl_remote_share {
    int n_replicas, first; // first: who is asked first
    struct sl_replica replicas[SL_MAX_REPLICAS];
};

struct sl_remote {
    struct sl_source base;
    struct sl_connections *connections;
    struct sl_remote_share shares[SL_MAX_SHARES];
    int8_t *holder; // [n_lanes] by first lane of a TOPK request: whose answer was used last; -1: nobody's
    int n_lanes;
    int64_t n_prompt;
    struct sl_fetch_range *ranges; // [ranges_cap] scratch
    size_t ranges_cap;
    struct sl_asked *unused;
};

struct sl_asked {
    struct sl_asked *next; // in remote.unused
    struct sl_remote_share *share;
    char *request;
    size_t request_bytes, request_cap;
    int64_t asked_ns, deadline_ns;
    size_t capacity;        // of an answer
    struct sl_fetch *fetch; // into the answer of replica `reads`: asked for only if that fails
    int reads;
    size_t read_bytes; // of the answer
    struct {
        struct sl_fabric_request *request;
        void *answer;
        size_t cap;
        int64_t sent_ns;
        int n_connections; // of the replica: by which connection it was asked
        int64_t retry_ns;  // not asked again before
        bool was_cut;      // its connection, while it was asked
    } replicas[SL_MAX_REPLICAS];
};

// Until then who is asked first is waited for alone.
static inline int64_t sl_asked_half(const struct sl_asked *asked) {
    return asked->asked_ns + (asked->deadline_ns - asked->asked_ns) / 2;
}

// Nothing was wrong with the question: the same store may answer it a little later.
static inline bool sl_ask_may_pass(enum sl_status status) {
    return status == SL_ERR_DEADLINE || status == SL_ERR_PEER_LOST || status == SL_ERR_EXHAUSTED;
}

// asked.c
// A question that has not been asked yet, of a list of unused ones or new. NULL: no memory.
struct sl_asked *sl_asked_take(struct sl_asked **unused, const struct sl_near_request *request, size_t request_bytes,
                               size_t capacity);
void sl_asked_give(struct sl_asked **unused, struct sl_asked **asked); // nothing is under way any more
// Room for asked->capacity bytes of that replica's answer; false: no memory.
bool sl_asked_make_room(const struct sl_source *source, struct sl_asked *asked, int replica);
void sl_asked_free_all(const struct sl_source *source, struct sl_asked **unused);

// remote_reads.c
// What reads of a replica need to know. It is asked for everything where they would not be true or not be of use. False: no
// memory.
bool sl_replica_set_up_reads(struct sl_replica *replica, const Sluice__V1__AnnexShare *annex,
                             const struct sl_plan *plan);
// Begin to read what the request asks for into an answer; false: it must be asked for.
bool sl_remote_begin_read(struct sl_remote *r, struct sl_asked *asked);
// SL_OK: everything has been read while the annex had its lease. Else it is as if it had never begun.
enum sl_status sl_remote_end_read(struct sl_remote *r, struct sl_asked *asked);
