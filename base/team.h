// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the team of threads that runs parallel loops.
 *
 * Design: a team is a fixed set of threads, the caller among them, that executes the tasks of one loop at a time.
 *         Every member begins with a share of its own, share i of n in order, and takes ranges from the others' shares
 *         when its own is done. So the same loop over the same data touches the same memory from the same member every
 *         time: what lies in that member's caches, and on its NUMA node if it touched the memory first (as it does
 *         where weights are packed by a loop over the same tasks), is found there again; and nobody waits for a slow
 *         member. Between loops members spin for a moment, less where that has not paid, and then sleep; a team of one
 *         runs in the caller without any lock.
 *
 *         A worker has one team, and nothing else in it computes in threads of its own: no BLAS, no OpenMP. A team of
 *         one member a processor is all that it keeps busy.
 *
 * Pinning: off unless asked for. Two workers of one machine would be pinned onto the same processors, each waiting for
 *          the other while others idle, so it is for a worker that has its processors to itself, be it the whole
 *          machine or what `taskset` or a control group gave it.
 *
 * Threads: one sl_team_run() at a time per team (callers are serialised by the team's lock).
 */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct sl_team;

// One call executes tasks [begin, end) on behalf of member `member` (0 <= member < sl_team_size()).
typedef void (*sl_team_fn)(void *arg, int64_t begin, int64_t end, int member);

// n_threads <= 0 means one per processor that this process may use (sl_processors_count()).
enum sl_status sl_team_create(int n_threads, struct sl_team **team_out, struct sl_error *err);
void sl_team_destroy(struct sl_team **team);
int sl_team_size(const struct sl_team *team);

// Ranges of tasks that have been executed so far, of the loop that is running too; 0 where `team` is NULL. Any thread.
uint64_t sl_team_tasks_done(const struct sl_team *team);

/*
 * Execute tasks [0, n_tasks) in ranges of `grain` tasks (at least 1): range r begins at task r * grain. Member i of n
 * starts with the ranges from n_ranges * i / n on. Returns when all are done. `team` NULL runs them in the caller, in
 * order. Must not be called from inside a task.
 */
void sl_team_run(struct sl_team *team, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg);

// How long members are waited for, and by what it is seen that they get on.
struct sl_team_vigil {
    int64_t still_ms;
    uint64_t (*progress)(
        void *arg, int member); // another number than before when the member has got something done; NULL: none shows
    void *arg;
};

/*
 * Member i executes task i of [0, sl_team_size()) and no other, for tasks that belong to their threads. `team` is not NULL.
 * SL_ERR_PEER_LOST: *lost_out has got nothing done for still_ms, and may still be at its task, or come back to it: what `arg` leads to
 * must stay as long as the process. At most 64 members. From then on every call returns this at once. A process that was stopped as a whole accuses
 * nobody: looks are counted, not the clock.
 */
enum sl_status sl_team_run_each(struct sl_team *team, sl_team_fn fn, void *arg, const struct sl_team_vigil *vigil,
                                int *lost_out);

/*
 * Give every member a processor of its own among those that this process may use (sl_processors_place()). Members whose
 * shares are neighbours are neighbours in the machine. Before the team's first loop. Member 0 is whoever calls
 * sl_team_run(), so it takes its place itself, by sl_team_pin_caller().
 * SL_ERR_RANGE: more members than processors. SL_ERR_IO: the kernel refuses.
 */
enum sl_status sl_team_pin(struct sl_team *team, struct sl_error *err);
// The same of a team that is part of a larger one: of the processors of n_all members, those of its own from `first` on.
enum sl_status sl_team_pin_part(struct sl_team *team, int first, int n_all, struct sl_error *err);

// The calling thread will run loops from now on: pin it as member 0. Threads that it starts inherit the pin, so release
// it before starting any. Both do nothing where `team` is NULL or not pinned.
void sl_team_pin_caller(struct sl_team *team);

// Give the calling thread back the processors that it had when the team was pinned.
void sl_team_release_caller(struct sl_team *team);
