// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the threads that poll gRPC's completion queue: as few as keep up.
 *
 * Design: of the threads in grpc_completion_queue_next(), gRPC has one wait for the sockets. When that one has an event, gRPC wakes
 *         another one to take its place, for each message. So one thread polls, and the others wait outside of gRPC. Meanwhile no thread
 *         reads sockets while the one that polls handles an event. When a connection ends, it ends all its calls, some 100 us each,
 *         and a fiber that it runs may compute. A watcher looks every LOOK_MS, as long as there are events:
 *
 *             all that poll are stuck: without a new event, they handle one or use the processor    one more polls
 *             all that poll use the processor nearly all the time, at MANY looks in a row           one more polls
 *             neither, for CALM looks, or there are no events                                       one polls less
 *
 *         A fiber that announces that it computes has another thread poll at once.
 *         Tags do little; code that must wait runs on another thread, or on a fiber: the polling thread itself runs the fibers that a
 *         tag makes ready, if most others could poll. A wake of another thread takes longer than most of what they do.
 */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "base/log.h"
#include "net/rpc/rpc_internal.h"
#include "net/rpc/rpc_tsan.h"

enum { N_POLLERS = 8, LOOK_MS = 10, MANY = 5, CALM = 100, QUIET = 2 };

struct poller {
    pthread_t thread;
    clockid_t clock; // of the processor time that it has used
    atomic_llong n_events;
    atomic_bool handles; // an event
    // As the watcher has seen it last:
    int64_t seen_events, seen_cpu_ns;
};

static struct {
    grpc_completion_queue *queue;
    struct poller pollers[N_POLLERS];
    int n; // how many there are
    atomic_int n_wanted;
    atomic_int n_carriers; // pollers that handle an event, and the fibers that it makes ready
    atomic_bool is_watched;
    pthread_t watcher;
    bool has_watcher;
    pthread_mutex_t mutex;
    struct sl_bell wanted;  // more are wanted, or it stops
    struct sl_bell watched; // is_watched has become true, or it stops
    bool stopping;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// ---- pollers ---------------------------------------------------------------------------------------------------------

// One more polls, if there is one. Lock held.
static void want_another(void) {
    if (all.n_wanted < all.n) {
        all.n_wanted++;
        sl_bell_ring_held(&all.wanted, INT_MAX);
    }
}

// A fiber computes on the caller's thread, which polls.
static void leave_sockets(void) {
    SL_LOCKED(&all.mutex);
    int n_there = 0;
    for (int i = 0; i < all.n_wanted; i++) {
        n_there += !atomic_load(&all.pollers[i].handles);
    }
    if (n_there == 0) {
        want_another();
    }
}

// Runs a tag, and those that its operations complete at once: the queue would wake another thread for them.
static void run_tags(struct sl_rpc_tag *tag, bool ok) {
    void *next = tag;
    int next_ok = ok;
    do {
        SL_RPC_TAKE_OVER(next);
        grpc_completion_queue_thread_local_cache_init(all.queue);
        ((struct sl_rpc_tag *)next)->fn(next, next_ok != 0);
    } while (grpc_completion_queue_thread_local_cache_flush(all.queue, &next, &next_ok));
}

static void handle(struct sl_rpc_tag *tag, bool ok) {
    const bool carries = atomic_fetch_add(&all.n_carriers, 1) < N_POLLERS / 2; // the others stay with the sockets
    if (carries) {
        sl_carrier_begin(leave_sockets);
    }
    run_tags(tag, ok);
    if (carries) {
        sl_carrier_end();
    }
    atomic_fetch_sub(&all.n_carriers, 1);
}

static void call_watcher(void) {
    if (!atomic_load(&all.is_watched) && !atomic_exchange(&all.is_watched, true)) {
        pthread_mutex_lock(&all.mutex);
        sl_bell_ring(&all.watched, &all.mutex, 1);
    }
}

// Waits until this poller is wanted. False: it stops.
static bool is_wanted(int64_t i) {
    if (i < atomic_load(&all.n_wanted)) {
        return true;
    }
    SL_LOCKED(&all.mutex);
    while (i >= all.n_wanted && !all.stopping) {
        sl_bell_wait(&all.wanted, &all.mutex, SL_NO_DEADLINE);
    }
    return !all.stopping;
}

static void *poll_queue(void *arg) {
    struct poller *own = arg;
    while (is_wanted(own - all.pollers)) {
        grpc_event event = grpc_completion_queue_next(all.queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            break;
        }
        atomic_store(&own->handles, true);
        atomic_fetch_add(&own->n_events, 1);
        call_watcher();
        handle(event.tag, event.success != 0);
        atomic_store(&own->handles, false);
    }
    return NULL;
}

// ---- the watcher -----------------------------------------------------------------------------------------------------

struct look {
    int64_t ns;
    int n_saturated, n_calm, n_quiet; // looks in a row
};

// Notes what those that poll have done since the last look. Lock held.
static void look(struct look *last) {
    const int64_t now_ns = sl_now_ns(), span_ns = now_ns - last->ns;
    const int n_polling = all.n_wanted;
    int n_stuck = 0, n_saturated = 0;
    bool is_quiet = true;
    for (int i = 0; i < all.n; i++) {
        struct poller *poller = &all.pollers[i];
        struct timespec used = {0};
        (void)clock_gettime(poller->clock, &used);
        const int64_t cpu_ns = used.tv_sec * SL_NS_PER_S + used.tv_nsec, n_events = atomic_load(&poller->n_events);
        const int64_t used_ns = cpu_ns - poller->seen_cpu_ns;
        const bool handles = atomic_load(&poller->handles);
        n_stuck += i < n_polling && n_events == poller->seen_events && (handles || used_ns > span_ns / 2);
        n_saturated += i < n_polling && used_ns > span_ns / 10 * 9;
        is_quiet &= n_events == poller->seen_events && !handles;
        poller->seen_events = n_events;
        poller->seen_cpu_ns = cpu_ns;
    }
    last->ns = now_ns;
    last->n_quiet = is_quiet ? last->n_quiet + 1 : 0;
    last->n_saturated = n_saturated == n_polling ? last->n_saturated + 1 : 0;
    last->n_calm = n_stuck > 0 || last->n_saturated > 0 ? 0 : last->n_calm + 1;
    if (n_stuck == n_polling || last->n_saturated == MANY) {
        want_another();
        last->n_saturated = 0;
    } else if (n_polling > 1 && (last->n_calm >= CALM || last->n_quiet >= QUIET)) {
        all.n_wanted--; // the one that polls too much notices that at its next event
        last->n_calm = 0;
    }
}

static void *watch(void *) {
    struct look last = {0};
    SL_LOCKED(&all.mutex);
    while (!all.stopping) {
        atomic_store(&all.is_watched, false);
        look(&last); // an event that came just before has not called
        while (last.n_quiet > 0 && !atomic_load(&all.is_watched) && !all.stopping) {
            sl_bell_wait(&all.watched, &all.mutex, SL_NO_DEADLINE);
        }
        atomic_store(&all.is_watched, true);
        last = (struct look){.ns = sl_now_ns()};
        while (!all.stopping && (last.n_quiet < QUIET || all.n_wanted > 1)) {
            (void)sl_bell_wait(&all.watched, &all.mutex, sl_deadline_in_ms(LOOK_MS));
            look(&last);
        }
    }
    return NULL;
}

// ---- life cycle ------------------------------------------------------------------------------------------------------

void sl_rpc_pollers_start(grpc_completion_queue *queue) {
    struct sl_error err;
    all.queue = queue;
    all.stopping = false;
    atomic_store(&all.n_wanted, 1);
    atomic_store(&all.is_watched, false);
    for (all.n = 0; all.n < N_POLLERS; all.n++) {
        struct poller *poller = &all.pollers[all.n];
        *poller = (struct poller){0};
        if (sl_thread_start("rpc-poll", poll_queue, poller, &poller->thread, &err) != SL_OK) {
            // Nothing works without pollers, and no caller could handle this error.
            sl_log_error("rpc", "cannot start a polling thread: %s", err.text);
            if (all.n == 0) {
                abort();
            }
            break;
        }
        (void)pthread_getcpuclockid(poller->thread, &poller->clock);
    }
    all.has_watcher = sl_thread_start("rpc-watch", watch, NULL, &all.watcher, &err) == SL_OK;
    if (!all.has_watcher) {
        sl_log_warn("rpc", "cannot start the thread that watches those that poll: all poll: %s", err.text);
        pthread_mutex_lock(&all.mutex);
        atomic_store(&all.n_wanted, all.n);
        sl_bell_ring(&all.wanted, &all.mutex, INT_MAX);
    }
}

void sl_rpc_pollers_join(void) {
    pthread_mutex_lock(&all.mutex);
    all.stopping = true;
    sl_bell_ring_held(&all.watched, 1);
    sl_bell_ring(&all.wanted, &all.mutex, INT_MAX);
    for (int i = 0; i < all.n; i++) {
        pthread_join(all.pollers[i].thread, NULL);
    }
    if (all.has_watcher) {
        pthread_join(all.watcher, NULL);
    }
}
