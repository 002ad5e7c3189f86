// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the copies that stores have of a conversation's sessions (docs/CHAT.md): made, shipped to a decode worker, forgotten.
 *
 * A copy is made in steps that may be waited for in pieces, because a store that stands still takes longer than a client should wait for
 * the end of its answer:
 *
 *     begin --> Store.Reserve --> Decode.Archive --> there        sl_copying_wait() says SL_OK
 *                     |                 |
 *                     +-----------------+--> none                 it says why
 *
 * Threads: the job's.
 */
#pragma once

#include "coordinator/run/worker_call.h"
#include "coordinator/run/run.h"
#include "proto/sluice/v1/worker.pb-c.h"

// A copy on its way. Zero-initialised: there is none.
struct sl_copying {
    struct sl_worker *store, *decode; // references; NULL: nothing is on its way
    struct sl_rpc_stream *stream;     // Reserve, then Archive
    Sluice__V1__Grant *grant;         // once the store has given one
    struct sl_session_copy copy;
    char lease_id[SL_LEASE_ID_BYTES]; // of the session
    int64_t term;
};

/*
 * Begin to copy the turn's session from its worker into the store that keeps what begins as this conversation does. Without one nothing is
 * on its way, which is fine.
 */
enum sl_status sl_copying_begin(const struct sl_run_context *context, const struct sl_job *job,
                                struct sl_worker *decode, const struct sl_job_turn *turn, int64_t term,
                                struct sl_copying *copying, struct sl_error *err);
static inline bool sl_copying_is_under_way(const struct sl_copying *copying) {
    return copying->store != NULL;
}
/*
 * Blocks until it is over, until then, or until go_on(arg) says no, which is SL_AGAIN: it goes on. SL_OK: copying->copy is there. SL_ERR_PEER_LOST: the decode worker
 * was lost, and the session with it. Anything else: there will be none.
 */
enum sl_status sl_copying_wait(struct sl_copying *copying, int64_t until_ns, bool (*go_on)(void *arg), void *arg,
                               struct sl_error *err);
void sl_copying_end(struct sl_copying *copying); // stops it if it is on its way. Idempotent

// Have it shipped into a decode worker's grant, which `lease` keeps. Any failure: there is none to be had.
enum sl_status sl_copy_restore(const struct sl_run_context *context, struct sl_job *job,
                               const struct sl_session_copy *copy, struct sl_worker *decode, struct sl_lease *lease,
                               const Sluice__V1__Grant *grant, struct sl_error *err);

// Nobody will come back for it. A store that does not answer evicts it one day: false, and then it is not to be asked for more of this.
bool sl_copy_forget(struct sl_registry *registry, const struct sl_session_copy *copy, int64_t term);

// The worker of a role that has this name, or this address; the other is NULL. A reference, or NULL.
struct sl_worker *sl_copy_find_worker(struct sl_registry *registry, Sluice__V1__WorkerRole role, const char *name,
                                      const char *address);
