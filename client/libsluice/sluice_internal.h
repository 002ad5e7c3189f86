// SPDX-License-Identifier: Apache-2.0
// Purpose: declarations that the files of libsluice share.
#pragma once

#include <stdatomic.h>

#include "client/libsluice/sluice.h"
#include "net/rpc/rpc.h"

struct sl_client {
    struct sl_rpc_credentials *credentials; // NULL: none
    struct sl_rpc_addresses coordinators;
    struct sl_rpc_channel *channels[SL_RPC_MAX_ADDRESSES];
    atomic_int current; // the last known leader
};

// ---- coordinators.c ------------------------------------------------------------------------------------------------

// Finds the leader; a single coordinator is not asked. SL_ERR_PEER_LOST: no coordinator says that it leads.
enum sl_status sl_client_find_leader(struct sl_client *client, int64_t deadline_ns, int *coordinator_out,
                                     struct sl_error *err);
// Likewise, but waits for an election: as long as sl_client_call() retries. For calls with streams.
enum sl_status sl_client_await_leader(struct sl_client *client, int64_t deadline_ns, int *coordinator_out,
                                      struct sl_error *err);
// Returns true if a coordinator other than this one leads; asks with a short deadline.
bool sl_client_others_lead(struct sl_client *client, int coordinator);

/*
 * Makes a unary call to the leader. With several coordinators, retries during a change of leader, for some seconds and
 * not beyond the deadline. or_any: if there is no leader, another coordinator may answer.
 */
enum sl_status sl_client_call(struct sl_client *client, const struct sl_rpc_method *method,
                              const ProtobufCMessage *request, bool or_any, int64_t deadline_ns,
                              ProtobufCMessage **reply_out, struct sl_error *err);

// Asks this coordinator about a job; if it does not know the job, or is -1, asks the leader and then all others.
enum sl_status sl_client_call_job(struct sl_client *client, const struct sl_rpc_method *method, const char *job_id,
                                  int coordinator, int64_t deadline_ns, Sluice__V1__Job **job_out,
                                  struct sl_error *err);

// ---- submit.c ------------------------------------------------------------------------------------------------------

#define SL_KEY_BYTES 40

// The coordinator of a job, and the values that the job got.
struct sl_submitted {
    char job_id[SL_JOB_ID_BYTES];
    int coordinator;
    char *recipe; // malloc'd, or NULL: not reported
    bool has_seed;
    uint64_t seed;
    int32_t max_new_tokens; // 0: not reported
};

// Draws a key for a request that has none; the request then points to it.
enum sl_status sl_give_key(Sluice__V1__GenerateRequest *request, char key[SL_KEY_BYTES], struct sl_error *err);
// Submits a request with its key, until it is accepted or refused, or there is no leader for too long.
enum sl_status sl_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request, int64_t deadline_ns,
                         struct sl_submitted *submitted_out, struct sl_error *err);

// ---- watch.c -------------------------------------------------------------------------------------------------------

// A job that is being followed.
struct sl_following {
    struct sl_client *client;
    const struct sl_watch *watch;
    const char *job_id;
    int coordinator;       // index of the coordinator that is asked
    int64_t last_sequence; // the last delivered event
    bool finished;
    bool heard; // an event has arrived since the stream was opened
    bool ended; // the stream ended without an error, but before the job's last event
    // For a job that can be submitted again: takes an event, and returns SL_OK to continue reading the stream. NULL: it
    // cannot be.
    enum sl_status (*take)(void *arg, const Sluice__V1__Event *event, struct sl_error *err);
    void *arg;
};

/*
 * Reads events until the job has finished. SL_AGAIN: `stopped` returned true. SL_ERR_NOT_FOUND: the coordinator does
 * not know the job. sl_connection_lost() returns true for a failure that another attempt may cure.
 */
enum sl_status sl_follow_once(struct sl_following *following, struct sl_error *err);
bool sl_connection_lost(enum sl_status status);

// Limits for retries: their total time, and the pauses between them.
struct sl_retry_budget {
    int64_t limit_ms, give_up_ns, pause_ms;
};
void sl_retry_budget_init(struct sl_retry_budget *budget, const struct sl_watch *watch);
// Pauses after an attempt that has failed with `why`. When there are no further attempts, err has the reason,
// SL_ERR_CANCELLED if `stopped` returned true.
enum sl_status sl_retry_budget_wait(struct sl_retry_budget *budget, const struct sl_following *following,
                                    const struct sl_error *why, struct sl_error *err);
