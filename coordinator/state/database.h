// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the database of a coordinator's jobs (SQLite): what it holds, and the statements that change it.
 *
 *     jobs     number, id, accepted (sluice.v1.AcceptedJob), end (sluice.v1.Job, or NULL while the job runs), digest
 *     batches  job, first, events, digest: sluice.v1.Event messages from number `first` on, each after its length (4 bytes)
 *
 * Design: changes are transactions in the write-ahead log. A committed transaction is in the log file, so it survives the
 *         end of the process. sl_database_checkpoint() syncs the log and moves it into the database; it has a connection of
 *         its own, so that the writer does not wait for the disk. A crash of the system loses what was committed after the
 *         last checkpoint. Digests find rows that were changed by anything but this file, which SQLite does not check.
 * Threads: one thread changes the database; another may call sl_database_checkpoint().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_database;

#define SL_DATABASE_NAME "jobs.db"

/*
 * Opens FOLDER/jobs.db, or makes it. A file that is no such database, or is damaged, is renamed to damaged-jobs.db, and a
 * new one is made. SL_ERR_IO, SL_ERR_PRECONDITION (of another version) name the folder and the remedy. The file
 * never grows beyond twice max_bytes: pages are partly filled.
 */
enum sl_status sl_database_open(const char *folder, int64_t max_bytes, struct sl_database **database_out,
                                struct sl_error *err);
void sl_database_close(struct sl_database **database);

// Changes between begin and commit happen together or not at all. SL_ERR_EXHAUSTED: the disk or max_bytes is full.
// SL_ERR_IO. After an error of any of these functions, call sl_database_rollback().
enum sl_status sl_database_begin(struct sl_database *database, struct sl_error *err);
enum sl_status sl_database_commit(struct sl_database *database, struct sl_error *err);
void sl_database_rollback(struct sl_database *database);

enum sl_status sl_database_add_job(struct sl_database *database, int64_t number, const char *id, const void *accepted,
                                   size_t n, struct sl_error *err);
enum sl_status sl_database_add_events(struct sl_database *database, int64_t job, size_t first, const void *events,
                                      size_t n, struct sl_error *err);
enum sl_status sl_database_end_job(struct sl_database *database, int64_t job, const void *end, size_t n,
                                   struct sl_error *err);
enum sl_status sl_database_remove_job(struct sl_database *database, int64_t job, struct sl_error *err);

// Removes the database's files, whatever they hold, and makes a new database.
enum sl_status sl_database_start_anew(struct sl_database *database, struct sl_error *err);

// Syncs what was committed. SL_ERR_IO.
enum sl_status sl_database_checkpoint(struct sl_database *database, struct sl_error *err);

// A job as it was written. The bytes are valid during the call.
struct sl_database_job {
    int64_t number;
    const char *id;
    const uint8_t *accepted, *end, *events; // end: NULL while the job runs; events: all batches, one after the other
    size_t n_accepted, n_end, n_events;
    bool damaged; // a digest, or the order of batches, is wrong
};

typedef enum sl_status (*sl_database_visit_fn)(void *arg, const struct sl_database_job *job, struct sl_error *err);

// Calls visit() with every job, in the order of their numbers. What it returns, unless it is SL_OK, ends the calls.
enum sl_status sl_database_each(struct sl_database *database, sl_database_visit_fn visit, void *arg,
                                struct sl_error *err);
