// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: everything that happened to one job, in order, for any number of watchers, from any sequence number on.
 *
 * Design: an append-only array of packed sluice.v1.Event messages. An event never changes once it is in, so a watcher
 *         copies a pointer under the lock and unpacks and sends without it: a slow watcher holds up nobody.
 * Invariants: events[i] has sequence i + 1; nothing is appended after the log was closed; at most max_events are kept.
 *             Progress may only use what is left of max_progress, so it can never crowd out tokens and states.
 * Threads: every function from any thread, except init and cleanup.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "proto/sluice/v1/inference.pb-c.h"

struct sl_event_bytes; // one packed event

struct sl_event_log {
    pthread_mutex_t mutex;
    pthread_cond_t changed; // an event was appended, or the log was closed
    struct sl_event_bytes **events;
    size_t n_events, cap_events;
    size_t max_events;               // tokens, states and the end always fit: the owner computes it
    size_t n_progress, max_progress; // of which progress
    size_t bytes;                    // held by the events
    bool closed;
};

enum sl_event_kind { SL_EVENT_FACT, SL_EVENT_PROGRESS };

void sl_event_log_init(struct sl_event_log *log, size_t max_events, size_t max_progress);
void sl_event_log_cleanup(struct sl_event_log *log);

/*
 * Append a copy of *event; its sequence and time are set here. SL_AGAIN: a progress event was dropped because the log
 * holds enough of them. SL_ERR_EXHAUSTED: out of memory, or more than max_events. SL_ERR_PRECONDITION: closed.
 */
enum sl_status sl_event_log_append(struct sl_event_log *log, enum sl_event_kind kind, Sluice__V1__Event *event);

// No event will follow. Watchers get what is left and then the end. Idempotent.
void sl_event_log_close(struct sl_event_log *log);

/*
 * The event with this sequence number (1 is the first), waiting for it until the deadline. *event_out is freed by
 * sluice__v1__event__free_unpacked(). SL_ERR_NOT_FOUND: the log ends before it. SL_ERR_DEADLINE.
 */
enum sl_status sl_event_log_get(struct sl_event_log *log, int64_t sequence, int64_t deadline_ns,
                                Sluice__V1__Event **event_out);

// Wait until the log is closed: SL_OK or SL_ERR_DEADLINE.
enum sl_status sl_event_log_wait_closed(struct sl_event_log *log, int64_t deadline_ns);

int64_t sl_event_log_last_sequence(struct sl_event_log *log);
size_t sl_event_log_bytes(struct sl_event_log *log);
