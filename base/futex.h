// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sleeps until a word of memory changes, between threads or processes. There is no lock, so a thread that is
 *          stopped or killed while it sleeps blocks no other thread.
 *
 * Use: a thread that wants to sleep first adds itself to a count of sleepers, reads the word, and checks its condition
 *      once more. A thread that wakes others first changes the word, and then reads the count. All accesses are
 *      sequentially consistent, so that one of the two threads sees the other. If no thread sleeps, no system call is
 *      made.
 */
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

// Sleeps while *word is `seen`, for at most nap_ns; -1: without limit. May end early without a reason: check the
// condition again.
static inline void sl_futex_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t nap_ns) {
    const struct timespec nap = {.tv_sec = nap_ns / 1000000000, .tv_nsec = nap_ns % 1000000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, nap_ns < 0 ? NULL : &nap, NULL, 0);
}

// Wakes all threads that sleep on the word.
static inline void sl_futex_wake(_Atomic uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

// The same among the threads of this process, until a deadline. Returns true if that has passed.
static inline bool sl_futex_wait_private(_Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns) {
    const struct timespec until = sl_deadline_timespec(deadline_ns);
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline_ns == SL_NO_DEADLINE ? NULL : &until,
                   NULL, FUTEX_BITSET_MATCH_ANY) != 0 &&
           errno == ETIMEDOUT;
}

static inline void sl_futex_wake_private(_Atomic uint32_t *word, int n) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}
