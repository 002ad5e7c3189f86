// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: runs one job from its place in the line to its last event, as sequential code on a fiber of its own (base/fiber/fiber.h).
 *
 *     claim workers -> Decode.Reserve -> Prefill.Run -> Decode.Run -> finished
 *
 * Design: these four steps are one attempt (attempt.h); states.h draws the states of a run. When a worker is lost, the
 *         attempt gives back at once everything that it holds, and the next attempt starts from the beginning with the tokens
 *         that clients already have: the prefill worker finds the finished capsule of the first attempt in the store, and
 *         the decode worker reads the old tokens without sending them again. So all failures share one path.
 *         A coordinator that does not lead begins no attempt: the job waits until it leads again, or fails when another
 *         coordinator is known to lead. An attempt that has begun continues under the last term, and fails when a worker refuses it.
 *         A turn of a conversation whose session is retained or stored has no Prefill (turn.h); if that fails, it runs as any other job.
 *         A prompt of one token has no capsule: Reserve and Prefill are skipped, and Decode.Run has no lease.
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
    const _Atomic bool *stopping; // the coordinator: copies that continue after a job's end are abandoned
};

struct sl_run; // attempt.h

// Runs the job in *run, zeros, which the caller keeps on the heap: it is larger than a stack frame should be. Blocks
// until the job has ended, its run holds nothing, and the copy of its session has been made or abandoned.
void sl_run_job(const struct sl_run_context *context, struct sl_job *job, struct sl_run *run);
