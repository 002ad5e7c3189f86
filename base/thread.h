// SPDX-License-Identifier: Apache-2.0
// Purpose: threads with names, condition variables on the monotonic clock, and bells. The team of threads is base/team.h.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
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

/*
 * A condition variable for what happens thousands of times a second: two system calls a wake, where the C library makes three, and a
 * thread that wakes finds the mutex free. Begins as zeros, and needs no end. May be freed, with its mutex, by a thread that it wakes.
 */
struct sl_bell {
    _Atomic uint32_t rings;
    uint32_t n_waiting; // guarded by the mutex
};
// Waits like sl_cond_wait_until().
enum sl_status sl_bell_wait(struct sl_bell *bell, pthread_mutex_t *mutex, int64_t deadline_ns);
// Unlocks the mutex and wakes at most n of the threads that wait.
void sl_bell_ring(struct sl_bell *bell, pthread_mutex_t *mutex, int n);
