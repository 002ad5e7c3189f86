// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the table of annexes (annexes.c), one annex (held_annex.c) and its growth (growth.c).
#pragma once

#include "kvstore/annexes/annexes.h"

// A segment that was granted to an annex and is not yet part of it.
struct sl_growth {
    struct sl_growth *next; // the next segment, adjacent to this one
    struct sl_kv_segment_config config;
    uint64_t serial;               // tells it apart from a later grant for the same range
    char inbound_id[40];           // "": no ship is expected
    size_t covered_bytes;          // its part of the annex's promise
    bool building;                 // the builder has taken the arrived block
    struct sl_kv_segment *segment; // built or found: waits for the segments before it
};

struct sl_held_annex {
    struct sl_held_annex *next;
    uint64_t id;
    char lease_id[SL_LEASE_ID_BYTES];
    int64_t deadline_ns;
    bool listed; // under a lease
    int n_users; // threads that use it; freed when there are none and the lease has ended
    struct sl_kv_family family;
    struct sl_prompt_hashes prompt;
    struct sl_annex *annex;
    struct sl_window *window; // NULL: none, or the lease has ended
    // Of the asker. A lease has one asker at a time; another one, after a failure, begins with a reset.
    struct sl_near_memory *memory;
    size_t promised_bytes; // for the segments that have not been granted yet
    struct sl_growth *growing;
    struct sl_error failure; // why a segment was forgotten since the last grant
};

struct sl_annexes {
    struct sl_annexes_config config;
    pthread_mutex_t mutex;  // guards the following, and all held annexes except the inside of `annex`
    pthread_cond_t changed; // an annex has grown, failed or ended
    struct sl_held_annex *first;
    int64_t n_leases;
    uint64_t next_serial;
    bool stopping;
    pthread_t builder;
};

// held_annex.c

// Creates an annex with a copy of the prompt's hashes. It is not listed yet.
enum sl_status sl_held_annex_create(const struct sl_ops *ops, const struct sl_kv_family *family,
                                    const struct sl_prompt_hashes *prompt, struct sl_held_annex **held_out,
                                    struct sl_error *err);
void sl_held_annex_destroy(struct sl_held_annex **held); // accepts NULL, nulls
// Shows the segment, which must be of the annex's own prompt, in the window and appends it.
enum sl_status sl_held_annex_append(struct sl_held_annex *held, struct sl_kv_segment *segment, struct sl_error *err);
// These four need the lock. Returns the link to the annex under this lease, or the link that is NULL if there is none.
struct sl_held_annex **sl_annexes_find_lease(struct sl_annexes *annexes, const char *lease_id);
// Returns the annex under this lease, renewed, or NULL.
struct sl_held_annex *sl_annexes_find(struct sl_annexes *annexes, const char *lease_id);
// Ends one use.
void sl_held_annex_unuse(struct sl_annexes *annexes, struct sl_held_annex *held);
// Frees the annex if its lease has ended and no thread uses it. Its segments stay, as cache.
void sl_held_annex_free_if_over(struct sl_annexes *annexes, struct sl_held_annex *held);

// growth.c
void *sl_annexes_builder_main(void *annexes);
// Call with the lock held. Forgets *at and all later ones: ends their inbound transfers and promises their bytes again.
void sl_annexes_forget_from(struct sl_annexes *annexes, struct sl_held_annex *held, struct sl_growth **at);
// Computes the bytes to promise for the segments from token `begin` on: in the format in which they are kept and, if
// they are shipped in another format, also as many blocks as prefill has in transit at a time (SL_KV_SEGMENTS_QUEUED).
enum sl_status sl_annexes_bytes_to_come(const struct sl_kv_family *family, int64_t begin, int64_t n_tokens,
                                        size_t *bytes_out, struct sl_error *err);
