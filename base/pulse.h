// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the pulse of a thread that others wait for: has it work, and does anything of it get done? net/node/watch.h looks at it.
 *
 * Design: two counters. Whoever hands work to the thread, and takes it back, counts what waits; the thread counts what it gets
 *         done. A thread that comes by at regular times whatever there is to do always has work, and counts its turns. The tasks of
 *         a team's loops count as well: one step over a large chunk takes minutes on few processors, one task of it never does.
 * Threads: any.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/team.h"

struct sl_pulse {
    const char *name; // for people: "engine"
    _Atomic int64_t n_waiting;
    _Atomic uint64_t n_done;
    const struct sl_team *team; // that the thread runs its loops in; may be NULL
    bool is_spared; // the others do without the thread: that it stands still is told, and nothing ends for it
    // The watch's:
    struct sl_pulse *next;
    uint64_t seen;
    int64_t still_ns;
    atomic_bool is_still; // for so long that it is said
};

static inline void sl_pulse_tick(struct sl_pulse *pulse) {
    atomic_fetch_add_explicit(&pulse->n_done, 1, memory_order_relaxed);
}

// Another number than before when anything has got done in between.
static inline uint64_t sl_pulse_count(const struct sl_pulse *pulse) {
    return atomic_load_explicit(&pulse->n_done, memory_order_relaxed) + sl_team_tasks_done(pulse->team);
}
