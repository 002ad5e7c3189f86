// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the progress counters of a thread that others wait for: has it work, and does it make progress?
 *          net/node/watch.h reads them.
 *
 * Design: two counters. The caller that gives work to the thread counts the waiting work, up and down; the thread
 *         counts the work that it finishes. A thread with a periodic loop always has work, and counts its rounds. The
 *         tasks of a team's loops count as well: one step over a large chunk takes minutes on few processors, but one
 *         task never does.
 * Threads: any.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/team.h"

struct sl_progress_counter {
    const char *name; // for people: "engine"
    _Atomic int64_t n_waiting;
    _Atomic uint64_t n_done;
    const struct sl_team *team; // the team that runs the thread's loops; may be NULL
    bool is_spared; // the process can do without the thread: a stall is logged, and nothing ends because of it
    // Owned by the watch:
    struct sl_progress_counter *next;
    uint64_t seen;
    int64_t still_ns;
    atomic_bool is_still; // it has been still for long enough to be reported
};

static inline void sl_progress_counter_tick(struct sl_progress_counter *progress_counter) {
    atomic_fetch_add_explicit(&progress_counter->n_done, 1, memory_order_relaxed);
}

// Returns another number than before if the thread has made progress in between.
static inline uint64_t sl_progress_counter_count(const struct sl_progress_counter *progress_counter) {
    return atomic_load_explicit(&progress_counter->n_done, memory_order_relaxed) +
           sl_team_tasks_done(progress_counter->team);
}
