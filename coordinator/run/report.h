// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what clients are told about a running job: progress at a bearable rate, and statistics with one definition
 *          each, put together from both legs and the coordinator's clock.
 * Threads: the job's thread only.
 */
#pragma once

#include "coordinator/run/figures.h"
#include "coordinator/jobs/job.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/trace/trace.h"

// Zero-initialised, but for its figures.
struct sl_run_report {
    struct sl_job_figures *figures;                                                        // of all jobs; not owned
    int64_t admitted_ns, prefill_start_ns, decode_start_ns, first_token_ns, decode_end_ns; // 0: not yet
    int64_t last_prefill_ns, last_ship_ns; // when progress was last told
    int64_t n_read;                        // tokens, by this attempt
    Sluice__V1__Finished__Reason reason;
    char *text;                             // of the answer; owned
    bool another_leads;                     // the job fails here alone
    int64_t fallbacks_told, fallbacks_lost; // by this attempt's notices; by those of attempts that were lost
};

void sl_run_report_admitted(struct sl_run_report *report, struct sl_job *job); // only the first time counts
void sl_run_report_start(struct sl_run_report *report);                        // prefill has been asked to begin
void sl_run_report_prefill(struct sl_run_report *report, struct sl_job *job,
                           const Sluice__V1__PrefillProgress *progress);
void sl_run_report_ship(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__ShipProgress *progress);
void sl_run_report_prefill_done(struct sl_run_report *report, struct sl_job *job,
                                const Sluice__V1__Statistics *statistics);
// A turn has begun behind so many tokens that have been read before: once an attempt, when a worker has taken it.
void sl_run_report_reused(struct sl_run_report *report, struct sl_job *job, int64_t n_tokens);
// What is known of a job that has ended, for its span.
void sl_run_report_span(struct sl_job *job, struct sl_span *span);
void sl_run_report_token(struct sl_run_report *report, struct sl_job *job);
void sl_run_report_notice(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__Notice *notice);
enum sl_status sl_run_report_decode_done(struct sl_run_report *report, struct sl_job *job,
                                         const Sluice__V1__DecodeDone *done, struct sl_error *err);
void sl_run_report_retry(struct sl_run_report *report, struct sl_job *job);

// Completes the statistics, frees the report's text and finishes the job: DONE for SL_OK.
void sl_run_report_finish(struct sl_run_report *report, struct sl_job *job, enum sl_status status,
                          const struct sl_error *err);
