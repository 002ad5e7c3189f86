// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the copies that stores have of a conversation's sessions (docs/CHAT.md): makes them, ships them to decode workers, deletes them.
 *
 * A copy is made in steps, and a caller may wait for it in several calls, because a stalled store takes longer than a client should wait
 * for the end of its answer:
 *
 *     begin --> Store.Reserve --> Decode.Archive --> there        sl_copying_wait() returns SL_OK
 *                     |                 |
 *                     +-----------------+--> none                 it returns why
 *
 * Threads: the job's fiber only, except sl_copy_forget().
 */
#pragma once

#include "coordinator/run/worker_call.h"
#include "coordinator/run/run.h"
#include "proto/sluice/v1/worker.pb-c.h"

struct sl_run;

// A copy that is being made. Zero-initialised: there is none.
struct sl_copying {
    struct sl_worker *store, *decode; // references; NULL: no copy is being made
    struct sl_rpc_stream *stream;     // Reserve, then Archive
    Sluice__V1__Grant *grant;         // the store's, once it has given one
    struct sl_lease place;            // the grant's lease, which is renewed until the copy is there
    struct sl_session_copy copy;
    char lease_id[SL_LEASE_ID_BYTES]; // of the session
    int64_t term;
};

/*
 * Begins to copy run->turn's session from its worker into the conversation's store, as run->copying. Without such a store there is no copy,
 * which is not an error.
 */
enum sl_status sl_copying_begin(struct sl_run *run, struct sl_error *err);
static inline bool sl_copying_is_under_way(const struct sl_copying *copying) {
    return copying->store != NULL;
}
/*
 * Blocks until the copy is complete, until until_ns, or until go_on(arg) returns false. SL_AGAIN: it is still under way. SL_OK: copying->copy
 * is in the store. SL_ERR_PEER_LOST: the decode worker was lost, and the session with it. Anything else: there will be no copy.
 */
enum sl_status sl_copying_wait(struct sl_copying *copying, int64_t until_ns, bool (*go_on)(void *arg), void *arg,
                               struct sl_error *err);
void sl_copying_end(struct sl_copying *copying); // stops it if it is under way. Idempotent

// Has the store ship run->from's copy into the decode worker's grant, which run->lease holds. Fails if it cannot be
// shipped.
enum sl_status sl_copy_restore(struct sl_run *run, struct sl_error *err);

// Asks the store to delete a copy that no turn will use. False: the store does not answer, and should be asked no more; it will evict the copy.
bool sl_copy_forget(struct sl_registry *registry, const struct sl_session_copy *copy, int64_t term);

// Asks a worker to release a lease, with its method for that. If it does not answer, the lease expires.
void sl_copy_release_lease(struct sl_worker *worker, const struct sl_rpc_method *method, const char *lease_id,
                           int64_t term);
