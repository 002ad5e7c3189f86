// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a clock that stands still while this process does, for what may take so long and not longer: a test must not fail because
 *          its machine stood still, or had much else to do, while it looked at the clock.
 *
 * Design: a thread sleeps for TICK_MS again and again, and whatever that took counts for at most two ticks. Where nothing stands still
 *         it is as right as that. At-least is asked of sl_now_ns().
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/clock.h"

#define RUNNING_TICK_MS 5

static _Atomic int64_t running_clock_ns;

static void *running_clock_run(void *arg) {
    for (int64_t before_ns = sl_now_ns();;) {
        sl_sleep_ms(RUNNING_TICK_MS);
        int64_t now_ns = sl_now_ns(), took_ns = now_ns - before_ns, most_ns = 2 * RUNNING_TICK_MS * SL_NS_PER_MS;
        atomic_fetch_add(&running_clock_ns, took_ns < most_ns ? took_ns : most_ns);
        before_ns = now_ns;
    }
    return arg;
}

static void running_clock_start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, running_clock_run, NULL) != 0) {
        abort();
    }
    pthread_detach(thread); // for as long as the test
}

// Its start is the first call.
static inline int64_t running_ns(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, running_clock_start);
    return atomic_load(&running_clock_ns);
}
