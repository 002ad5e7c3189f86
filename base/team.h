// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the team of threads that runs parallel loops.
 *
 * Design: a team is a fixed set of threads, including the caller, that executes the tasks of one loop at a time. Every
 *         member begins with a share of its own, share i of n in order, and takes ranges from the others' shares when
 *         its own is done. So the same loop over the same data touches the same memory from the same member every time,
 *         and finds it again in that member's caches. It is also on the member's NUMA node if that member touched it
 *         first, as when a loop over the same tasks packed the weights. No member waits for a slow one. Between loops
 *         members spin for a moment, less if spinning has not paid off, and then sleep. A team of one runs in the
 *         caller without any lock.
 *
 *         A worker has one team, and nothing else in it computes in threads of its own: no BLAS, no OpenMP. A team with
 *         one member per processor is all the threads that it keeps busy.
 *
 * Pinning: off by default. Two workers of one machine would be pinned onto the same processors, each waiting for the
 *          other while other processors are idle. So pin only a worker that does not share its processors: those of the
 *          whole machine, or those that `taskset` or a control group gave it.
 *
 * Threads: one sl_team_run() at a time per team (the team's lock serializes callers).
 */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct sl_team;

// Executes tasks [begin, end) on behalf of member `member` (0 <= member < sl_team_size()).
typedef void (*sl_team_fn)(void *arg, int64_t begin, int64_t end, int member);

// Creates a team. n_threads <= 0 means one per processor that this process may use (sl_processors_count()).
enum sl_status sl_team_create(int n_threads, struct sl_team **team_out, struct sl_error *err);
void sl_team_destroy(struct sl_team **team);
int sl_team_size(const struct sl_team *team);

// Returns how many ranges of tasks have been executed so far, including those of the current loop; 0 if `team` is NULL.
// Any thread.
uint64_t sl_team_tasks_done(const struct sl_team *team);

/*
 * Executes tasks [0, n_tasks) in ranges of `grain` tasks (at least 1): range r begins at task r * grain. Member i of n
 * starts with the ranges from n_ranges * i / n on. Returns when all are done. `team` NULL runs them in the caller, in
 * order. Must not be called from inside a task.
 */
void sl_team_run(struct sl_team *team, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg);

// Sets how long the caller waits for members, and how it measures their progress.
struct sl_team_vigil {
    int64_t still_ms;
    uint64_t (*progress)(
        // Returns another number than before when the member has made progress; NULL: progress is not visible
        void *arg, int member);
    void *arg;
};

/*
 * Member i executes task i of [0, sl_team_size()) and no other, for tasks that belong to their threads. `team` is not
 * NULL.
 * SL_ERR_PEER_LOST: member *lost_out has made no progress for still_ms. It may still run its task, or resume it later:
 * memory that `arg` leads to must stay valid as long as the process. At most 64 members. From then on every call
 * returns this at once. Polls are counted, not the clock, so a process that was suspended as a whole reports no member
 * as lost.
 */
enum sl_status sl_team_run_each(struct sl_team *team, sl_team_fn fn, void *arg, const struct sl_team_vigil *vigil,
                                int *lost_out);

/*
 * Gives every member a processor of its own among those that this process may use (sl_processors_place()). Members with
 * neighboring shares get neighboring processors. Call before the team's first loop. Member 0 is the thread that calls
 * sl_team_run(), so it pins itself, by sl_team_pin_caller().
 * SL_ERR_RANGE: more members than processors. SL_ERR_IO: the kernel refuses.
 */
enum sl_status sl_team_pin(struct sl_team *team, struct sl_error *err);
// Pins a team that is part of a larger one: its members get the processors of members `first`, `first` + 1, ... of
// n_all members.
enum sl_status sl_team_pin_part(struct sl_team *team, int first, int n_all, struct sl_error *err);

// Pins the calling thread as member 0, because it will run loops from now on. Threads that it starts inherit the pin,
// so release it before you start any. Both functions do nothing if `team` is NULL or not pinned.
void sl_team_pin_caller(struct sl_team *team);

// Gives the calling thread the processors back that it had before the team was pinned.
void sl_team_release_caller(struct sl_team *team);
