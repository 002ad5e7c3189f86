// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: writes jobs to the database. See state.h.
 * Invariants: the writer alone removes jobs from the list and changes the database; other threads add, and mark what is to be
 *             removed. Lock order: a job's log, then ours.
 */
#include "coordinator/state/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "coordinator/state/database.h"
#include "coordinator/state/folder.h"

#define LOOK_MS       200  // between two looks for jobs that the table has forgotten
#define PAUSE_MS      3    // between two rounds: what comes meanwhile is written together
#define CHECKPOINT_MS 1000 // between two checkpoints
#define SILENT_MS     2000 // no job waits for a disk that takes longer to write
#define MAKE_ROOM_MS  1000 // where others fill the disk, at most one ended job is removed for a round in this time
#define ROW_BYTES     64   // of a row, beside its blobs, about

struct kept_job {
    struct kept_job *next;
    struct sl_job *job;  // a reference
    atomic_bool dropped; // to be removed
    // The writer's.
    int64_t number;     // of its row
    bool made;          // the row is there
    uint8_t *accepted;  // an AcceptedJob, until it is written
    size_t n_accepted;
    size_t n_events;    // written
    int64_t bytes;      // of its rows
    atomic_bool ended, gone; // gone: out of the database, and soon out of the list
    // The current round's.
    bool removed, has_news;
    size_t n_ready, end_at; // sl_event_log_ready()
    int64_t new_bytes;
};

struct sl_state {
    struct sl_state_folder folder;
    struct sl_database *database;
    pthread_mutex_t database_mutex; // held for a checkpoint, and to start the database anew
    int64_t last_number;            // of a job. Changed under `mutex`
    int64_t max_bytes;
    uint64_t model;
    pthread_mutex_t mutex;
    pthread_cond_t wake;   // the writer
    pthread_cond_t ends;   // the other thread
    struct kept_job *jobs; // newest first
    bool stopping, suspended, running;
    atomic_bool news, dirty, silent;
    _Atomic int64_t bytes, n_jobs, n_lost, busy_since_ns; // 0: the writer does not wait for the disk
    pthread_t writer, checkpointer;
    // The writer's.
    struct kept_job *round; // the jobs of the current round: all that were in the list when it began
    uint8_t *buffer;
    size_t n_buffer, buffer_cap;
    bool is_short, has_database;
    int64_t make_room_at_ns;
};

// Wakes the writer. Called by a log, under its lock.
static void take_news(void *arg) {
    struct sl_state *state = arg;
    if (!atomic_exchange(&state->news, true)) {
        pthread_mutex_lock(&state->mutex);
        pthread_cond_signal(&state->wake);
        pthread_mutex_unlock(&state->mutex);
    }
}

// --- jobs that are removed ---------------------------------------------------------------------------------------------

// Marks the job that ended first for removal in this round. Returns false if there is none.
static bool remove_oldest(struct sl_state *state) {
    struct kept_job *oldest = NULL;
    for (struct kept_job *kept = state->round; kept != NULL; kept = kept->next) {
        if (kept->ended && !kept->gone && !kept->removed &&
            (oldest == NULL || sl_job_ended_ns(kept->job) <= sl_job_ended_ns(oldest->job))) {
            oldest = kept;
        }
    }
    if (oldest != NULL) {
        oldest->removed = true;
    }
    return oldest != NULL;
}

static void free_kept(struct kept_job *kept) {
    sl_job_unref(&kept->job);
    free(kept->accepted);
    free(kept);
}

static void free_gone(struct sl_state *state) {
    struct kept_job *gone = NULL;
    pthread_mutex_lock(&state->mutex);
    for (struct kept_job **at = &state->jobs; *at != NULL;) {
        struct kept_job *kept = *at;
        if (kept->gone) {
            *at = kept->next;
            kept->next = gone;
            gone = kept;
        } else {
            at = &kept->next;
        }
    }
    pthread_mutex_unlock(&state->mutex);
    while (gone != NULL) {
        struct kept_job *kept = gone;
        gone = kept->next;
        free_kept(kept);
    }
}

// Counts a job that is out of the database.
static void note_gone(struct sl_state *state, struct kept_job *kept) {
    atomic_fetch_sub(&state->n_jobs, kept->made);
    kept->gone = true;
}

// Logs when jobs cannot be written, and when they can again.
static void note_room(struct sl_state *state, bool is_short, const char *why) {
    if (is_short && !state->is_short) {
        sl_log_warn("state", "%s: jobs continue that a restart will not find: %s", state->folder.path, why);
    } else if (!is_short && state->is_short) {
        sl_log_info("state", "%s: jobs are written again", state->folder.path);
    }
    state->is_short = is_short;
}

// Lets a job continue without the database, which must not keep it.
static void lose(struct sl_state *state, struct kept_job *kept, const char *why) {
    atomic_fetch_add(&state->n_lost, 1);
    note_room(state, true, why);
    kept->removed = true;
    kept->has_news = false;
    sl_event_log_let_go(&kept->job->log);
}

// --- a round -------------------------------------------------------------------------------------------------------------

// Appends an event to the buffer, after its length. Returns false if there is no memory.
static bool add_event(struct sl_state *state, const uint8_t *packed, size_t n) {
    uint32_t length = (uint32_t)n;
    if (state->buffer_cap - state->n_buffer < n + sizeof length) {
        size_t cap = 2 * (state->n_buffer + n) + 65536;
        uint8_t *grown = realloc(state->buffer, cap);
        if (grown == NULL) {
            return false;
        }
        state->buffer = grown;
        state->buffer_cap = cap;
    }
    memcpy(state->buffer + state->n_buffer, &length, sizeof length);
    memcpy(state->buffer + state->n_buffer + sizeof length, packed, n);
    state->n_buffer += sizeof length + n;
    return true;
}

static enum sl_status write_end(struct sl_state *state, struct kept_job *kept, struct sl_error *err) {
    struct sl_job_report report;
    sl_job_describe(kept->job, &report);
    uint8_t *end = malloc(sluice__v1__job__get_packed_size(&report.message) + 1);
    if (end == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the end of a job");
    }
    size_t n = sluice__v1__job__pack(&report.message, end);
    enum sl_status status = sl_database_end_job(state->database, kept->number, end, n, err);
    kept->new_bytes += (int64_t)n;
    free(end);
    return status;
}

// Writes what is new of a job, in the current transaction.
static enum sl_status write_news(struct sl_state *state, struct kept_job *kept, struct sl_error *err) {
    enum sl_status status = SL_OK;
    kept->new_bytes = kept->bytes;
    if (!kept->made) {
        status = sl_database_add_job(state->database, kept->number, kept->job->id, kept->accepted, kept->n_accepted, err);
        kept->new_bytes += (int64_t)kept->n_accepted + ROW_BYTES;
    }
    state->n_buffer = 0;
    for (size_t i = kept->n_events; i < kept->n_ready && status == SL_OK; i++) {
        size_t n;
        const uint8_t *packed = sl_event_log_packed(&kept->job->log, i, &n);
        if (!add_event(state, packed, n)) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the events of a job");
        }
    }
    if (status == SL_OK && state->n_buffer > 0) {
        status = sl_database_add_events(state->database, kept->number, kept->n_events, state->buffer, state->n_buffer,
                                        err);
        kept->new_bytes += (int64_t)state->n_buffer + ROW_BYTES;
    }
    return status == SL_OK && kept->end_at != SIZE_MAX ? write_end(state, kept, err) : status;
}

// Decides what the round does with a job. Returns true if it does anything.
static bool look_at(struct kept_job *kept) {
    kept->removed = kept->has_news = false;
    if (kept->gone) {
        return false;
    }
    // A log that is not held, because watchers did not wait, has shown more than is written.
    if (atomic_load(&kept->dropped) || atomic_load(&kept->job->forgotten) ||
        (!kept->ended && !sl_event_log_is_held(&kept->job->log))) {
        kept->removed = true;
    } else if (!kept->ended) {
        kept->n_ready = sl_event_log_ready(&kept->job->log, &kept->end_at);
        kept->has_news = !kept->made || kept->n_ready > kept->n_events || kept->end_at != SIZE_MAX;
    }
    return kept->removed || kept->has_news;
}

// Returns the bytes of all jobs once the round is committed.
static int64_t bytes_after_round(const struct sl_state *state) {
    int64_t bytes = atomic_load(&state->bytes);
    for (const struct kept_job *kept = state->round; kept != NULL; kept = kept->next) {
        bytes += kept->removed ? -kept->bytes : kept->has_news ? kept->new_bytes - kept->bytes : 0;
    }
    return bytes;
}

// Replaces the database by an empty one.
static enum sl_status start_anew(struct sl_state *state, struct sl_error *err) {
    pthread_mutex_lock(&state->database_mutex);
    enum sl_status status = sl_database_start_anew(state->database, err);
    pthread_mutex_unlock(&state->database_mutex);
    state->has_database = status == SL_OK;
    return status;
}

static enum sl_status try_round(struct sl_state *state, struct sl_error *err) {
    atomic_store(&state->busy_since_ns, sl_now_ns());
    enum sl_status status = state->has_database ? SL_OK : start_anew(state, err);
    status = status == SL_OK ? sl_database_begin(state->database, err) : status;
    for (struct kept_job *kept = state->round; kept != NULL && status == SL_OK; kept = kept->next) {
        if (kept->has_news) {
            status = write_news(state, kept, err);
        }
    }
    while (status == SL_OK && bytes_after_round(state) > state->max_bytes) {
        if (remove_oldest(state)) {
            continue;
        }
        status = sl_fail(err, SL_ERR_EXHAUSTED, "they need more than --state-bytes, %" PRId64, state->max_bytes);
    }
    for (struct kept_job *kept = state->round; kept != NULL && status == SL_OK; kept = kept->next) {
        if (kept->removed && kept->made) {
            status = sl_database_remove_job(state->database, kept->number, err);
        }
    }
    status = status == SL_OK ? sl_database_commit(state->database, err) : status;
    if (status != SL_OK) {
        sl_database_rollback(state->database);
    }
    atomic_store(&state->busy_since_ns, 0);
    return status;
}

// Removes the database: what it has of jobs may be less than watchers have seen.
static void lose_all(struct sl_state *state, const char *why) {
    struct sl_error err;
    for (struct kept_job *kept = state->round; kept != NULL; kept = kept->next) {
        if (!kept->gone && !kept->removed && !kept->ended) {
            lose(state, kept, why);
        }
        kept->removed = true;
    }
    if (start_anew(state, &err) != SL_OK) {
        sl_log_warn("state", "%s: no new database: %s", state->folder.path, err.text);
    }
}

// Counts what a round has written, and lets watchers see it.
static void finish_round(struct sl_state *state) {
    atomic_store(&state->bytes, bytes_after_round(state));
    for (struct kept_job *kept = state->round; kept != NULL; kept = kept->next) {
        if (kept->removed && !kept->gone) {
            note_gone(state, kept);
        } else if (kept->has_news) {
            atomic_fetch_add(&state->n_jobs, !kept->made);
            kept->made = true;
            kept->bytes = kept->new_bytes;
            free(kept->accepted);
            kept->accepted = NULL;
            kept->n_events = kept->n_ready;
            kept->ended = kept->end_at != SIZE_MAX;
            sl_event_log_tell(&kept->job->log, kept->n_ready);
            note_room(state, false, "");
        }
    }
}

static void write_round(struct sl_state *state) {
    struct sl_error err = {0};
    bool any = false;
    pthread_mutex_lock(&state->mutex);
    state->round = state->jobs;
    pthread_mutex_unlock(&state->mutex);
    for (struct kept_job *kept = state->round; kept != NULL; kept = kept->next) {
        any |= look_at(kept);
    }
    if (any) {
        enum sl_status status = try_round(state, &err);
        if (status == SL_ERR_EXHAUSTED && sl_now_ns() >= state->make_room_at_ns && remove_oldest(state)) {
            state->make_room_at_ns = sl_deadline_in_ms(MAKE_ROOM_MS);
            status = try_round(state, &err);
        }
        if (status != SL_OK) {
            for (struct kept_job *kept = state->round; kept != NULL; kept = kept->next) {
                if (kept->has_news) {
                    lose(state, kept, err.text);
                }
            }
            if (try_round(state, &err) != SL_OK) {
                lose_all(state, err.text);
            }
        }
        finish_round(state);
        atomic_store(&state->dirty, true);
        free_gone(state);
    }
    if (atomic_exchange(&state->silent, false)) {
        sl_log_info("state", "%s: the disk answers again", state->folder.path);
    }
}

static void *write_always(void *arg) {
    struct sl_state *state = arg;
    for (;;) {
        int64_t next_ns = sl_deadline_in_ms(LOOK_MS);
        pthread_mutex_lock(&state->mutex);
        while (!state->stopping && !atomic_load(&state->news) &&
               sl_cond_wait_until(&state->wake, &state->mutex, next_ns) == SL_OK) {
        }
        bool stopping = state->stopping, suspended = state->suspended;
        atomic_store(&state->news, false);
        pthread_mutex_unlock(&state->mutex);
        if (!suspended) {
            write_round(state);
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
    pthread_mutex_lock(&state->database_mutex);
    if (sl_database_checkpoint(state->database, &err) != SL_OK) {
        sl_log_warn("state", "%s: no checkpoint: %s", state->folder.path, err.text);
    }
    pthread_mutex_unlock(&state->database_mutex);
}

static void *checkpoint_always(void *arg) {
    struct sl_state *state = arg;
    for (bool stopping = false; !stopping;) {
        int64_t next_ns = sl_deadline_in_ms(CHECKPOINT_MS);
        pthread_mutex_lock(&state->mutex);
        while (!state->stopping && sl_cond_wait_until(&state->ends, &state->mutex, next_ns) == SL_OK) {
        }
        stopping = state->stopping;
        pthread_mutex_unlock(&state->mutex);
        checkpoint(state);
    }
    return NULL;
}

// --- life ----------------------------------------------------------------------------------------------------------------

enum sl_status sl_state_open(const struct sl_state_config *config, struct sl_state **state_out, struct sl_error *err) {
    if (config->max_bytes < SL_STATE_MIN_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "--state-bytes: must be at least %" PRId64, SL_STATE_MIN_BYTES);
    }
    struct sl_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a folder of jobs");
    }
    enum sl_status status = sl_state_folder_open(config->folder, &state->folder, err);
    if (status != SL_OK) {
        free(state);
        return status;
    }
    status = sl_database_open(state->folder.path, config->max_bytes, &state->database, err);
    if (status != SL_OK) {
        sl_state_folder_close(&state->folder);
        free(state);
        return status;
    }
    state->max_bytes = config->max_bytes;
    state->model = config->model;
    state->has_database = true;
    pthread_mutex_init(&state->mutex, NULL);
    pthread_mutex_init(&state->database_mutex, NULL);
    sl_cond_init(&state->wake);
    sl_cond_init(&state->ends);
    *state_out = state;
    return SL_OK;
}

static void push(struct sl_state *state, struct kept_job *kept) {
    pthread_mutex_lock(&state->mutex);
    kept->number = kept->number != 0 ? kept->number : state->last_number + 1;
    state->last_number = kept->number > state->last_number ? kept->number : state->last_number;
    kept->next = state->jobs;
    state->jobs = kept;
    pthread_mutex_unlock(&state->mutex);
}

// Adds a restored job to the list.
static enum sl_status enter(struct sl_state *state, const struct sl_database_job *row, const struct sl_past_jobs *past,
                            struct sl_job *job, struct sl_error *err) {
    struct kept_job *kept = calloc(1, sizeof *kept);
    if (kept == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a job of before");
    }
    kept->job = sl_job_ref(job);
    kept->number = row->number;
    kept->made = true;
    kept->n_events = past->n_events;
    kept->bytes = (int64_t)(row->n_accepted + row->n_end + row->n_events) + 2 * ROW_BYTES; // about
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
    if (grown == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for jobs that are removed");
    }
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
    status = status == SL_OK ? load->restore(load->arg, &past, &job, &why) : status;
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
    return status == SL_OK ? SL_OK
                           : sl_fail(err, status, "--state %.200s: %.64s: %s", load->state->folder.path, row->id, why.text);
}

// Removes the rows of jobs that were not restored.
static enum sl_status remove_rows(const struct load *load, struct sl_error *err) {
    struct sl_database *database = load->state->database;
    enum sl_status status = sl_database_begin(database, err);
    for (size_t i = 0; i < load->n_removed && status == SL_OK; i++) {
        status = sl_database_remove_job(database, load->removed[i], err);
    }
    status = status == SL_OK ? sl_database_commit(database, err) : status;
    if (status != SL_OK) {
        sl_database_rollback(database);
    }
    return status;
}

static enum sl_status start_threads(struct sl_state *state, struct sl_error *err) {
    enum sl_status status = sl_thread_start("state", write_always, state, &state->writer, err);
    if (status != SL_OK) {
        return status;
    }
    status = sl_thread_start("state-sync", checkpoint_always, state, &state->checkpointer, err);
    if (status != SL_OK) {
        pthread_mutex_lock(&state->mutex);
        state->stopping = true;
        pthread_cond_broadcast(&state->wake);
        pthread_mutex_unlock(&state->mutex);
        pthread_join(state->writer, NULL);
        return status;
    }
    state->running = true;
    return SL_OK;
}

enum sl_status sl_state_load(struct sl_state *state, sl_state_restore_fn restore, void *arg, struct sl_error *err) {
    struct load load = {.state = state, .restore = restore, .arg = arg};
    enum sl_status status = sl_database_each(state->database, load_job, &load, err);
    status = status == SL_OK && load.n_removed > 0 ? remove_rows(&load, err) : status;
    free(load.removed);
    return status == SL_OK ? start_threads(state, err) : status;
}

static void stop_threads(struct sl_state *state, bool suspended) {
    pthread_mutex_lock(&state->mutex);
    bool running = state->running;
    state->running = false;
    state->stopping = true;
    state->suspended |= suspended;
    pthread_cond_broadcast(&state->wake);
    pthread_cond_broadcast(&state->ends);
    pthread_mutex_unlock(&state->mutex);
    if (running) {
        pthread_join(state->writer, NULL);
        pthread_join(state->checkpointer, NULL);
        checkpoint(state);
    }
}

void sl_state_suspend(struct sl_state *state) {
    stop_threads(state, true);
}

void sl_state_close(struct sl_state **state_inout) {
    struct sl_state *state = *state_inout;
    if (state == NULL) {
        return;
    }
    stop_threads(state, false);
    while (state->jobs != NULL) {
        struct kept_job *kept = state->jobs;
        state->jobs = kept->next;
        sl_event_log_let_go(&kept->job->log);
        free_kept(kept);
    }
    sl_database_close(&state->database);
    sl_state_folder_close(&state->folder);
    pthread_cond_destroy(&state->wake);
    pthread_cond_destroy(&state->ends);
    pthread_mutex_destroy(&state->mutex);
    pthread_mutex_destroy(&state->database_mutex);
    free(state->buffer);
    free(state);
    *state_inout = NULL;
}

// --- jobs that come ------------------------------------------------------------------------------------------------------

void sl_state_keep(struct sl_state *state, struct sl_job *job, bool attached) {
    struct sl_error err;
    struct kept_job *kept = atomic_load(&state->silent) ? NULL : calloc(1, sizeof *kept);
    if (kept == NULL || sl_past_accept(job, state->model, attached, &kept->accepted, &kept->n_accepted, &err) != SL_OK) {
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
    pthread_mutex_lock(&state->mutex);
    for (struct kept_job *kept = state->jobs; kept != NULL; kept = kept->next) {
        if (kept->job == job) {
            atomic_store(&kept->dropped, true);
        }
    }
    pthread_mutex_unlock(&state->mutex);
    take_news(state);
}

// Returns references to the jobs whose watchers wait for the disk, malloc'd.
static struct sl_job **waiting_jobs(struct sl_state *state, size_t *n_out) {
    size_t n = 0, n_all = 0;
    pthread_mutex_lock(&state->mutex);
    for (struct kept_job *kept = state->jobs; kept != NULL; kept = kept->next) {
        n_all++;
    }
    struct sl_job **jobs = malloc((n_all + 1) * sizeof(struct sl_job *));
    for (struct kept_job *kept = state->jobs; jobs != NULL && kept != NULL; kept = kept->next) {
        if (!atomic_load(&kept->ended) && !atomic_load(&kept->gone)) {
            jobs[n++] = sl_job_ref(kept->job);
        }
    }
    pthread_mutex_unlock(&state->mutex);
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
        sl_event_log_let_go(&jobs[i]->log);
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
