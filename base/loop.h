// SPDX-License-Identifier: Apache-2.0
// Purpose: a background thread with the mutex and the condition variable that it shares with its owner. All in a header, so that
// fuzzers compile it with their own clock and threads.
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

static inline void sl_loop_init(struct sl_loop *loop) {
    *loop = (struct sl_loop){.stopping = false};
    pthread_mutex_init(&loop->mutex, NULL);
    sl_cond_init(&loop->changed);
}

// Starts the thread as sl_thread_start() does.
static inline enum sl_status sl_loop_start(struct sl_loop *loop, const char *name, void *(*fn)(void *), void *arg,
                                           struct sl_error *err) {
    enum sl_status status = sl_thread_start(name, fn, arg, &loop->thread, err);
    loop->runs = status == SL_OK;
    return status;
}

// Waits for `changed` with the mutex held, as sl_cond_wait_until() does.
static inline enum sl_status sl_loop_wait(struct sl_loop *loop, int64_t deadline_ns) {
    return sl_cond_wait_until(&loop->changed, &loop->mutex, deadline_ns);
}

// Waits with the mutex held until the deadline, or until the loop is stopping.
static inline void sl_loop_sleep(struct sl_loop *loop, int64_t deadline_ns) {
    while (!loop->stopping && sl_loop_wait(loop, deadline_ns) == SL_OK) {
    }
}

// Tells the thread to stop, if it runs, and waits until it has. Idempotent.
static inline void sl_loop_stop(struct sl_loop *loop) {
    pthread_mutex_lock(&loop->mutex);
    loop->stopping = true;
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->mutex);
    if (loop->runs) {
        pthread_join(loop->thread, NULL);
    }
    loop->runs = false;
}

// Stops the loop and releases it.
static inline void sl_loop_cleanup(struct sl_loop *loop) {
    sl_loop_stop(loop);
    pthread_cond_destroy(&loop->changed);
    pthread_mutex_destroy(&loop->mutex);
}
