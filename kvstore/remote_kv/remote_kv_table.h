// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the remote KV that a kvstore holds for sessions, each under a lease, and how they grow.
 *
 * A remote KV begins with the stored segments that match its prompt, and grows by the segments that are shipped:
 *
 *     granted --(arrived)--> building --> built --(all before it are part of the remote KV)--> appended, indexed
 *        |                      |
 *        +--- ship failed ------+--- not what was granted, no memory: this segment and all granted after it are
 *                                    forgotten, and every caller that awaits the remote KV gets the reason
 *
 *   granted  sl_remote_kv_table_grant()           building, built  the builder, a separate thread: it makes the key
 *            indexes
 *   forgotten  forget_from()              appended         append_built()
 *
 * Memory:  opening promises memory for all segments to come. Every grant takes its part out of the promise, and a
 *          forgotten segment puts its part back. Where rows are packed, the shipped blocks are promised as well, as
 *          many as are in transit at a time. A remote KV that ends returns the rest of its promise; its segments stay,
 *          as cache (kvstore/memory/segments.h).
 * Windows: every remote KV has its own window over the arena (offsets count from its base). It shows the remote KV's
 *          segments and nothing else, and closes when the lease ends. net/fabric/fetch.h says how far this protects
 *          where reads come without a message.
 * Leases:  ended by sl_remote_kv_table_release(), or by the reaper when they are not renewed; questions renew too. Ids
 *          cannot be guessed.
 * Threads: any number. Locks in this order: remote KVs, then room, segments, inbound, ledger, arena.
 */
#pragma once

#include "base/lease_id.h"
#include "base/progress_counter.h"
#include "net/fabric/fetch.h"
#include "kvstore/memory/room.h"
#include "kvstore/remote_kv/remote_kv_pins.h"
#include "engine/offload/remote_kv/near.h"

struct sl_remote_kv_table;

struct sl_remote_kv_table_config {
    struct sl_room *room; // with its ledger, inbound transfers and segments; must outlive the remote KVs
    const struct sl_ops *ops;
    struct sl_team *team; // makes key indexes; may be NULL
    int64_t lease_ms;
    struct sl_progress_counter *progress_counter; // of the builder, which counts its turns; may be NULL
    struct sl_fabric *fabric;       // the room's arena is a region of it; NULL: remote KVs without windows
    struct sl_remote_kv_pins *pins; // outlives the table; NULL: no documents
};

enum sl_status sl_remote_kv_table_create(const struct sl_remote_kv_table_config *config,
                                         struct sl_remote_kv_table **remote_kvs_out, struct sl_error *err);
// Ends every lease and stops the builder. No remote KV may be borrowed. Accepts NULL, nulls.
void sl_remote_kv_table_destroy(struct sl_remote_kv_table **remote_kvs);

// ---- leases ---------------------------------------------------------------------------------------------------------

struct sl_remote_kv_lease {
    uint64_t remote_kv_id; // see sl_remote_kv_table_begin_alike(); the rest is random
    char lease_id[SL_LEASE_ID_BYTES];
    int64_t n_tokens;                    // held already
    uint8_t window[SL_TICKET_MAX_BYTES]; // ticket for reads of what is held
    size_t window_bytes;
};
/*
 * Opens a remote KV. prompt: its hashes are copied. capsule: of the same prompt. SL_ERR_INVALID: family or prompt out of
 * bounds. SL_ERR_EXHAUSTED: no memory for the segments to come; err has the numbers.
 */
enum sl_status sl_remote_kv_table_open(struct sl_remote_kv_table *remote_kvs, const char *label,
                                       const struct sl_kv_family *family, const struct sl_prompt_hashes *prompt,
                                       const struct sl_capsule_id *capsule, struct sl_remote_kv_lease *lease_out,
                                       struct sl_error *err);
bool sl_remote_kv_table_renew(struct sl_remote_kv_table *remote_kvs, const char *lease_id); // false: no such lease
void sl_remote_kv_table_release(struct sl_remote_kv_table *remote_kvs, const char *lease_id);
// ends the leases that were not renewed
void sl_remote_kv_table_reap(struct sl_remote_kv_table *remote_kvs, int64_t now_ns);

// ---- growing --------------------------------------------------------------------------------------------------------

/*
 * Grants memory for the segment [begin, begin + n_tokens): at the end of the remote KV and its grants, or again a
 * granted segment whose ship failed. *capacity_out: bytes of the block to ship. SL_ERR_EXISTS: the segment is part of
 * the remote KV, or will be without being shipped. SL_ERR_NOT_FOUND: no such lease.
 */
enum sl_status sl_remote_kv_table_grant(struct sl_remote_kv_table *remote_kvs, const char *lease_id, int64_t begin,
                                        int64_t n_tokens, struct sl_inbound_ticket *ticket_out, size_t *capacity_out,
                                        struct sl_error *err);
struct sl_remote_kv_wait {
    const char *lease_id;
    int64_t n_tokens; // that the remote KV must have
    int64_t deadline_ns;
    bool (*go_on)(void *arg); // called from time to time; false cancels the wait
    void *arg;
};

/*
 * Waits until the remote KV has wait->n_tokens. SL_ERR_DEADLINE, SL_ERR_CANCELLED, SL_ERR_NOT_FOUND (no such lease, or
 * it ended meanwhile), or the reason why a segment did not become part of the remote KV.
 */
enum sl_status sl_remote_kv_table_await(struct sl_remote_kv_table *remote_kvs, const struct sl_remote_kv_wait *wait,
                                        int64_t *n_tokens_out, struct sl_error *err);

// ---- questions ------------------------------------------------------------------------------------------------------

struct sl_held_remote_kv;

// Returns the remote KV of a question and renews its lease; give it back. NULL: no such remote KV.
struct sl_held_remote_kv *sl_remote_kv_table_borrow(struct sl_remote_kv_table *remote_kvs, uint64_t remote_kv_id);
void sl_remote_kv_table_return(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv **held);
const struct sl_remote_kv *sl_held_remote_kv_get(const struct sl_held_remote_kv *held);
// Returns the record of which pages the asker has near. Requests for the same offloaded heads must be answered one
// after the other (engine/offload/remote_kv/near.h).
struct sl_near_memory *sl_held_remote_kv_memory(struct sl_held_remote_kv *held);

// Compares two ids: true if the remote KVs have the same family and the same first page of the prompt; rarely true for
// others.
bool sl_remote_kv_table_begin_alike(uint64_t remote_kv_id, uint64_t other_id);

int64_t sl_remote_kv_table_count(struct sl_remote_kv_table *remote_kvs); // leases: a leak gauge
