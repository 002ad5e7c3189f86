// SPDX-License-Identifier: Apache-2.0
// Purpose: bells, for which threads and fibers wait alike.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

/*
 * A condition variable for what happens thousands of times a second: two system calls a wake of a thread, where the C library makes three,
 * often none of a fiber, and what wakes finds the mutex free. Begins as zeros, and needs no end. May be freed, with its mutex, by a thread
 * that it wakes.
 */
struct sl_bell {
    _Atomic uint32_t rings;
    uint32_t n_waiting;             // threads; guarded by the mutex, as the next one
    struct sl_bell_waiter *waiters; // fibers, the first one first
};
// Waits like sl_cond_wait_until().
enum sl_status sl_bell_wait(struct sl_bell *bell, pthread_mutex_t *mutex, int64_t deadline_ns);
// Unlocks the mutex and wakes at most n of those that wait.
void sl_bell_ring(struct sl_bell *bell, pthread_mutex_t *mutex, int n);
// Wakes them under the mutex, which the caller still needs.
void sl_bell_ring_held(struct sl_bell *bell, int n);

// Waits as sl_sleep_ms() does, also on a fiber.
void sl_wait_ms(int64_t ms);
