// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one attempt at a job: it claims workers, reserves memory, reads the prompt and writes the answer (run.h), and gives back
 *          everything that it took.
 * Invariants: what a step takes is in struct sl_run, and is given back at the end of the attempt in every case.
 * Threads: the job's fiber only.
 */
#pragma once

#include "coordinator/run/copy.h"
#include "coordinator/run/remote_kv.h"
#include "coordinator/run/report.h"
#include "coordinator/run/run.h"
#include "coordinator/run/states.h"
#include "coordinator/run/turn.h"
#include "coordinator/run/worker_call.h"

struct sl_run {
    const struct sl_run_context *context;
    struct sl_job *job;
    enum sl_run_state state;
    enum sl_run_state step; // the last step that this attempt has reached
    struct sl_run_report report;
    int64_t retries;
    int64_t term; // sent with the last request to a worker
    struct sl_avoid avoid;
    enum sl_turn_mode mode;         // where this attempt gets the session (turn.h)
    struct sl_demand prefix_demand; // in mode PREFIX
    uint64_t held_key;              // in mode PREFIX: of the document
    int64_t held_bytes;             // in mode PREFIX: of its capsule
    // For a turn of a conversation (turn.h):
    struct sl_job_turn from;       // the session that this attempt continues
    struct sl_job_turn turn;       // as the next turn will find it
    struct sl_sessions_left *left; // sessions and copies to release after the job's end; NULL: it is not a turn
    struct sl_copying copying;     // may continue after the job's end
    // The current attempt holds:
    struct sl_claim claim;
    struct sl_lease lease;
    Sluice__V1__Grant *grant;
    Sluice__V1__PrefillEvent *prefilled; // prefill's last event: it says which stores hold offloaded layers
    struct sl_lease *remote_kvs;         // [SL_MAX_SHARES], renewed while decode writes; NULL: there are none
};

/*
 * Changes the state. SL_ERR_INTERNAL: the event is not allowed in this state (states.h), which is logged and counted; the state stays.
 */
enum sl_status sl_run_move(struct sl_run *run, enum sl_run_event event, struct sl_error *err);

// Returns the term of the last election that this coordinator knows; 0: it runs alone.
static inline int64_t sl_run_last_term(const struct sl_run *run) {
    return run->context->election != NULL ? sl_election_last_term(run->context->election) : 0;
}

/*
 * Blocks until the attempt has ended and holds nothing. The run's state is then DONE or a failure, and run->avoid names the workers that
 * the next attempt avoids.
 */
enum sl_status sl_run_attempt(struct sl_run *run, struct sl_error *err);
