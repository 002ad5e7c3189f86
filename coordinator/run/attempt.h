// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one attempt at a job: workers are claimed, memory is reserved, the prompt is read, the answer is written (run.h); and
 *          whatever it took is given back.
 * Invariants: whatever a step takes is in struct sl_run and given back at the attempt's end, whatever happened in between.
 * Threads: the job's thread only.
 */
#pragma once

#include "coordinator/run/worker_call.h"
#include "coordinator/run/copy.h"
#include "coordinator/run/run.h"
#include "coordinator/run/report.h"
#include "coordinator/run/turn.h"

struct sl_run {
    const struct sl_run_context *context;
    struct sl_job *job;
    struct sl_run_report report;
    int64_t retries;
    int64_t term;            // that our last order came with
    bool hopeless;           // another attempt would not help
    enum sl_turn_way way;    // of this attempt: where the session of a turn comes from
    struct sl_job_turn from; // what it goes on from
    bool answered;           // by an attempt that failed behind its answer, or succeeded
    bool blameless;          // its failure is nobody's fault: there was no session
    bool elsewhere;          // a store refused the attempt, and others have room: another attempt may succeed with them
    struct sl_avoid avoid;
    // Of the current attempt.
    struct sl_claim claim;
    struct sl_lease lease;
    Sluice__V1__Grant *grant;
    Sluice__V1__PrefillEvent *prefilled; // its last event: where the offloaded layers are
    bool decode_done, accepted;
    struct sl_job_turn turn;      // as the next one will have to know it
    struct sl_sessions_left left; // at workers and stores
    struct sl_copying copying;    // behind the end
};

// Of the election of which this coordinator knows; 0: it is alone.
int64_t sl_run_last_term(const struct sl_run *run);
/*
 * Blocks until the attempt has ended and holds nothing any more. A failure has put down in the run whom another attempt is to avoid, and
 * whether one can help at all.
 */
enum sl_status sl_run_attempt(struct sl_run *run, struct sl_error *err);
