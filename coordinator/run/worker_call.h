// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one call to a worker on behalf of a job, watched from all sides while it runs.
 *
 * Design: whoever waits for a leg also looks, every few tens of milliseconds, whether the job was cancelled or ran out
 *         of time, whether a worker of the job was lost, whether the lease wants to be renewed, and for how long the
 *         leg has been silent. What ends a leg early is one of three:
 *
 *           SL_ERR_CANCELLED, SL_ERR_DEADLINE                  the job must not go on
 *           SL_ERR_PEER_LOST, _PEER_STALE, _PEER_CORRUPT       this attempt is lost, another one may succeed
 *           anything else                                      the worker refuses; another one would too, unless it
 *                                                              speaks of a kvstore that is full (run.c)
 *
 * Threads: a leg and a lease are used by the job's thread only.
 */
#pragma once

#include "base/silence.h"
#include "coordinator/jobs/job.h"
#include "coordinator/workers/registry.h"
#include "net/rpc/rpc.h"

// A worker's promise to hold memory for the job.
struct sl_lease {
    struct sl_worker *worker; // not owned; NULL: there is no lease
    const struct sl_rpc_method *renew, *release;
    char id[128];
    int64_t term; // under which it is released
    int64_t lease_ms;
    int64_t renew_ns; // when it is to be renewed next
};

struct sl_leg {
    struct sl_job *job;
    struct sl_worker *worker; // whose call it is; not owned
    struct sl_worker *peer;   // without whom it is pointless; may be NULL
    struct sl_lease *lease;   // to keep alive; may be NULL
    bool lease_is_vital;      // the leg is pointless without it
    struct sl_lease *others;  // [n_others] to keep alive as well; the leg goes on without them
    int n_others;
    int64_t silence_ms;
    struct sl_silence silence;
    struct sl_rpc_stream *stream;
};

// A unary method looks the same on the wire: read one message and close.
enum sl_status sl_leg_open(struct sl_leg *leg, const struct sl_rpc_method *method, const ProtobufCMessage *request,
                           int64_t deadline_ns, struct sl_error *err);
enum sl_status sl_leg_next(struct sl_leg *leg, ProtobufCMessage **message_out, struct sl_error *err);
void sl_leg_close(struct sl_leg *leg); // cancels what still runs

void sl_lease_granted(struct sl_lease *lease, int64_t lease_ms); // from now on, as its worker says: at least 1
/*
 * Give the memory back, waiting briefly. False when the worker could not be told: its reaper will do it when the lease
 * ends; the worker is then suspected.
 */
bool sl_lease_release(struct sl_lease *lease, const char *job_id);

bool sl_status_is_lost(enum sl_status status); // another attempt may succeed
