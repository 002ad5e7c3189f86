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

// A thread that works until its owner ends it, with the mutex and the condition variable that both use.
struct sl_loop {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopping; // under the mutex; the thread returns once it sees it
    bool runs;     // the owner's
};
void sl_loop_init(struct sl_loop *loop);
// Starts the thread as sl_thread_start() does.
enum sl_status sl_loop_start(struct sl_loop *loop, const char *name, void *(*fn)(void *), void *arg,
                             struct sl_error *err);
// Waits for `changed` with the mutex held, as sl_cond_wait_until() does.
enum sl_status sl_loop_wait(struct sl_loop *loop, int64_t deadline_ns);
// Waits with the mutex held until the deadline, or until the loop is stopping.
void sl_loop_sleep(struct sl_loop *loop, int64_t deadline_ns);
// Tells the thread to stop, if it runs, and waits until it has. Idempotent.
void sl_loop_stop(struct sl_loop *loop);
// Stops the loop and releases it.
void sl_loop_cleanup(struct sl_loop *loop);
