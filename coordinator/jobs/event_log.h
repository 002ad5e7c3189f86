// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: everything that happened to one job, in order, for any number of watchers, from any sequence number on.
 *
 * Design: an append-only array of packed sluice.v1.Event messages. An event never changes once it is in, so a watcher
 *         copies a pointer under the lock and unpacks and sends without it: a slow watcher delays no other thread. A held log
 *         (coordinator/state/state.h) shows an event only after it was written to disk: what a watcher has seen survives the process. The
 *         appending thread does not wait for that.
 * Invariants: events[i] has sequence i + 1; nothing is appended after the log was closed; at most max_events are kept.
 *             Progress may only use what is left of max_progress, so it can never crowd out tokens and states.
 * Threads: every function from any thread, except init, cleanup, hold and restore.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fiber/bell.h"
#include "proto/sluice/v1/inference.pb-c.h"

struct sl_event_bytes; // one packed event

struct sl_event_log {
    pthread_mutex_t mutex;
    struct sl_bell changed; // an event was appended, or the log was closed
    struct sl_event_bytes **events;
    size_t n_events, cap_events;
    size_t max_events;               // tokens, states and the end always fit: the owner computes it
    size_t n_progress, max_progress; // of which progress
    size_t bytes;                    // held by the events
    bool closed;
    bool held;
    size_t n_told;        // events that watchers may see: all, unless held
    size_t end_at;        // the events from here on are the end, which is written as one; SIZE_MAX: it has not begun
    void (*news)(void *); // of a held log: called after every event, under the lock
    void *news_arg;
};

enum sl_event_kind { SL_EVENT_FACT, SL_EVENT_PROGRESS };

void sl_event_log_init(struct sl_event_log *log, size_t max_events, size_t max_progress);
void sl_event_log_cleanup(struct sl_event_log *log);

/*
 * Appends a copy of *event; its sequence and time are set here. SL_AGAIN: a progress event was dropped because the log
 * holds enough of them. SL_ERR_EXHAUSTED: out of memory, or more than max_events. SL_ERR_PRECONDITION: closed.
 */
enum sl_status sl_event_log_append(struct sl_event_log *log, enum sl_event_kind kind, Sluice__V1__Event *event);

// Closes the log: no event will follow. Watchers get the remaining events and then the end. Idempotent.
void sl_event_log_close(struct sl_event_log *log);

// Waits until the deadline for the event with this sequence number (1 is the first), packed, at an address that is valid as long as
// the log. SL_ERR_NOT_FOUND: the log ends before it. SL_ERR_DEADLINE.
enum sl_status sl_event_log_wait(struct sl_event_log *log, int64_t sequence, int64_t deadline_ns,
                                 const uint8_t **packed_out, size_t *n_bytes_out);
// Likewise, unpacked. The caller frees *event_out with sluice__v1__event__free_unpacked(). SL_ERR_EXHAUSTED.
enum sl_status sl_event_log_get(struct sl_event_log *log, int64_t sequence, int64_t deadline_ns,
                                Sluice__V1__Event **event_out);

// Waits until the log is closed: SL_OK or SL_ERR_DEADLINE.
enum sl_status sl_event_log_wait_closed(struct sl_event_log *log, int64_t deadline_ns);

int64_t sl_event_log_last_sequence(struct sl_event_log *log); // that watchers may see
size_t sl_event_log_bytes(struct sl_event_log *log);

// ---- of what is written down --------------------------------------------------------------------------------------------

// Holds the log: from here on, watchers see only what sl_event_log_tell() allows. Called before any watcher exists.
void sl_event_log_hold(struct sl_event_log *log, void (*news)(void *arg), void *arg);
// Lets watchers see the first n events; what they have seen before stays visible.
void sl_event_log_tell(struct sl_event_log *log, size_t n);
// Ends the hold: watchers see all events.
void sl_event_log_release(struct sl_event_log *log);
bool sl_event_log_is_held(struct sl_event_log *log);

// Marks the next events as the job's end: sl_event_log_ready() counts none of them before the log is closed.
void sl_event_log_begin_end(struct sl_event_log *log);
// Returns how many events may be written down. *end_at_out: where the end begins, once the log is closed; else SIZE_MAX.
size_t sl_event_log_ready(struct sl_event_log *log, size_t *end_at_out);
// Returns event i, packed, at an address that is valid as long as the log. i is below what sl_event_log_ready() returned.
const uint8_t *sl_event_log_packed(struct sl_event_log *log, size_t i, size_t *n_bytes_out);
// Appends an event that is already packed. SL_ERR_EXHAUSTED.
enum sl_status sl_event_log_restore(struct sl_event_log *log, enum sl_event_kind kind, const uint8_t *bytes,
                                    size_t n_bytes);

// Waits until watchers may see the first event: SL_OK or SL_ERR_DEADLINE.
enum sl_status sl_event_log_wait_told(struct sl_event_log *log, int64_t deadline_ns);
