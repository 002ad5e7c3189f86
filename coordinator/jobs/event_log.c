// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/event_log.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/locked.h"

struct sl_event_bytes {
    size_t n_bytes;
    uint8_t bytes[];
};

void sl_event_log_init(struct sl_event_log *log, size_t max_events, size_t max_progress) {
    *log = (struct sl_event_log){.max_events = max_events, .max_progress = max_progress, .end_at = SIZE_MAX};
    pthread_mutex_init(&log->mutex, NULL);
}

void sl_event_log_cleanup(struct sl_event_log *log) {
    for (size_t i = 0; i < log->n_events; i++) {
        free(log->events[i]);
    }
    free(log->events);
    log->events = NULL;
    log->n_events = 0;
    pthread_mutex_destroy(&log->mutex);
}

// Unlocks the log and wakes its watchers.
static void ring(struct sl_event_log *log) {
    sl_bell_ring(&log->changed, &log->mutex, INT_MAX);
}

// Unlocks the log after an event. Watchers of a held one wait for sl_event_log_tell().
static void unlock(struct sl_event_log *log) {
    if (log->held) {
        pthread_mutex_unlock(&log->mutex);
    } else {
        ring(log);
    }
}

static enum sl_status check_room(struct sl_event_log *log, enum sl_event_kind kind) {
    if (log->closed) {
        return SL_ERR_PRECONDITION;
    }
    if (kind == SL_EVENT_PROGRESS && log->n_progress >= log->max_progress) {
        return SL_AGAIN;
    }
    const bool has_room = log->n_events < log->max_events &&
                          sl_array_reserve(&log->events, &log->cap_events, log->n_events + 1, sizeof(*log->events));
    return has_room ? SL_OK : SL_ERR_EXHAUSTED;
}

// Adds room for an event, which the caller fills before it unlocks. NULL: no memory.
static uint8_t *add(struct sl_event_log *log, enum sl_event_kind kind, size_t n_bytes) {
    struct sl_event_bytes *packed = malloc(sizeof(*packed) + n_bytes);
    if (packed == NULL) {
        return NULL;
    }
    packed->n_bytes = n_bytes;
    log->events[log->n_events++] = packed;
    log->n_progress += kind == SL_EVENT_PROGRESS;
    log->bytes += sizeof(*packed) + packed->n_bytes;
    if (!log->held) {
        log->n_told = log->n_events;
    } else if (log->news) {
        log->news(log->news_arg);
    }
    return packed->bytes;
}

static enum sl_status append_locked(struct sl_event_log *log, enum sl_event_kind kind, Sluice__V1__Event *event) {
    SL_TRY(check_room(log, kind));
    event->sequence = (int64_t)log->n_events + 1;
    event->time_ms = sl_wall_ms();
    uint8_t *packed = add(log, kind, sluice__v1__event__get_packed_size(event));
    return packed != NULL && sluice__v1__event__pack(event, packed) > 0 ? SL_OK : SL_ERR_EXHAUSTED;
}

enum sl_status sl_event_log_append(struct sl_event_log *log, enum sl_event_kind kind, Sluice__V1__Event *event) {
    pthread_mutex_lock(&log->mutex);
    enum sl_status status = append_locked(log, kind, event);
    unlock(log);
    return status;
}

void sl_event_log_close(struct sl_event_log *log) {
    pthread_mutex_lock(&log->mutex);
    log->closed = true;
    if (log->held && log->news) {
        log->news(log->news_arg);
    }
    ring(log);
}

// Returns whether watchers will see no further event. Lock held.
static bool is_over(const struct sl_event_log *log) {
    return log->closed && log->n_told == log->n_events;
}

enum sl_status sl_event_log_wait(struct sl_event_log *log, int64_t sequence, int64_t deadline_ns,
                                 const uint8_t **packed_out, size_t *n_bytes_out) {
    assert(sequence >= 1);
    size_t index = (size_t)sequence - 1;
    enum sl_status status = SL_OK;
    SL_LOCKED(&log->mutex);
    while (index >= log->n_told && !is_over(log) && status == SL_OK) {
        status = sl_bell_wait(&log->changed, &log->mutex, deadline_ns);
    }
    if (index < log->n_told) {
        *packed_out = log->events[index]->bytes;
        *n_bytes_out = log->events[index]->n_bytes;
        status = SL_OK;
    } else {
        status = is_over(log) ? SL_ERR_NOT_FOUND : SL_ERR_DEADLINE;
    }
    return status;
}

enum sl_status sl_event_log_get(struct sl_event_log *log, int64_t sequence, int64_t deadline_ns,
                                Sluice__V1__Event **event_out) {
    const uint8_t *packed;
    size_t n_bytes;
    SL_TRY(sl_event_log_wait(log, sequence, deadline_ns, &packed, &n_bytes));
    if ((*event_out = sluice__v1__event__unpack(NULL, n_bytes, packed)) == NULL) {
        return SL_ERR_EXHAUSTED; // we packed it ourselves: only memory can be missing
    }
    return SL_OK;
}

enum sl_status sl_event_log_wait_closed(struct sl_event_log *log, int64_t deadline_ns) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&log->mutex);
    while (!is_over(log) && status == SL_OK) {
        status = sl_bell_wait(&log->changed, &log->mutex, deadline_ns);
    }
    bool closed = is_over(log);
    return closed ? SL_OK : SL_ERR_DEADLINE;
}

int64_t sl_event_log_last_sequence(struct sl_event_log *log) {
    SL_LOCKED(&log->mutex);
    return (int64_t)log->n_told;
}

size_t sl_event_log_bytes(struct sl_event_log *log) {
    SL_LOCKED(&log->mutex);
    return log->bytes + log->cap_events * sizeof(*log->events);
}

// ---- of what is written down --------------------------------------------------------------------------------------------

void sl_event_log_hold(struct sl_event_log *log, void (*news)(void *arg), void *arg) {
    SL_LOCKED(&log->mutex);
    log->held = true;
    log->n_told = 0;
    log->news = news;
    log->news_arg = arg;
}

void sl_event_log_tell(struct sl_event_log *log, size_t n) {
    pthread_mutex_lock(&log->mutex);
    if (n > log->n_told) {
        log->n_told = n < log->n_events ? n : log->n_events;
    }
    ring(log);
}

void sl_event_log_release(struct sl_event_log *log) {
    pthread_mutex_lock(&log->mutex);
    log->held = false;
    log->news = NULL;
    log->n_told = log->n_events;
    ring(log);
}

bool sl_event_log_is_held(struct sl_event_log *log) {
    SL_LOCKED(&log->mutex);
    return log->held;
}

void sl_event_log_begin_end(struct sl_event_log *log) {
    SL_LOCKED(&log->mutex);
    log->end_at = log->n_events;
}

size_t sl_event_log_ready(struct sl_event_log *log, size_t *end_at_out) {
    SL_LOCKED(&log->mutex);
    *end_at_out = log->closed ? log->end_at : SIZE_MAX;
    return log->closed || log->n_events < log->end_at ? log->n_events : log->end_at;
}

const uint8_t *sl_event_log_packed(struct sl_event_log *log, size_t i, size_t *n_bytes_out) {
    pthread_mutex_lock(&log->mutex);
    const struct sl_event_bytes *packed = log->events[i];
    pthread_mutex_unlock(&log->mutex);
    *n_bytes_out = packed->n_bytes;
    return packed->bytes;
}

enum sl_status sl_event_log_restore(struct sl_event_log *log, enum sl_event_kind kind, const uint8_t *bytes,
                                    size_t n_bytes) {
    pthread_mutex_lock(&log->mutex);
    enum sl_status status = check_room(log, kind);
    if (status == SL_OK) {
        uint8_t *packed = add(log, kind, n_bytes);
        status = packed != NULL ? SL_OK : SL_ERR_EXHAUSTED;
        if (packed != NULL) {
            memcpy(packed, bytes, n_bytes);
        }
    }
    unlock(log);
    return status;
}

enum sl_status sl_event_log_wait_told(struct sl_event_log *log, int64_t deadline_ns) {
    const uint8_t *packed;
    size_t n_bytes;
    return sl_event_log_wait(log, 1, deadline_ns, &packed, &n_bytes);
}
