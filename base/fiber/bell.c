// SPDX-License-Identifier: Apache-2.0
#include "base/fiber/bell.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/futex.h"

struct sl_bell_waiter { // on its fiber's stack, in a ring
    struct sl_fiber *fiber;
    struct sl_bell_waiter *next, *prev;
};

static void enter(struct sl_bell *bell, struct sl_bell_waiter *waiter) {
    struct sl_bell_waiter *first = bell->waiters;
    waiter->next = first ? first : waiter;
    waiter->prev = first ? first->prev : waiter;
    waiter->next->prev = waiter->prev->next = waiter;
    bell->waiters = first ? first : waiter;
}

static void leave(struct sl_bell *bell, struct sl_bell_waiter *waiter) {
    waiter->next->prev = waiter->prev;
    waiter->prev->next = waiter->next;
    if (bell->waiters == waiter) {
        bell->waiters = waiter->next != waiter ? waiter->next : NULL;
    }
    waiter->next = NULL;
}

static enum sl_status wait_on_fiber(struct sl_fiber *fiber, struct sl_bell *bell, pthread_mutex_t *mutex,
                                    int64_t deadline_ns) {
    // A caller that only looks does not park: the thread of deadlines would wake it, by three switches of threads.
    if (deadline_ns <= sl_now_ns()) {
        return SL_ERR_DEADLINE;
    }
    struct sl_bell_waiter waiter = {.fiber = fiber};
    enter(bell, &waiter);
    sl_fiber_prepare(fiber);
    pthread_mutex_unlock(mutex);
    (void)sl_fiber_park(fiber, deadline_ns);
    pthread_mutex_lock(mutex);
    if (waiter.next == NULL) { // it was rung, though the deadline may have passed since
        return SL_OK;
    }
    leave(bell, &waiter);
    return SL_ERR_DEADLINE;
}

enum sl_status sl_bell_wait(struct sl_bell *bell, pthread_mutex_t *mutex, int64_t deadline_ns) {
    struct sl_fiber *fiber = sl_fiber_current();
    if (fiber) {
        return wait_on_fiber(fiber, bell, mutex, deadline_ns);
    }
    const uint32_t seen = atomic_load(&bell->rings);
    bell->n_waiting++;
    pthread_mutex_unlock(mutex);
    const bool is_late = sl_futex_wait_private(&bell->rings, seen, deadline_ns);
    pthread_mutex_lock(mutex);
    bell->n_waiting--;
    return is_late ? SL_ERR_DEADLINE : SL_OK;
}

// Wakes fibers. Under the mutex: a fiber that wakes takes it, so that it and its waiter are there until then. Returns how many threads may wake
// in addition; 0: none waits.
static int wake_fibers(struct sl_bell *bell, int n, struct sl_carrier **called_out) {
    *called_out = NULL;
    for (; n > 0 && bell->waiters; n--) {
        struct sl_bell_waiter *waiter = bell->waiters;
        leave(bell, waiter);
        sl_carriers_add(called_out, sl_fiber_wake(waiter->fiber));
    }
    atomic_fetch_add(&bell->rings, 1);
    return bell->n_waiting > 0 ? n : 0;
}

// Calls those that wake. If the bell is gone by now, another thread wakes without a reason, at worst.
static void call(struct sl_bell *bell, int n, struct sl_carrier *called) {
    sl_carriers_call(called);
    if (n > 0) {
        sl_futex_wake_private(&bell->rings, n);
    }
}

void sl_bell_ring(struct sl_bell *bell, pthread_mutex_t *mutex, int n) {
    struct sl_carrier *called;
    n = wake_fibers(bell, n, &called);
    pthread_mutex_unlock(mutex);
    call(bell, n, called);
}

void sl_bell_ring_held(struct sl_bell *bell, int n) {
    struct sl_carrier *called;
    n = wake_fibers(bell, n, &called);
    call(bell, n, called);
}

void sl_wait_ms(int64_t ms) {
    struct sl_fiber *fiber = sl_fiber_current();
    if (!fiber || ms <= 0) {
        sl_sleep_ms(ms);
        return;
    }
    sl_fiber_prepare(fiber);
    (void)sl_fiber_park(fiber, sl_deadline_in_ms(ms));
}
