// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sends copies of capsules to the kvstore in the background, so that neither the engine nor the client waits.
 *
 * Design: one thread sends one copy after the other from where its bytes lie (prefill/copy.h). The archive owns a
 *         finished session from the end of its job on. A state between two chunks is sent from the session's pages
 *         while the prompt is read on: before a step that would change them the job waits, at most HOLD_MS, and other
 *         jobs are read meanwhile. A small state is copied instead. A store that is slow or gone costs the copy, not
 *         the job.
 *
 *     WAITING --thread--> RESERVING --the store has room--> SENDING --> gone
 *        |                    |                                |
 *        +------ dropped: its memory goes back at once         +-- dropped: its memory goes back when the ship has ended
 *
 *         Copies use their memory until they are gone. A job that finds no memory presses: copies have HOLD_MS more,
 *         and are dropped then.
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

// Why a copy was left out, as metrics and answers name it.
enum sl_not_kept {
    SL_NOT_KEPT_BUSY,        // as many copies as may wait are waiting
    SL_NOT_KEPT_MEMORY,      // no memory for it
    SL_NOT_KEPT_TOO_LARGE,   // the store holds less than it takes
    SL_NOT_KEPT_REFUSED,     // the store has no room now
    SL_NOT_KEPT_UNREACHABLE, // the store was lost, or is too slow
    SL_NOT_KEPT_LATE,        // a state between two chunks: the prompt was read on before it had left
    SL_NOT_KEPT_PRESSURE,    // another job needed the memory
    SL_NOT_KEPT_STOPPING,    // this worker stops
    SL_N_NOT_KEPT
};

enum sl_status sl_archive_create(struct sl_prefill *prefill, struct sl_archive **archive_out, struct sl_error *err);
void sl_archive_destroy(struct sl_archive **archive); // drops what is left. Accepts NULL, nulls

// Takes in a state between two chunks, on the engine's thread. Where job->let_go_tokens is not 0 afterwards, no step of
// the job may reach it before sl_archive_let_go() has returned true.
void sl_archive_put_boundary(struct sl_archive *archive, struct sl_prefill_job *job, const struct sl_session *session);
// Returns true when no copy reads the job's pages. On the engine's thread; the first call begins the job's HOLD_MS.
bool sl_archive_let_go(struct sl_archive *archive, struct sl_prefill_job *job);

// Decides whether the job's finished session will be kept, and says so in job->kept. On the handler's thread.
void sl_archive_prepare(struct sl_archive *archive, struct sl_prefill_job *job);
// Ends the archive's use of the job: sends what was prepared where `arrived`, and drops it otherwise. Afterwards no copy
// reads the job's pages; this waits for a ship that does (SL_DRAIN_NS at most).
void sl_archive_end_job(struct sl_archive *archive, struct sl_prefill_job *job, bool arrived);

// Asks for the memory that copies hold. False: they hold none. True: it comes back within HOLD_MS, or with the ship that
// reads it, and the caller tries again.
bool sl_archive_press(struct sl_archive *archive);

void sl_archive_write_metrics(struct sl_archive *archive, FILE *page);
