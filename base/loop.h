// SPDX-License-Identifier: Apache-2.0
// Purpose: a background thread with the mutex and the condition variable that it shares with its owner.
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/thread.h"

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
