// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define MAX_NAME_BYTES 16

struct start {
    void *(*fn)(void *);
    void *arg;
    char name[MAX_NAME_BYTES];
};

static void *run_start(void *arg) {
    struct start start = *(struct start *)arg;
    free(arg);
    pthread_setname_np(pthread_self(), start.name);
    return start.fn(start.arg);
}

enum sl_status sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                               struct sl_error *err) {
    struct start *start = malloc(sizeof *start);
    SL_FAIL_IF(!start, err, SL_ERR_EXHAUSTED, "thread %s: out of memory", name);
    start->fn = fn;
    start->arg = arg;
    snprintf(start->name, sizeof start->name, "%s", name);

    pthread_attr_t attr;
    pthread_attr_init(&attr);
    int rc = pthread_attr_setstacksize(&attr, SL_THREAD_STACK_BYTES);
    // A thread inherits the signal mask of its creator: block all signals during the creation, so that only the main
    // thread receives them.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = rc == 0 ? pthread_create(thread_out, &attr, run_start, start) : rc;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    SL_FAIL_OR(rc != 0, free(start), err, SL_ERR_EXHAUSTED, "thread %s: %s", name, strerror(rc));
    return SL_OK;
}

void sl_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

enum sl_status sl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns) {
    if (deadline_ns == SL_NO_DEADLINE) {
        pthread_cond_wait(cond, mutex);
        return SL_OK;
    }
    struct timespec until = sl_deadline_timespec(deadline_ns);
    return pthread_cond_timedwait(cond, mutex, &until) == ETIMEDOUT ? SL_ERR_DEADLINE : SL_OK;
}
