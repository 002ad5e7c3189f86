// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: threads with names, condition variables on the monotonic clock, and the team that runs parallel loops.
 *
 * Design: a team is a fixed set of threads, the caller among them, that executes index ranges of one loop at a time.
 *         Members spin briefly for the next loop and then sleep; a team of one runs in the caller without any lock.
 * Threads: one sl_team_run() at a time per team (callers are serialised by the team's lock).
 */
#ifndef SL_BASE_THREAD_H
#define SL_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

#include "base/status.h"

// Start a joinable thread with a name of at most 15 characters and all signals blocked.
enum sl_status sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                               struct sl_error *err);

// A condition variable whose timed waits take monotonic deadlines (base/clock.h).
void sl_cond_init(pthread_cond_t *cond);

// Wait until signalled or the deadline passes: SL_OK or SL_ERR_DEADLINE. As ever, test the predicate in a loop.
enum sl_status sl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);

struct sl_team;

// One call executes tasks [begin, end) on behalf of member `member` (0 <= member < sl_team_size()).
typedef void (*sl_team_fn)(void *arg, int64_t begin, int64_t end, int member);

// n_threads <= 0 means one per online processor.
enum sl_status sl_team_create(int n_threads, struct sl_team **team_out, struct sl_error *err);
void sl_team_destroy(struct sl_team **team);
int sl_team_size(const struct sl_team *team);

/*
 * Execute tasks [0, n_tasks), handed out in ranges of `grain` tasks (at least 1) to whichever member is free.
 * Returns when all are done. `team` NULL runs them in the caller. Must not be called from inside a task.
 */
void sl_team_run(struct sl_team *team, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg);

#endif
