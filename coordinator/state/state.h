// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: jobs that outlive the coordinator's process: what was accepted and what has become of it, on a disk.
 *
 * Design, in reading order:
 *     record.h    what a file holds, and how damage is told from what was never finished
 *     past.h      a job as records, and back
 *     folder.h    the files
 *     state.h     who writes them, and when
 *
 * One thread writes. Whoever appends an event goes on at once: the thread comes by, writes what is new of every job in one piece each, and
 * then lets watchers see it (event_log.h). So what anybody has seen is in a file: a killed process goes on behind it, with the same
 * numbers, and nobody sees a token twice. A second thread has the system write files to the disk once a second: only of what a crash of the
 * system takes may that much be lost.
 * A job that cannot be written, for want of room or because the disk fails or is silent, goes on without: it is counted, and said when that
 * begins and ends. Its file goes, so that none tells less than watchers have seen.
 * A file stays for as long as the table has its job (jobs.h). Where files take more than max_bytes, those of jobs that have ended go, the
 * oldest first.
 * Threads: any, where nothing else is said.
 */
#pragma once

#include "coordinator/state/past.h"

struct sl_state;

#define SL_STATE_MIN_BYTES ((int64_t)1 << 20)

struct sl_state_config {
    const char *folder;
    int64_t max_bytes;
    uint64_t model; // its fingerprint
};

// SL_ERR_INVALID, SL_ERR_IO, SL_ERR_PRECONDITION name the folder and the remedy.
enum sl_status sl_state_open(const struct sl_state_config *config, struct sl_state **state_out, struct sl_error *err);

/*
 * Called with every job of the folder, oldest first. SL_OK: *job_out is a reference, which the state takes over. SL_ERR_INVALID: it is none,
 * as err says: its file is set aside. SL_ERR_EXISTS: another has its place; its file goes. What else it returns ends the load.
 */
typedef enum sl_status (*sl_state_restore_fn)(void *arg, const struct sl_past_jobs *past, struct sl_job **job_out,
                                              struct sl_error *err);
// Once, before the next functions; then the threads run.
enum sl_status sl_state_load(struct sl_state *state, sl_state_restore_fn restore, void *arg, struct sl_error *err);

/*
 * A job that nobody has seen yet: from now on it is written down, if that is possible. Does not wait for the disk;
 * sl_event_log_wait_told() does. attached: to a call, with which it ends.
 */
void sl_state_keep(struct sl_state *state, struct sl_job *job, bool attached);
// It never began.
void sl_state_drop(struct sl_state *state, struct sl_job *job);

// Called now and then: where the disk has been silent for too long, nobody waits for it.
void sl_state_watch(struct sl_state *state, int64_t now_ns);

// What happens from now on is not written, nor seen: jobs that have not ended go on after a restart.
void sl_state_suspend(struct sl_state *state);
// What is new is written first, unless suspended. Accepts NULL, nulls.
void sl_state_close(struct sl_state **state);

struct sl_state_stats {
    int64_t n_jobs, bytes; // on disk
    int64_t n_lost;        // jobs that could not be written, or not to their end
};
void sl_state_get_stats(struct sl_state *state, struct sl_state_stats *stats_out);
