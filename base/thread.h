// SPDX-License-Identifier: Apache-2.0
// Purpose: threads with names, loops that their owner ends, and condition variables on the monotonic clock. The team of threads: base/team.h; bells and fibers: base/fiber/.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/*
 * Stack size of every thread that is started here, whatever `ulimit -s` says: kernels keep scratch of up to 4 MiB on
 * it. If the limit is "unlimited", as on many clusters, a thread would get only 2 MiB.
 */
#define SL_THREAD_STACK_BYTES ((size_t)8 << 20)

// Starts a joinable thread with a name of at most 15 characters and all signals blocked.
enum sl_status sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                               struct sl_error *err);

// Initializes a condition variable whose timed waits take monotonic deadlines (base/clock.h).
void sl_cond_init(pthread_cond_t *cond);

// Waits until signaled or the deadline passes: SL_OK or SL_ERR_DEADLINE. Wakeups may be spurious: test the predicate in
// a loop.
enum sl_status sl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);
