// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sends copies of capsules to the kvstore in the background, so that neither the engine nor the client waits.
 *
 * Design: one thread sends the copies one by one, without making another copy in memory (prefill/copy.h). The archive
 *         owns a finished session from the end of its job on. A state between two chunks is sent from the session's
 *         pages while reading of the prompt continues. Before a step that would change these pages, a job waits for
 *         HOLD_MS, and longer if it has read for long; other jobs are read meanwhile. A small state is copied instead.
 *         If a store is slow or lost, the copy fails, but not the job. A checkpoint, for a prompt that takes long, is sent
 *         as such a state is; the store drops it when the next one, or the finished capsule, arrives. A finished session
 *         that stays here to be written is copied first, or if it is large, the job waits for it as for a state.
 *
 *     WAITING --thread--> RESERVING --the store has room--> SENDING --> gone
 *        |                    |                                |
 *        +------ dropped: its memory goes back at once         +-- dropped: its memory goes back when the ship has ended
 *
 *         Copies keep their memory until they end. A job that finds no memory asks for it: copies that have not ended
 *         after HOLD_MS are dropped.
 * Threads: any number; one lock.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

struct sl_archive;
struct sl_prefill;
struct sl_prefill_job;
struct sl_session;

// Reasons why a copy was left out, as metrics and answers name them.
enum sl_not_kept {
    SL_NOT_KEPT_BUSY,        // the queue of copies is full
    SL_NOT_KEPT_MEMORY,      // no memory for the copy
    SL_NOT_KEPT_TOO_LARGE,   // the copy is larger than the store's capacity
    SL_NOT_KEPT_REFUSED,     // the store has no room now
    SL_NOT_KEPT_UNREACHABLE, // the store was lost, or is too slow
    SL_NOT_KEPT_LATE,        // a state between two chunks: reading had to continue before the state was sent
    SL_NOT_KEPT_PRESSURE,    // another job needed the memory
    SL_NOT_KEPT_STOPPING,    // this worker is stopping
    SL_N_NOT_KEPT
};

enum sl_status sl_archive_create(struct sl_prefill *prefill, struct sl_archive **archive_out, struct sl_error *err);
void sl_archive_destroy(struct sl_archive **archive); // drops the remaining copies. Accepts NULL, nulls

// Queues a state between two chunks, on the engine's thread. If job->release_tokens is not 0 afterwards, no step of the
// job may reach that token before sl_archive_release() has returned true.
void sl_archive_put_boundary(struct sl_archive *archive, struct sl_prefill_job *job, const struct sl_session *session);
/*
 * Queues a checkpoint, on the engine's thread between two chunks, if one is due: what was read so far of a long prompt,
 * from which another worker continues if this one is lost. Only recipes that keep every token have checkpoints. Uses
 * job->release_tokens as sl_archive_put_boundary(), but no step waits: a checkpoint in transit is dropped. Each has half
 * as many tokens again as the one before, so all together have at most three times the prompt's bytes. One takes at most
 * --checkpoint-share of its store; a job whose next one would take more makes no further ones.
 */
void sl_archive_put_checkpoint(struct sl_archive *archive, struct sl_prefill_job *job);
// Returns true when no copy reads the job's pages. Called on the engine's thread; the first call starts the job's wait.
bool sl_archive_release(struct sl_archive *archive, struct sl_prefill_job *job);

// Decides whether the job's finished session will be kept, and records this in job->kept. Called on the handler's
// thread. If the session stays here, it may not change before sl_archive_release() has returned true.
void sl_archive_prepare(struct sl_archive *archive, struct sl_prefill_job *job);
// Ends the archive's use of the job: sends the prepared copy if `arrived`, and drops it otherwise. Afterwards no copy
// reads the job's pages; this waits for a ship that does (SL_DRAIN_NS at most).
void sl_archive_end_job(struct sl_archive *archive, struct sl_prefill_job *job, bool arrived);

// Asks for the memory that copies hold. False: they hold none. True: they free it within HOLD_MS, or when the ship that
// reads it ends; the caller then tries again.
bool sl_archive_press(struct sl_archive *archive);

void sl_archive_write_metrics(struct sl_archive *archive, FILE *page);
