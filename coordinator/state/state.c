// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: writes jobs to the database. See state.h.
 * Invariants: the writer alone removes jobs from the list and changes the database; other threads add, and mark what is to be
 *             removed. Lock order: a job's log, then ours.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "coordinator/state/state_internal.h"

#define LOOK_MS       200  // between two looks for jobs that the table has forgotten
#define PAUSE_MS      3    // between two rounds: what comes meanwhile is written together
#define CHECKPOINT_MS 1000 // between two checkpoints
#define SILENT_MS     2000 // no job waits for a disk that takes longer to write

// Wakes the writer. Called by a log, under its lock.
static void take_news(void *arg) {
    struct sl_state *state = arg;
    if (!atomic_exchange(&state->news, true)) {
        SL_LOCKED(&state->writer.mutex);
        pthread_cond_signal(&state->writer.changed);
    }
}

static void *write_always(void *arg) {
    struct sl_state *state = arg;
    for (;;) {
        int64_t next_ns = sl_deadline_in_ms(LOOK_MS);
        pthread_mutex_lock(&state->writer.mutex);
        while (!state->writer.stopping && !atomic_load(&state->news) &&
               sl_loop_wait(&state->writer, next_ns) == SL_OK) {
        }
        bool stopping = state->writer.stopping, suspended = state->suspended;
        atomic_store(&state->news, false);
        pthread_mutex_unlock(&state->writer.mutex);
        if (!suspended) {
            sl_state_write_round(state);
        }
        if (stopping) {
            return NULL;
        }
        sl_sleep_ms(PAUSE_MS);
    }
}

static void checkpoint(struct sl_state *state) {
    struct sl_error err;
    if (!atomic_exchange(&state->dirty, false)) {
        return;
    }
    SL_LOCKED(&state->database_mutex);
    if (sl_database_checkpoint(state->database, &err) != SL_OK) {
        sl_log_warn("state", "%s: no checkpoint: %s", state->folder.path, err.text);
    }
}

static void *checkpoint_always(void *arg) {
    struct sl_state *state = arg;
    struct sl_loop *loop = &state->checkpointer;
    SL_LOCKED(&loop->mutex);
    do {
        sl_loop_sleep(loop, sl_deadline_in_ms(CHECKPOINT_MS));
        checkpoint(state); // the last one after the writer has ended
    } while (!loop->stopping);
    return NULL;
}

// --- life ----------------------------------------------------------------------------------------------------------------

// Closes the folder to other users: it holds prompts. A folder that root made for us, as volumes are, may be our group's.
static enum sl_status close_to_others(struct sl_owned_folder *folder, struct sl_error *err) {
    struct stat about;
    if (fstat(folder->dir_fd, &about) != 0 ||
        (about.st_uid == geteuid() && (about.st_mode & 077) != 0 && fchmod(folder->dir_fd, 0700) != 0)) {
        return sl_owned_folder_fail(folder, err);
    }
    SL_FAIL_IF(about.st_uid != geteuid() && (about.st_mode & 07) != 0, err, SL_ERR_PRECONDITION,
               "--state %.300s: it is another user's and open to everybody; give a folder of our own", folder->path);
    return SL_OK;
}

enum sl_status sl_state_open(const struct sl_state_config *config, struct sl_state **state_out, struct sl_error *err) {
    SL_FAIL_IF(config->max_bytes < SL_STATE_MIN_BYTES, err, SL_ERR_INVALID, "--state-bytes: must be at least %" PRId64,
               SL_STATE_MIN_BYTES);
    SL_NEW_OR_FAIL(struct sl_state, state, err, "no memory for a folder of jobs");
    SL_TRY_OR(sl_owned_folder_open("--state", config->folder, 0, &state->folder, err), free(state));
    enum sl_status status = close_to_others(&state->folder, err);
    SL_THEN(status, sl_owned_folder_lock(&state->folder, "coordinator", err));
    SL_THEN(status, sl_database_open(state->folder.path, config->max_bytes, &state->database, err));
    if (status != SL_OK) {
        sl_owned_folder_close(&state->folder);
        free(state);
        return status;
    }
    state->max_bytes = config->max_bytes;
    state->model = config->model;
    state->has_database = true;
    pthread_mutex_init(&state->database_mutex, NULL);
    sl_loop_init(&state->writer);
    sl_loop_init(&state->checkpointer);
    *state_out = state;
    return SL_OK;
}

static void push(struct sl_state *state, struct sl_kept_job *kept) {
    SL_LOCKED(&state->writer.mutex);
    kept->number = kept->number != 0 ? kept->number : state->last_number + 1;
    state->last_number = kept->number > state->last_number ? kept->number : state->last_number;
    kept->next = state->jobs;
    state->jobs = kept;
}

// Adds a restored job to the list.
static enum sl_status enter(struct sl_state *state, const struct sl_database_job *row, const struct sl_past_jobs *past,
                            struct sl_job *job, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_kept_job, kept, err, "no memory for a job of before");
    kept->job = sl_job_ref(job);
    kept->number = row->number;
    kept->made = true;
    kept->n_events = past->n_events;
    kept->bytes = (int64_t)(row->n_accepted + row->n_end + row->n_events) + 2 * SL_STATE_ROW_BYTES; // about
    kept->ended = past->end != NULL;
    atomic_fetch_add(&state->bytes, kept->bytes);
    atomic_fetch_add(&state->n_jobs, 1);
    if (!kept->ended) {
        sl_event_log_hold(&job->log, take_news, state);
        sl_event_log_tell(&job->log, past->n_events);
    }
    push(state, kept);
    return SL_OK;
}

struct load {
    struct sl_state *state;
    sl_state_restore_fn restore;
    void *arg;
    int64_t *removed; // numbers of jobs whose rows are removed
    size_t n_removed;
};

static enum sl_status remove_later(struct load *load, int64_t number, struct sl_error *err) {
    int64_t *grown = realloc(load->removed, (load->n_removed + 1) * sizeof *grown);
    SL_FAIL_IF(grown == NULL, err, SL_ERR_EXHAUSTED, "no memory for jobs that are removed");
    load->removed = grown;
    grown[load->n_removed++] = number;
    return SL_OK;
}

static enum sl_status load_job(void *arg, const struct sl_database_job *row, struct sl_error *err) {
    struct load *load = arg;
    struct sl_past_jobs past = {0};
    struct sl_job *job = NULL;
    struct sl_error why = {0};
    enum sl_status status = sl_past_read(row, &past, &why);
    SL_THEN(status, load->restore(load->arg, &past, &job, &why));
    if (status == SL_OK) {
        status = enter(load->state, row, &past, job, &why);
    } else if (status == SL_ERR_INVALID || status == SL_ERR_EXISTS) {
        if (status == SL_ERR_INVALID) {
            sl_log_warn("state", "%s: %.64s: %s: removed", load->state->folder.path, row->id, why.text);
        }
        status = remove_later(load, row->number, &why);
    }
    sl_job_unref(&job);
    sl_past_cleanup(&past);
    SL_FAIL_IF(status != SL_OK, err, status, "--state %.200s: %.64s: %s", load->state->folder.path, row->id, why.text);
    return SL_OK;
}

// Removes the rows of jobs that were not restored.
static enum sl_status remove_rows(const struct load *load, struct sl_error *err) {
    struct sl_database *database = load->state->database;
    enum sl_status status = sl_database_begin(database, err);
    for (size_t i = 0; i < load->n_removed && status == SL_OK; i++) {
        status = sl_database_remove_job(database, load->removed[i], err);
    }
    SL_THEN(status, sl_database_commit(database, err));
    if (status != SL_OK) {
        sl_database_rollback(database);
    }
    return status;
}

enum sl_status sl_state_load(struct sl_state *state, sl_state_restore_fn restore, void *arg, struct sl_error *err) {
    struct load load = {.state = state, .restore = restore, .arg = arg};
    enum sl_status status = sl_database_each(state->database, load_job, &load, err);
    SL_THEN_IF(status, load.n_removed > 0, remove_rows(&load, err));
    free(load.removed);
    SL_THEN(status, sl_loop_start(&state->writer, "state", write_always, state, err));
    SL_THEN(status, sl_loop_start(&state->checkpointer, "state-sync", checkpoint_always, state, err));
    return status;
}

void sl_state_suspend(struct sl_state *state) {
    SL_WITH_LOCK(&state->writer.mutex, state->suspended = true);
    sl_loop_stop(&state->writer);
    sl_loop_stop(&state->checkpointer);
}

void sl_state_close(struct sl_state **state_inout) {
    SL_TAKE_OR_RETURN(state, state_inout);
    sl_loop_stop(&state->writer);
    sl_loop_cleanup(&state->checkpointer);
    while (state->jobs != NULL) {
        struct sl_kept_job *kept = state->jobs;
        state->jobs = kept->next;
        sl_event_log_release(&kept->job->log);
        sl_kept_job_free(kept);
    }
    sl_database_close(&state->database);
    sl_owned_folder_close(&state->folder);
    sl_loop_cleanup(&state->writer);
    pthread_mutex_destroy(&state->database_mutex);
    free(state->buffer);
    free(state);
}

// --- jobs that come ------------------------------------------------------------------------------------------------------

void sl_state_keep(struct sl_state *state, struct sl_job *job, bool attached) {
    struct sl_error err;
    struct sl_kept_job *kept = atomic_load(&state->silent) ? NULL : calloc(1, sizeof *kept);
    if (kept == NULL ||
        sl_past_accept(job, state->model, attached, &kept->accepted, &kept->n_accepted, &err) != SL_OK) {
        free(kept);
        atomic_fetch_add(&state->n_lost, 1);
        return;
    }
    kept->job = sl_job_ref(job);
    sl_event_log_hold(&job->log, take_news, state);
    push(state, kept);
    take_news(state);
}

void sl_state_drop(struct sl_state *state, struct sl_job *job) {
    pthread_mutex_lock(&state->writer.mutex);
    for (struct sl_kept_job *kept = state->jobs; kept != NULL; kept = kept->next) {
        if (kept->job == job) {
            atomic_store(&kept->dropped, true);
        }
    }
    pthread_mutex_unlock(&state->writer.mutex);
    take_news(state);
}

// Returns references to the jobs whose watchers wait for the disk, malloc'd.
static struct sl_job **waiting_jobs(struct sl_state *state, size_t *n_out) {
    size_t n = 0, n_all = 0;
    pthread_mutex_lock(&state->writer.mutex);
    for (struct sl_kept_job *kept = state->jobs; kept != NULL; kept = kept->next) {
        n_all++;
    }
    struct sl_job **jobs = malloc((n_all + 1) * sizeof(struct sl_job *));
    for (struct sl_kept_job *kept = state->jobs; jobs != NULL && kept != NULL; kept = kept->next) {
        if (!atomic_load(&kept->ended) && !atomic_load(&kept->gone)) {
            jobs[n++] = sl_job_ref(kept->job);
        }
    }
    pthread_mutex_unlock(&state->writer.mutex);
    *n_out = n;
    return jobs;
}

void sl_state_watch(struct sl_state *state, int64_t now_ns) {
    int64_t since_ns = atomic_load(&state->busy_since_ns);
    if (since_ns == 0 || now_ns - since_ns < SILENT_MS * SL_NS_PER_MS || atomic_load(&state->silent)) {
        return;
    }
    size_t n;
    struct sl_job **jobs = waiting_jobs(state, &n);
    if (jobs == NULL) {
        return; // another time
    }
    atomic_store(&state->silent, true);
    sl_log_warn("state", "%s: the disk does not answer: jobs continue that a restart will not find, or will run again",
                state->folder.path);
    for (size_t i = 0; i < n; i++) {
        sl_event_log_release(&jobs[i]->log);
        sl_job_unref(&jobs[i]);
    }
    atomic_fetch_add(&state->n_lost, (int64_t)n);
    free(jobs);
}

void sl_state_get_stats(struct sl_state *state, struct sl_state_stats *stats_out) {
    *stats_out = (struct sl_state_stats){.n_jobs = atomic_load(&state->n_jobs),
                                         .bytes = atomic_load(&state->bytes),
                                         .n_lost = atomic_load(&state->n_lost)};
}
