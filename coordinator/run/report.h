// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reports a running job to clients: progress at a limited rate, and statistics with one definition each, from
 *          both worker calls and the coordinator's clock.
 * Threads: the job's fiber only.
 */
#pragma once

#include "coordinator/run/figures.h"
#include "coordinator/jobs/job.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/trace/trace.h"

// Zero-initialised, except its figures.
struct sl_run_report {
    struct sl_job_figures *figures;                                                        // of all jobs; not owned
    int64_t admitted_ns, prefill_start_ns, decode_start_ns, first_token_ns, decode_end_ns; // 0: not yet
    int64_t last_prefill_ns, last_ship_ns; // when progress was last reported
    int64_t n_read, peak_bytes;            // prompt tokens that this attempt has read, and its most KV
    Sluice__V1__Finished__Reason reason;
    char *text;                             // the complete answer; NULL: there is none yet. Owned
    bool another_leads;                     // the job fails only at this coordinator
    int64_t fallbacks_told, fallbacks_lost; // from the notices of this attempt; of lost attempts
};

void sl_run_report_admitted(struct sl_run_report *report, struct sl_job *job); // only the first call counts
void sl_run_report_start(struct sl_run_report *report); // call it before Prefill.Run or Store.Fetch
void sl_run_report_prefill(struct sl_run_report *report, struct sl_job *job,
                           const Sluice__V1__PrefillProgress *progress);
// Returns what an event of prefill says of the prompt.
enum sl_prompt_state sl_run_report_prompt_state(const Sluice__V1__PrefillEvent *event);
void sl_run_report_ship(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__ShipProgress *progress);
// travels: the capsule was shipped; else its worker writes the answer.
void sl_run_report_prefill_done(struct sl_run_report *report, struct sl_job *job,
                                const Sluice__V1__Statistics *statistics, bool travels);
// Reports how a decode worker began an answer with a stored prefix.
void sl_run_report_prefix(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__Statistics *statistics);
// Reports that a turn continues after n_tokens that were read before, for which a store has shipped bytes. Call it once
// per attempt, when a worker has begun to answer.
void sl_run_report_reused(struct sl_run_report *report, struct sl_job *job, int64_t n_tokens, int64_t shipped_bytes);
// Adds the figures of a job that has ended to its span.
void sl_run_report_span(struct sl_job *job, struct sl_span *span);
void sl_run_report_token(struct sl_run_report *report, struct sl_job *job);
void sl_run_report_notice(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__Notice *notice);
enum sl_status sl_run_report_decode_done(struct sl_run_report *report, struct sl_job *job,
                                         const Sluice__V1__DecodeDone *done, struct sl_error *err);
void sl_run_report_retry(struct sl_run_report *report, struct sl_job *job);

// Completes the statistics, frees the report's text and finishes the job: DONE for SL_OK.
void sl_run_report_finish(struct sl_run_report *report, struct sl_job *job, enum sl_status status,
                          const struct sl_error *err);
