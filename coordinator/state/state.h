// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: jobs that survive the coordinator's process: what was accepted, and what has become of it, on a disk.
 *
 * Design, in reading order:
 *     database.h  the tables and statements (SQLite)
 *     past.h      a job as rows, and back
 *     state.h     who writes, and when
 *
 * One thread writes. A thread that appends an event does not wait: the writer takes what is new of every job, commits it in
 * one transaction, and then lets watchers see it (event_log.h). So what a watcher has seen is in the log file: after a
 * killed process, the next one continues with the same numbers, and no client sees a token twice. A second thread makes a
 * checkpoint once a second: a crash of the system loses at most that much.
 * A job that cannot be written, for want of room or because the disk fails or hangs, continues without: it is counted, and
 * the log says when that begins and ends. Its rows are removed, so that none tells less than watchers have seen. Where even
 * that fails, the whole database is removed.
 * A job stays in the database as long as the table has it (jobs.h). Where jobs take more than max_bytes, those that have
 * ended are removed, the oldest first.
 *
 *     DIR/owner                  locked by the one process that uses the folder
 *     DIR/jobs.db, -wal, -shm    coordinator/state/database.h
 *     DIR/damaged-jobs.db        a damaged database, for the operator
 *
 * The folder is its user's alone (0700), and so are the files (0600). Files of other names stay as they are.
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
 * Called with every job of the database, oldest first. SL_OK: *job_out is a reference, which the state takes over.
 * SL_ERR_INVALID: it is not a job, as err says, and its rows are removed. SL_ERR_EXISTS: another job has its place; its rows are
 * removed. Any other status ends the load.
 */
typedef enum sl_status (*sl_state_restore_fn)(void *arg, const struct sl_past_jobs *past, struct sl_job **job_out,
                                              struct sl_error *err);
// Called once, before the next functions; then the threads run.
enum sl_status sl_state_load(struct sl_state *state, sl_state_restore_fn restore, void *arg, struct sl_error *err);

// Writes a job, which no watcher has seen yet, from now on, if that is possible. Does not wait for the disk;
// sl_event_log_wait_told() does. attached: the job belongs to a call, and ends with it.
void sl_state_keep(struct sl_state *state, struct sl_job *job, bool attached);
// Removes a job that never began.
void sl_state_drop(struct sl_state *state, struct sl_job *job);

// Called now and then: stops waiting for a disk that has not answered for too long.
void sl_state_watch(struct sl_state *state, int64_t now_ns);

// Writes and shows nothing from now on: jobs that have not ended continue after a restart.
void sl_state_suspend(struct sl_state *state);
// Writes what is new first, unless suspended. Accepts NULL, nulls.
void sl_state_close(struct sl_state **state);

struct sl_state_stats {
    int64_t n_jobs, bytes; // on disk
    int64_t n_lost;        // jobs that could not be written, or not to their end
};
void sl_state_get_stats(struct sl_state *state, struct sl_state_stats *stats_out);
