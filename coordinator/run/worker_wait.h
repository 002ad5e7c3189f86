// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides how long a job waits while a role has no ready worker. A worker that was suspended, is restarted, or is late on a busy
 *          machine comes back: a job with a deadline of its own waits until then, any other job for --worker-wait.
 * Threads: the job's fiber only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "coordinator/jobs/job.h"

struct sl_worker_wait {
    int64_t since_ns; // 0: no role lacks a worker
    bool told;        // watchers know why the job waits
    struct sl_error why;
};

// Returns whether the job gives up now. why: the reason of the last claim. Tells watchers once that the job waits, and why.
bool sl_worker_wait_ends(struct sl_worker_wait *wait, struct sl_job *job, int64_t limit_ms, const struct sl_error *why);

// Returns status, which ended the wait. If that is the deadline, adds to err what the job was waiting for.
enum sl_status sl_worker_wait_explain(const struct sl_worker_wait *wait, enum sl_status status, struct sl_error *err);
