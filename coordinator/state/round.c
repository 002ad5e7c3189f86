// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one round of the writer: what a transaction holds, and what follows where it fails.
 *
 * Design: a failed round is tried again without an ended job, where the disk is full. Where it fails still, the jobs that
 *         have news continue without the database, and their rows are removed. Where even that fails, the whole database is
 *         removed: no row may tell less than watchers have seen.
 */
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "coordinator/state/state_internal.h"

#define MAKE_ROOM_MS 1000 // where others fill the disk, at most one ended job is removed for a round in this time

// --- jobs that are removed ---------------------------------------------------------------------------------------------

// Marks the job that ended first for removal in this round. Returns false if there is none.
static bool remove_oldest(struct sl_state *state) {
    struct sl_kept_job *oldest = NULL;
    for (struct sl_kept_job *kept = state->round; kept != NULL; kept = kept->next) {
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

void sl_kept_job_free(struct sl_kept_job *kept) {
    sl_job_unref(&kept->job);
    free(kept->accepted);
    free(kept);
}

static void free_gone(struct sl_state *state) {
    struct sl_kept_job *gone = NULL;
    pthread_mutex_lock(&state->writer.mutex);
    for (struct sl_kept_job **at = &state->jobs; *at != NULL;) {
        struct sl_kept_job *kept = *at;
        if (kept->gone) {
            *at = kept->next;
            kept->next = gone;
            gone = kept;
        } else {
            at = &kept->next;
        }
    }
    pthread_mutex_unlock(&state->writer.mutex);
    while (gone != NULL) {
        struct sl_kept_job *kept = gone;
        gone = kept->next;
        sl_kept_job_free(kept);
    }
}

// Counts a job that is out of the database.
static void note_gone(struct sl_state *state, struct sl_kept_job *kept) {
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
static void lose(struct sl_state *state, struct sl_kept_job *kept, const char *why) {
    atomic_fetch_add(&state->n_lost, 1);
    note_room(state, true, why);
    kept->removed = true;
    kept->has_news = false;
    sl_event_log_release(&kept->job->log);
}

// --- a round -------------------------------------------------------------------------------------------------------------

// Appends an event to the buffer, after its length. Returns false if there is no memory.
static bool add_event(struct sl_state *state, const uint8_t *packed, size_t n) {
    uint32_t length = (uint32_t)n;
    if (!sl_array_reserve(&state->buffer, &state->buffer_cap, state->n_buffer + sizeof length + n, 1)) {
        return false;
    }
    memcpy(state->buffer + state->n_buffer, &length, sizeof length);
    memcpy(state->buffer + state->n_buffer + sizeof length, packed, n);
    state->n_buffer += sizeof length + n;
    return true;
}

static enum sl_status write_end(struct sl_state *state, struct sl_kept_job *kept, struct sl_error *err) {
    Sluice__V1__Job *job = sl_job_describe(kept->job);
    uint8_t *end = job != NULL ? malloc(sluice__v1__job__get_packed_size(job) + 1) : NULL;
    SL_FAIL_OR(end == NULL, sluice__v1__job__free_unpacked(job, NULL), err, SL_ERR_EXHAUSTED,
               "no memory for the end of a job");
    size_t n = sluice__v1__job__pack(job, end);
    enum sl_status status = sl_database_end_job(state->database, kept->number, end, n, err);
    kept->new_bytes += (int64_t)n;
    free(end);
    sluice__v1__job__free_unpacked(job, NULL);
    return status;
}

// Writes what is new of a job, in the current transaction.
static enum sl_status write_news(struct sl_state *state, struct sl_kept_job *kept, struct sl_error *err) {
    enum sl_status status = SL_OK;
    kept->new_bytes = kept->bytes;
    if (!kept->made) {
        status =
            sl_database_add_job(state->database, kept->number, kept->job->id, kept->accepted, kept->n_accepted, err);
        kept->new_bytes += (int64_t)kept->n_accepted + SL_STATE_ROW_BYTES;
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
        status =
            sl_database_add_events(state->database, kept->number, kept->n_events, state->buffer, state->n_buffer, err);
        kept->new_bytes += (int64_t)state->n_buffer + SL_STATE_ROW_BYTES;
    }
    return status == SL_OK && kept->end_at != SIZE_MAX ? write_end(state, kept, err) : status;
}

// Decides what the round does with a job. Returns true if it does anything.
static bool look_at(struct sl_kept_job *kept) {
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
    for (const struct sl_kept_job *kept = state->round; kept != NULL; kept = kept->next) {
        bytes += kept->removed ? -kept->bytes : kept->has_news ? kept->new_bytes - kept->bytes : 0;
    }
    return bytes;
}

// Replaces the database by an empty one.
static enum sl_status start_anew(struct sl_state *state, struct sl_error *err) {
    enum sl_status status;
    SL_WITH_LOCK(&state->database_mutex, status = sl_database_start_anew(state->database, err));
    state->has_database = status == SL_OK;
    return status;
}

static enum sl_status try_round(struct sl_state *state, struct sl_error *err) {
    atomic_store(&state->busy_since_ns, sl_now_ns());
    enum sl_status status = state->has_database ? SL_OK : start_anew(state, err);
    SL_THEN(status, sl_database_begin(state->database, err));
    for (struct sl_kept_job *kept = state->round; kept != NULL && status == SL_OK; kept = kept->next) {
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
    for (struct sl_kept_job *kept = state->round; kept != NULL && status == SL_OK; kept = kept->next) {
        if (kept->removed && kept->made) {
            status = sl_database_remove_job(state->database, kept->number, err);
        }
    }
    SL_THEN(status, sl_database_commit(state->database, err));
    if (status != SL_OK) {
        sl_database_rollback(state->database);
    }
    atomic_store(&state->busy_since_ns, 0);
    return status;
}

// Removes the database: what it has of jobs may be less than watchers have seen.
static void lose_all(struct sl_state *state, const char *why) {
    struct sl_error err;
    for (struct sl_kept_job *kept = state->round; kept != NULL; kept = kept->next) {
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
    for (struct sl_kept_job *kept = state->round; kept != NULL; kept = kept->next) {
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

void sl_state_write_round(struct sl_state *state) {
    struct sl_error err = {0};
    bool any = false;
    SL_WITH_LOCK(&state->writer.mutex, state->round = state->jobs);
    for (struct sl_kept_job *kept = state->round; kept != NULL; kept = kept->next) {
        any |= look_at(kept);
    }
    if (any) {
        enum sl_status status = try_round(state, &err);
        if (status == SL_ERR_EXHAUSTED && sl_now_ns() >= state->make_room_at_ns && remove_oldest(state)) {
            state->make_room_at_ns = sl_deadline_in_ms(MAKE_ROOM_MS);
            status = try_round(state, &err);
        }
        if (status != SL_OK) {
            for (struct sl_kept_job *kept = state->round; kept != NULL; kept = kept->next) {
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
