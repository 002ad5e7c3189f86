// SPDX-License-Identifier: Apache-2.0
// Purpose: the state of --state and of one job in it, shared by state.c and round.c.
#pragma once

#include "base/owned_folder.h"
#include "base/loop.h"
#include "coordinator/state/database.h"
#include "coordinator/state/state.h"

#define SL_STATE_ROW_BYTES 64 // of a row, beside its blobs, about

struct sl_kept_job {
    struct sl_kept_job *next;
    struct sl_job *job;  // a reference
    atomic_bool dropped; // to be removed
    // The writer's.
    int64_t number;    // of its row
    bool made;         // the row is there
    uint8_t *accepted; // an AcceptedJob, until it is written
    size_t n_accepted;
    size_t n_events;         // written
    int64_t bytes;           // of its rows
    atomic_bool ended, gone; // gone: out of the database, and soon out of the list
    // The current round's.
    bool removed, has_news;
    size_t n_ready, end_at; // sl_event_log_ready()
    int64_t new_bytes;
};

struct sl_state {
    struct sl_owned_folder folder;
    struct sl_database *database;
    pthread_mutex_t database_mutex; // held for a checkpoint, and to start the database anew
    int64_t last_number;            // of a job. Changed under the writer's mutex
    int64_t max_bytes;
    uint64_t model;
    struct sl_loop writer, checkpointer;
    struct sl_kept_job *jobs; // newest first. Under the writer's mutex, as `suspended`
    bool suspended;
    atomic_bool news, dirty, silent;
    _Atomic int64_t bytes, n_jobs, n_lost, busy_since_ns; // 0: the writer does not wait for the disk
    // The writer's.
    struct sl_kept_job *round; // the jobs of the current round: all that were in the list when it began
    uint8_t *buffer;
    size_t n_buffer, buffer_cap;
    bool is_short, has_database;
    int64_t make_room_at_ns;
};

// Takes what is new of every job, and what is to be removed, commits it in one transaction, and shows it to watchers. Called
// by the writer.
void sl_state_write_round(struct sl_state *state);

void sl_kept_job_free(struct sl_kept_job *kept);
