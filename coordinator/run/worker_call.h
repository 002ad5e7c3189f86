// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one call to a worker on behalf of a job, with everything that can end it early.
 *
 * Design: every few tens of milliseconds, a job that waits for a call also checks whether the job was cancelled or ran out
 *         of time, whether a worker of the job was lost, whether the lease must be renewed, and how long the call has been
 *         silent. What ends a call early is one of three:
 *
 *           SL_ERR_CANCELLED, SL_ERR_DEADLINE                  the job must not continue
 *           SL_ERR_PEER_LOST, _PEER_STALE, _PEER_CORRUPT       this attempt is lost, another one may succeed
 *           anything else                                      the worker refuses; another worker would, too, except
 *                                                              when a kvstore is full (attempt.c)
 *
 * Threads: a call and a lease are used by the job's fiber only.
 */
#pragma once

#include "base/liveness_timer.h"
#include "coordinator/jobs/job.h"
#include "coordinator/workers/registry.h"
#include "net/rpc/rpc.h"

// A worker's promise to hold memory for the job.
struct sl_lease {
    struct sl_worker *worker; // not owned; NULL: there is no lease
    const struct sl_rpc_method *renew, *release;
    char id[128];
    int64_t term; // sent with the release
    int64_t lease_ms;
    int64_t renew_ns; // when to renew it next
};

struct sl_worker_call {
    struct sl_job *job;
    struct sl_worker *worker; // not owned
    struct sl_worker *peer;   // the call is useless without it; may be NULL
    struct sl_lease *lease;   // renewed meanwhile; may be NULL
    bool lease_is_vital;      // the call fails when the lease has ended
    struct sl_lease *others;  // [n_others] renewed as well; the call continues without them
    int n_others;
    int64_t silence_ms;
    struct sl_liveness_timer liveness;
    struct sl_rpc_stream *stream;
};

enum sl_status sl_worker_call_open(struct sl_worker_call *call, const struct sl_rpc_method *method,
                                   const ProtobufCMessage *request, int64_t deadline_ns, struct sl_error *err);
enum sl_status sl_worker_call_next(struct sl_worker_call *call, ProtobufCMessage **message_out, struct sl_error *err);
void sl_worker_call_close(struct sl_worker_call *call); // cancels it if it is running
// Opens the call of a unary method, waits for its one reply, which the caller frees, and closes it.
enum sl_status sl_worker_call_unary(struct sl_worker_call *call, const struct sl_rpc_method *method,
                                    const ProtobufCMessage *request, int64_t deadline_ns, ProtobufCMessage **reply_out,
                                    struct sl_error *err);

void sl_lease_granted(struct sl_lease *lease, int64_t lease_ms); // from now on; at least 1
// Renews the lease after a third of its time; waits briefly. SL_ERR_PEER_STALE: the worker no longer knows it. The call
// that the lease is for notices other failures.
enum sl_status sl_lease_renew_if_due(struct sl_lease *lease, struct sl_error *err);
/*
 * Releases the memory; waits briefly. False: the worker did not answer. It releases the memory when the lease ends, and is
 * suspected until then.
 */
bool sl_lease_release(struct sl_lease *lease, const char *job_id);

bool sl_status_is_lost(enum sl_status status); // another attempt may succeed
