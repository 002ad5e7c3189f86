// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one job from its place in the line to its last event, as sequential code on a thread of its own.
 *
 *     claim workers -> Decode.Reserve -> Prefill.Run -> Decode.Run -> finished
 *
 * Design: these four are one attempt. When a worker is lost in the middle, everything that the attempt holds is given
 *         back, at once and on both sides, and the next attempt starts from the beginning with the tokens that clients
 *         already have: the prefill worker finds the finished capsule of the first attempt in the store by itself, and
 *         the decode worker reads the old tokens without sending them again. So there is one path, not one a failure.
 *         A coordinator that does not lead begins no attempt: the job waits, until it leads again, or ends where it is known that
 *         another one does. What has begun goes on, under the last term, and ends likewise when a worker refuses that.
 *         A turn of a conversation whose session is kept or stored has no Prefill (turn.h); where that fails, it is as any other job.
 *         A prompt of one token has no capsule: Reserve and Prefill are left out, and Decode.Run has no lease.
 */
#pragma once

#include "coordinator/election/election.h"
#include "coordinator/run/figures.h"
#include "coordinator/jobs/conversations.h"
#include "coordinator/jobs/job.h"
#include "coordinator/workers/admit.h"
#include "coordinator/workers/registry.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer/tokenizer.h"

struct sl_run_context {
    struct sl_registry *registry;
    struct sl_admission *admission;
    struct sl_affinity *affinity;
    struct sl_election *election; // NULL: this coordinator is alone
    struct sl_job_figures *figures;
    struct sl_conversations *conversations;
    const struct sl_model_config *model;
    uint64_t model_fingerprint;
    const struct sl_tokenizer *tokenizer;
    int64_t silence_ms, worker_wait_ms, max_retries; // see coordinator.h
    const _Atomic bool *stopping;                    // the coordinator: what goes on behind a job's end is left
};

// Blocks until the job has ended and holds nothing any more, and the copy of its session is made or given up.
void sl_run_job(const struct sl_run_context *context, struct sl_job *job);
