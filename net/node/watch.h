// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: checks liveness by progress: notices that a thread of this worker has work but makes no progress.
 *
 * Design: one thread polls every progress counter (base/progress_counter.h) several times within stall_ms. Time counts
 *         from poll to poll, and a long gap between two polls counts as a short one. So after the whole process or
 *         machine was suspended, no thread is reported as stalled.
 *
 *             moving --- has work, and nothing done for stall_ms ---> still      still_fn
 *             still ---- something done, or no work any more -------> moving     moving_fn
 *             still ---- for twice stall_ms ------------------------> over_fn, which may end the process
 *
 * Threads: the functions are called on the watch's thread.
 */
#pragma once

#include "base/progress_counter.h"
#include "base/status.h"

struct sl_thread_watch;

struct sl_thread_watch_config {
    int64_t stall_ms;
    struct sl_progress_counter *progress_counters; // a list; must outlive the watch
    void (*still_fn)(void *arg, const struct sl_progress_counter *progress_counter);
    void (*moving_fn)(void *arg, const struct sl_progress_counter *progress_counter);
    void (*over_fn)(void *arg, const struct sl_progress_counter *progress_counter);
    void *arg;
};

enum sl_status sl_thread_watch_create(const struct sl_thread_watch_config *config, struct sl_thread_watch **watch_out,
                                      struct sl_error *err);
void sl_thread_watch_destroy(struct sl_thread_watch **watch); // accepts NULL, nulls

enum sl_progress_change { SL_PROGRESS_AS_BEFORE, SL_PROGRESS_STILL, SL_PROGRESS_MOVING, SL_PROGRESS_OVER };
// Polls one counter, elapsed_ns after the previous poll; returns how its state changed. The watch's thread calls it.
enum sl_progress_change sl_progress_counter_poll(struct sl_progress_counter *progress_counter, int64_t elapsed_ns,
                                                 int64_t stall_ns);
