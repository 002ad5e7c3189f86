// SPDX-License-Identifier: Apache-2.0
// Purpose: see event_log.h.
#include "coordinator/jobs/event_log.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/thread.h"

struct sl_event_bytes {
    size_t n_bytes;
    uint8_t bytes[];
};

void sl_event_log_init(struct sl_event_log *log, size_t max_events, size_t max_progress) {
    *log = (struct sl_event_log){.max_events = max_events, .max_progress = max_progress};
    pthread_mutex_init(&log->mutex, NULL);
    sl_cond_init(&log->changed);
}

void sl_event_log_cleanup(struct sl_event_log *log) {
    for (size_t i = 0; i < log->n_events; i++) {
        free(log->events[i]);
    }
    free(log->events);
    log->events = NULL;
    log->n_events = 0;
    pthread_cond_destroy(&log->changed);
    pthread_mutex_destroy(&log->mutex);
}

static enum sl_status grow(struct sl_event_log *log) {
    size_t cap = log->cap_events > 0 ? 2 * log->cap_events : 64;
    struct sl_event_bytes **events = realloc(log->events, cap * sizeof(*events));
    if (events == NULL) {
        return SL_ERR_EXHAUSTED;
    }
    log->events = events;
    log->cap_events = cap;
    return SL_OK;
}

static enum sl_status append_locked(struct sl_event_log *log, enum sl_event_kind kind, Sluice__V1__Event *event) {
    if (log->closed) {
        return SL_ERR_PRECONDITION;
    }
    if (kind == SL_EVENT_PROGRESS && log->n_progress >= log->max_progress) {
        return SL_AGAIN;
    }
    if (log->n_events >= log->max_events || (log->n_events == log->cap_events && grow(log) != SL_OK)) {
        return SL_ERR_EXHAUSTED;
    }
    event->sequence = (int64_t)log->n_events + 1;
    event->time_ms = sl_wall_ms();
    size_t n_bytes = sluice__v1__event__get_packed_size(event);
    struct sl_event_bytes *packed = malloc(sizeof(*packed) + n_bytes);
    if (packed == NULL) {
        return SL_ERR_EXHAUSTED;
    }
    packed->n_bytes = sluice__v1__event__pack(event, packed->bytes);
    log->events[log->n_events++] = packed;
    log->n_progress += kind == SL_EVENT_PROGRESS;
    log->bytes += sizeof(*packed) + n_bytes;
    pthread_cond_broadcast(&log->changed);
    return SL_OK;
}

enum sl_status sl_event_log_append(struct sl_event_log *log, enum sl_event_kind kind, Sluice__V1__Event *event) {
    pthread_mutex_lock(&log->mutex);
    enum sl_status status = append_locked(log, kind, event);
    pthread_mutex_unlock(&log->mutex);
    return status;
}

void sl_event_log_close(struct sl_event_log *log) {
    pthread_mutex_lock(&log->mutex);
    log->closed = true;
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&log->mutex);
}

enum sl_status sl_event_log_get(struct sl_event_log *log, int64_t sequence, int64_t deadline_ns,
                                Sluice__V1__Event **event_out) {
    assert(sequence >= 1);
    size_t index = (size_t)sequence - 1;
    enum sl_status status = SL_OK;
    const struct sl_event_bytes *packed = NULL;

    pthread_mutex_lock(&log->mutex);
    while (index >= log->n_events && !log->closed && status == SL_OK) {
        status = sl_cond_wait_until(&log->changed, &log->mutex, deadline_ns);
    }
    if (index < log->n_events) {
        packed = log->events[index];
    }
    bool closed = log->closed;
    pthread_mutex_unlock(&log->mutex);

    if (packed == NULL) {
        return closed ? SL_ERR_NOT_FOUND : SL_ERR_DEADLINE;
    }
    Sluice__V1__Event *event = sluice__v1__event__unpack(NULL, packed->n_bytes, packed->bytes);
    if (event == NULL) {
        return SL_ERR_EXHAUSTED; // we packed it ourselves: only memory can be missing
    }
    *event_out = event;
    return SL_OK;
}

enum sl_status sl_event_log_wait_closed(struct sl_event_log *log, int64_t deadline_ns) {
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&log->mutex);
    while (!log->closed && status == SL_OK) {
        status = sl_cond_wait_until(&log->changed, &log->mutex, deadline_ns);
    }
    bool closed = log->closed;
    pthread_mutex_unlock(&log->mutex);
    return closed ? SL_OK : SL_ERR_DEADLINE;
}

int64_t sl_event_log_last_sequence(struct sl_event_log *log) {
    pthread_mutex_lock(&log->mutex);
    int64_t last = (int64_t)log->n_events;
    pthread_mutex_unlock(&log->mutex);
    return last;
}

size_t sl_event_log_bytes(struct sl_event_log *log) {
    pthread_mutex_lock(&log->mutex);
    size_t bytes = log->bytes + log->cap_events * sizeof(*log->events);
    pthread_mutex_unlock(&log->mutex);
    return bytes;
}
