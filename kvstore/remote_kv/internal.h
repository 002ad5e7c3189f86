// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the table of remote KVs (remote_kv_table.c), one remote KV (held_remote_kv.c) and its growth
// (growth.c).
#pragma once

#include "base/loop.h"
#include "kvstore/remote_kv/remote_kv_table.h"

// A segment that was granted to a remote KV and is not yet part of it.
struct sl_growth {
    struct sl_growth *next; // the next segment, adjacent to this one
    struct sl_kv_segment_config config;
    uint64_t serial;               // tells it apart from a later grant for the same range
    char inbound_id[40];           // "": no ship is expected
    size_t covered_bytes;          // its part of the remote KV's promise
    bool building;                 // the builder has taken the arrived block
    struct sl_kv_segment *segment; // built or found: waits for the segments before it
};

struct sl_held_remote_kv {
    struct sl_held_remote_kv *next;
    uint64_t id;
    char lease_id[SL_LEASE_ID_BYTES];
    int64_t deadline_ns;
    bool listed; // under a lease
    int n_users; // threads that use it; freed when there are none and the lease has ended
    struct sl_kv_family family;
    struct sl_prompt_hashes prompt;
    struct sl_capsule_id capsule;
    struct sl_remote_kv *remote_kv;
    struct sl_window *window; // NULL: none, or the lease has ended
    // The state of the client that queries. A lease has one such client at a time; another, after a failure, begins with a reset.
    struct sl_near_memory *memory;
    size_t promised_bytes; // for the segments that have not been granted yet
    struct sl_growth *growing;
    struct sl_error failure; // why a segment was forgotten since the last grant
};

struct sl_remote_kv_table {
    struct sl_remote_kv_table_config config;
    // The builder's. Its mutex guards the following, and all held remote KVs except the inside of `remote_kv`; `changed`: a
    // remote KV has grown, failed or ended.
    struct sl_loop loop;
    struct sl_held_remote_kv *first;
    int64_t n_leases;
    uint64_t next_serial;
};

// held_remote_kv.c

// Creates a remote KV with a copy of the prompt's hashes. It is not listed yet.
enum sl_status sl_held_remote_kv_create(const struct sl_ops *ops, const struct sl_kv_family *family,
                                        const struct sl_prompt_hashes *prompt, struct sl_held_remote_kv **held_out,
                                        struct sl_error *err);
void sl_held_remote_kv_destroy(struct sl_held_remote_kv **held); // accepts NULL, nulls
// Offers a complete remote KV to the pins of documents.
void sl_held_remote_kv_pin(struct sl_remote_kv_pins *pins, const struct sl_held_remote_kv *held);
// Shows the segment, which must be of the remote KV's own prompt, in the window and appends it.
enum sl_status sl_held_remote_kv_append(struct sl_held_remote_kv *held, struct sl_kv_segment *segment,
                                        struct sl_error *err);
// These four need the lock. Returns the link to the remote KV under this lease, or the link that is NULL if there is
// none.
struct sl_held_remote_kv **sl_remote_kv_table_find_lease(struct sl_remote_kv_table *remote_kvs, const char *lease_id);
// Returns the remote KV under this lease, renewed, or NULL.
struct sl_held_remote_kv *sl_remote_kv_table_find(struct sl_remote_kv_table *remote_kvs, const char *lease_id);
// Ends one use.
void sl_held_remote_kv_unuse(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held);
// Frees the remote KV if its lease has ended and no thread uses it. Its segments stay, as cache.
void sl_held_remote_kv_free_if_over(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held);

// growth.c
void *sl_remote_kv_table_builder_main(void *remote_kvs);
// Call with the lock held. Forgets *at and all later ones: ends their inbound transfers and promises their bytes again.
void sl_remote_kv_table_forget_from(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held,
                                    struct sl_growth **at);
// Computes the bytes to promise for the segments from token `begin` on: in the format in which they are kept and, if
// they are shipped in another format, also as many blocks as prefill has in transit at a time (SL_KV_SEGMENTS_QUEUED).
enum sl_status sl_remote_kv_table_bytes_to_come(const struct sl_kv_family *family, int64_t begin, int64_t n_tokens,
                                                size_t *bytes_out, struct sl_error *err);
