// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sessions of conversations between two turns, each under a lease.
 *
 *     put   behind an answer            take     by the next turn; the session is then the caller's
 *     gone  released, its time is over, or somebody needs the memory: the one that has been idle for longest first
 *     lent  while it is copied: it stays, and whoever comes to take it waits
 *
 * Invariants: a kept session has a name of 128 random bits, and says which tokens of which tenant it holds (the salted hash in `id`):
 *             whoever takes it must know both. Nothing is promised to it, so it never stands in the way of a job.
 * Threads: any; the engine's thread ends what is over, between steps or once a second.
 */
#pragma once

#include <pthread.h>

#include "base/lease_id.h"
#include "engine/kvcache/capsule.h"

struct sl_kept_session {
    struct sl_kept_session *next;
    char lease_id[SL_LEASE_ID_BYTES];
    struct sl_capsule_id id; // prefix_hash: of the tokens that the session holds
    struct sl_session *session;
    int64_t deadline_ns;
    bool is_lent, is_over; // over: released while it was lent
};

struct sl_kept {
    pthread_mutex_t mutex;
    pthread_cond_t returned;       // one that was lent
    struct sl_kept_session *first; // the oldest
};

void sl_kept_init(struct sl_kept *kept);
void sl_kept_cleanup(struct sl_kept *kept); // ends what is kept

// *session_inout is taken over on success. lease_id_out: its name.
enum sl_status sl_kept_put(struct sl_kept *kept, const struct sl_capsule_id *id, struct sl_session **session_inout,
                           int64_t keep_ms, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err);
// What is kept under this name, which is not any more; NULL: nothing, or it is lent until the deadline. Given back to put_back(), or freed by sl_kept_free().
struct sl_kept_session *sl_kept_take(struct sl_kept *kept, const char *lease_id, int64_t deadline_ns);
void sl_kept_put_back(struct sl_kept *kept, struct sl_kept_session *one);
// The same, to read from, briefly: it stays under its name. NULL: nothing, or it is lent to another.
struct sl_kept_session *sl_kept_lend(struct sl_kept *kept, const char *lease_id);
void sl_kept_return(struct sl_kept *kept, struct sl_kept_session *one);
void sl_kept_free(struct sl_kept_session *one); // with its session, if that is still there. Accepts NULL

void sl_kept_release(struct sl_kept *kept, const char *lease_id); // idempotent
bool sl_kept_drop_oldest(struct sl_kept *kept);                   // somebody needs memory. False: nothing is kept
void sl_kept_reap(struct sl_kept *kept);                          // whose time is over
int64_t sl_kept_count(struct sl_kept *kept);
