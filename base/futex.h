// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sleep until a word of memory changes, between threads or processes. Without a lock, so whoever is stopped or killed while
 *          it sleeps holds nobody up.
 *
 * Use: whoever sleeps first says so in a count of sleepers, reads the word, and looks once more for what it waits for; whoever wakes first
 *      changes the word, and then looks at the count. All of it sequentially consistent, so that one of the two sees the other; and
 *      where nobody sleeps no system call is made.
 */
#pragma once

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// While *word is `seen`, for at most nap_ns; -1: however long. Ends early for no reason, too: look again.
static inline void sl_futex_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t nap_ns) {
    const struct timespec nap = {.tv_sec = nap_ns / 1000000000, .tv_nsec = nap_ns % 1000000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, nap_ns < 0 ? NULL : &nap, NULL, 0);
}

// All who sleep on it.
static inline void sl_futex_wake(_Atomic uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
