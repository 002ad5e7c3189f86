// SPDX-License-Identifier: Apache-2.0
// Purpose: what the table of annexes (annexes.c), one of them (held_annex.c) and their growth (growth.c) share.
#pragma once

#include "kvstore/annexes/annexes.h"

// A segment that has been granted to an annex and is not part of it yet.
struct sl_growth {
    struct sl_growth *next; // the one behind it, without a gap
    struct sl_kv_segment_config config;
    uint64_t serial;               // tells it from one that was granted anew in its place
    char inbound_id[40];           // "": nothing is shipped
    size_t covered_bytes;          // its part of the annex's promise
    bool building;                 // the builder has taken what arrived
    struct sl_kv_segment *segment; // built or found: waits for those before it
};

struct sl_held_annex {
    struct sl_held_annex *next;
    uint64_t id;
    char lease_id[SL_LEASE_ID_BYTES];
    int64_t deadline_ns;
    bool listed; // under a lease
    int n_users; // threads at work with it; freed when there are none and the lease has ended
    struct sl_kv_family family;
    struct sl_prompt_hashes prompt;
    struct sl_annex *annex;
    struct sl_window *window; // NULL: none, or the lease has ended
    // Of whoever asks. A lease has one asker at a time; another one, after a failure, begins with a reset.
    struct sl_near_memory *memory;
    size_t promised_bytes; // of what has not been granted yet
    struct sl_growth *growing;
    struct sl_error failure; // why a segment was forgotten since the last grant
};

struct sl_annexes {
    struct sl_annexes_config config;
    pthread_mutex_t mutex;  // over what follows, and all held annexes but what is inside `annex`
    pthread_cond_t changed; // an annex has grown, failed or ended
    struct sl_held_annex *first;
    int64_t n_leases;
    uint64_t next_serial;
    bool stopping;
    pthread_t builder;
};

// held_annex.c

// A copy of the prompt's hashes is taken. Not listed yet.
enum sl_status sl_held_annex_create(const struct sl_ops *ops, const struct sl_kv_family *family,
                                    const struct sl_prompt_hashes *prompt, struct sl_held_annex **held_out,
                                    struct sl_error *err);
void sl_held_annex_destroy(struct sl_held_annex **held); // accepts NULL, nulls
// The segment, of the annex's own prompt, is shown by its window and becomes part of it.
enum sl_status sl_held_annex_append(struct sl_held_annex *held, struct sl_kv_segment *segment, struct sl_error *err);
// Lock held, of these four. Where the annex under this lease is linked; NULL is linked there if there is none.
struct sl_held_annex **sl_annexes_find_lease(struct sl_annexes *annexes, const char *lease_id);
// The annex under this lease, renewed, or NULL.
struct sl_held_annex *sl_annexes_find(struct sl_annexes *annexes, const char *lease_id);
// One user less.
void sl_held_annex_unuse(struct sl_annexes *annexes, struct sl_held_annex *held);
// Nobody uses it and its lease has ended: freed. Its segments stay, as cache.
void sl_held_annex_free_if_over(struct sl_annexes *annexes, struct sl_held_annex *held);

// growth.c
void *sl_annexes_builder_main(void *annexes);
// Lock held. Forget *at and all behind it; inbound transfers end, and what they were granted is promised again.
void sl_annexes_forget_from(struct sl_annexes *annexes, struct sl_held_annex *held, struct sl_growth **at);
// What is promised for the segments from token `begin` on: as they are kept, and where that is another format than they
// are shipped in, as many blocks beside them as prefill has on their way at a time (SL_KV_SEGMENTS_QUEUED).
enum sl_status sl_annexes_bytes_to_come(const struct sl_kv_family *family, int64_t begin, int64_t n_tokens,
                                        size_t *bytes_out, struct sl_error *err);
