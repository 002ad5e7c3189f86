// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: counts jobs over the coordinator's life, for its metrics (docs/METRICS.md).
 * Threads: any; counting takes no lock.
 */
#pragma once

#include "base/status.h"
#include "coordinator/run/counters.h"
#include "coordinator/workers/totals.h"
#include "proto/sluice/v1/inference.pb-c.h"

enum sl_outcome { SL_OUTCOME_DONE, SL_OUTCOME_FAILED, SL_OUTCOME_CANCELLED, SL_OUTCOME_REFUSED, SL_N_OUTCOMES_OF_JOBS };

struct sl_job_figures {
    _Atomic int64_t n_jobs[SL_N_OUTCOMES_OF_JOBS];
    struct sl_totals totals;
    _Atomic int64_t read_tokens, reused_tokens, n_retries;
    _Atomic int64_t n_illegal_events; // events that the state of a run does not allow: a bug of the coordinator
    struct sl_pair_counters bytes;    // by recipe and transport: bytes of capsules, and of the full cache
    struct sl_histogram queue, prefill, ship, first_token, per_token, job;
};

void sl_job_figures_init(struct sl_job_figures *figures);

// Counts a job that has ended, with the statistics that its client gets.
void sl_job_figures_end(struct sl_job_figures *figures, enum sl_status status,
                        const Sluice__V1__Statistics *statistics);

void sl_job_figures_write(const struct sl_job_figures *figures, FILE *page);
