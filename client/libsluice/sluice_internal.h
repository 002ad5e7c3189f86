// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of libsluice share.
#pragma once

#include <stdatomic.h>

#include "client/libsluice/sluice.h"
#include "net/rpc/rpc.h"

struct sl_client {
    struct sl_rpc_credentials *credentials; // NULL: none
    struct sl_rpc_addresses coordinators;
    struct sl_rpc_channel *channels[SL_RPC_MAX_ADDRESSES];
    atomic_int current; // who led last, as far as we know
};

// ---- coordinators.c: which of them ---------------------------------------------------------------------------------

// Who leads; where there is one coordinator, that one, unasked. SL_ERR_PEER_LOST: nobody says that it leads.
enum sl_status sl_client_find_leader(struct sl_client *client, int64_t deadline_ns, int *coordinator_out,
                                     struct sl_error *err);
// Whether one beside this coordinator leads; asks briefly.
bool sl_client_others_lead(struct sl_client *client, int coordinator);

/*
 * A unary call to who leads; where there are several coordinators, again and again while one follows another, for some seconds and not
 * beyond the deadline. or_any: one that does not lead will do where none does.
 */
enum sl_status sl_client_call(struct sl_client *client, const struct sl_rpc_method *method,
                              const ProtobufCMessage *request, bool or_any, int64_t deadline_ns,
                              ProtobufCMessage **reply_out, struct sl_error *err);

// About a job: of this coordinator; if that does not know it, or -1, of who leads, and of all others.
enum sl_status sl_client_call_job(struct sl_client *client, const struct sl_rpc_method *method, const char *job_id,
                                  int coordinator, int64_t deadline_ns, Sluice__V1__Job **job_out,
                                  struct sl_error *err);

// ---- submit.c ------------------------------------------------------------------------------------------------------

#define SL_KEY_BYTES 40

// Where a job is, and what it got.
struct sl_submitted {
    char job_id[SL_JOB_ID_BYTES];
    int coordinator;
    char *recipe; // malloc'd, or NULL: not told
    bool has_seed;
    uint64_t seed;
    int32_t max_new_tokens; // 0: not told
};

// A key for a request that has none.
enum sl_status sl_make_key(char key_out[SL_KEY_BYTES], struct sl_error *err);
// With a key, until it is accepted or refused, or nobody leads for long.
enum sl_status sl_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request, int64_t deadline_ns,
                         struct sl_submitted *submitted_out, struct sl_error *err);

// ---- watch.c -------------------------------------------------------------------------------------------------------

// One job, followed.
struct sl_following {
    struct sl_client *client;
    const struct sl_watch *watch;
    const char *job_id;
    int coordinator;       // that is asked
    int64_t last_sequence; // delivered
    bool finished;
    bool heard; // since the stream was opened
    bool ended; // the stream, in order, and not with the job's last event
    // Of a job that can be submitted again: takes an event, and tells whether the stream shall be read on. NULL: it cannot.
    enum sl_status (*take)(void *arg, const Sluice__V1__Event *event, struct sl_error *err);
    void *arg;
};

/*
 * Read events until the job has finished. SL_AGAIN: `stopped` said so. SL_ERR_NOT_FOUND: the coordinator does not know the job.
 * sl_connection_lost() is true of what another attempt may cure.
 */
enum sl_status sl_follow_once(struct sl_following *following, struct sl_error *err);
bool sl_connection_lost(enum sl_status status);

// How long, and how often, it is tried again.
struct sl_retry_budget {
    int64_t patience_ms, give_up_ns, pause_ms;
};
void sl_retry_budget_init(struct sl_retry_budget *patience, const struct sl_watch *watch);
// After an attempt that has failed as `why` says: pause. What ends it is in err, SL_ERR_CANCELLED if `stopped` said so.
enum sl_status sl_retry_budget_wait(struct sl_retry_budget *patience, const struct sl_following *following,
                                    const struct sl_error *why, struct sl_error *err);
