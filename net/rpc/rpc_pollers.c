// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the threads that poll gRPC's completion queue: as few as keep up.
 *
 * Design: gRPC lets one of the threads in grpc_completion_queue_next() wait for the sockets. When that thread has an event, gRPC wakes
 *         another one to take its place, for each message. So one thread polls, and the others wait here. While that thread handles an
 *         event, no thread reads sockets. A watcher, which looks every LOOK_MS as long as there are events, and these rules bound that:
 *
 *             a fiber announces that it computes                                           another thread polls at once
 *             those that are wanted are all stuck: they work without a new event since     another thread polls
 *               the last look, on an event, or inside of gRPC (when a connection ends,
 *               its calls take some 100 us each)
 *             at MANY looks in a row, each is stuck, or waits for less than a tenth        another thread polls
 *               of the time, or uses a whole processor
 *             neither, for CALM looks, or there are no events                              one thread less polls
 *             for VISIT_NS, gRPC had an event ready whenever it was asked: it does not     the thread visits the sockets: gRPC
 *               look at sockets then, also if its thread gets little of a processor          reads one of those that are ready
 *
 *         Tags do little; code that must wait runs on another thread, or on a fiber: the polling thread itself runs the fibers that a
 *         tag makes ready, if most others could poll. A wake of another thread takes longer than most of what they do.
 *
 *      A poller     waits --wanted--> polls --event--> handles --> polls; or, if more poll than are wanted, and one of those that
 *                     ^                 |                 |          stay is at the sockets, waits
 *                     \-----------------|-----------------/
 *                                       \--the queue is shut down, and empty--> ends
 *      The watcher  rests --an event, or REST_MS--> looks every LOOK_MS --QUIET looks without events--> rests
 *
 * Invariants: one thread or more is wanted. A thread leaves between two calls of gRPC, and takes no event along. When the queue is shut down,
 *         all poll, so that what is left needs no watcher. A poller counts its event before it reads is_watched, and the watcher looks
 *         once more after it has cleared that: one of the two sees the other.
 */
#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "base/log.h"
#include "net/rpc/rpc_internal.h"
#include "net/rpc/rpc_tsan.h"

enum { N_POLLERS = 8, LOOK_MS = 5, REST_MS = 100, MANY = 10, CALM = 200, QUIET = 2 };

#define MOST_AT_ONCE 16 // tags, after which sockets, or a fiber, have their turn

#define VISIT_NS SL_NS_PER_MS
#define WAIT_NS  (SL_NS_PER_MS / 50) // a call of gRPC that takes longer has been at the sockets

struct poller {
    pthread_t thread;
    clockid_t clock; // of the processor time that it has used
    bool polls;      // or handles an event; under the mutex
    atomic_bool handles;
    atomic_llong n_events, waited_ns; // waited_ns: for those that were not ready, at the sockets
    // As the watcher has seen it last:
    int64_t seen_events, seen_waited_ns, seen_cpu_ns;
};

static struct {
    grpc_completion_queue *queue;
    grpc_completion_queue *visits; // without events: a thread that asks it is at the sockets of all queues
    struct poller pollers[N_POLLERS];
    atomic_int n;         // how many there are
    atomic_int n_wanted;  // changed under the mutex, as the next one
    atomic_int n_polling; // more than are wanted: one leaves soon; fewer: one comes
    atomic_int n_handling;
    atomic_bool is_watched;
    pthread_t watcher;
    bool has_watcher;
    pthread_mutex_t mutex;
    struct sl_bell wanted;  // another one is wanted, or all end
    struct sl_bell watched; // is_watched has become true, or it ends
    bool ends;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// ---- pollers ---------------------------------------------------------------------------------------------------------

// Has another thread poll, if there is one. Lock held.
static void want_another(void) {
    if (all.n_wanted < all.n) {
        all.n_wanted++;
        sl_bell_ring_held(&all.wanted, 1);
    }
}

// A fiber computes on the caller's thread, which polls.
static void leave_sockets(void) {
    SL_LOCKED(&all.mutex);
    if (atomic_load(&all.n_handling) >= all.n_wanted) {
        want_another();
    }
}

// Waits until this thread is wanted, or all end. Lock held.
static void join(struct poller *own) {
    while (all.n_polling >= all.n_wanted && !all.ends) {
        sl_bell_wait(&all.wanted, &all.mutex, SL_NO_DEADLINE);
    }
    all.n_polling++;
    own->polls = true;
}

// Waits until it is wanted again if more threads poll than are wanted. It stays while those that would stay are not at the sockets.
static void leave_or_stay(struct poller *own) {
    if (atomic_load(&all.n_polling) <= atomic_load(&all.n_wanted)) {
        return;
    }
    SL_LOCKED(&all.mutex);
    if (all.n_polling > all.n_wanted && atomic_load(&all.n_handling) < all.n_wanted) {
        all.n_polling--;
        own->polls = false;
        join(own);
    }
}

// Does sl_rpc_tags_run(). carries: this thread runs fibers that they make ready, soon after each.
static void run_tags(void *tag, int ok, bool carries) {
    for (int n = 1;; n++) {
        const bool takes = n < MOST_AT_ONCE;
        if (carries) {
            sl_carrier_begin(leave_sockets);
        }
        SL_RPC_TAKE_OVER(tag);
        if (takes) {
            grpc_completion_queue_thread_local_cache_init(all.queue);
        }
        ((struct sl_rpc_tag *)tag)->fn(tag, ok != 0);
        if (!takes || !grpc_completion_queue_thread_local_cache_flush(all.queue, &tag, &ok)) {
            return;
        }
    }
}

void sl_rpc_tags_run(void *tag, int ok) {
    run_tags(tag, ok, false);
}

static void handle(void *tag, int ok) {
    const bool carries =
        atomic_fetch_add(&all.n_handling, 1) < atomic_load(&all.n) / 2; // the others stay with the sockets
    run_tags(tag, ok, carries);
    if (carries) {
        sl_carrier_end();
    }
    atomic_fetch_sub(&all.n_handling, 1);
}

static void call_watcher(void) {
    if (!atomic_load(&all.is_watched) && !atomic_exchange(&all.is_watched, true)) {
        pthread_mutex_lock(&all.mutex);
        sl_bell_ring(&all.watched, &all.mutex, 1);
    }
}

static void *poll_queue(void *arg) {
    struct poller *own = arg;
    SL_WITH_LOCK(&all.mutex, join(own));
    for (int64_t visited_ns = sl_now_ns();;) {
        int64_t begin_ns = sl_now_ns();
        if (begin_ns - visited_ns > VISIT_NS) {
            (void)grpc_completion_queue_next(all.visits, gpr_time_0(GPR_CLOCK_MONOTONIC), NULL);
            visited_ns = begin_ns = sl_now_ns(); // a visit is not a wait
        }
        grpc_event event = grpc_completion_queue_next(all.queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        atomic_store(&own->handles, true);
        const int64_t now_ns = sl_now_ns();
        if (now_ns - begin_ns > WAIT_NS) {
            visited_ns = now_ns;
            atomic_fetch_add(&own->waited_ns, now_ns - begin_ns);
        }
        atomic_fetch_add(&own->n_events, 1);
        call_watcher();
        handle(event.tag, event.success);
        atomic_store(&own->handles, false);
        leave_or_stay(own);
    }
}

// ---- the watcher -----------------------------------------------------------------------------------------------------

struct look {
    int64_t ns;
    int n_saturated, n_calm, n_quiet; // looks in a row
};

// Notes what a poller has done since the last look.
static void look_at(struct poller *poller, int64_t span_ns, int *n_stuck, int *n_saturated, bool *is_quiet) {
    struct timespec used = {0};
    (void)clock_gettime(poller->clock, &used);
    const int64_t cpu_ns = used.tv_sec * SL_NS_PER_S + used.tv_nsec, used_ns = cpu_ns - poller->seen_cpu_ns;
    const int64_t n_events = atomic_load(&poller->n_events), waited_ns = atomic_load(&poller->waited_ns);
    // One that waits uses nearly nothing. One that works may get little of a processor that others use, too.
    const bool works = atomic_load(&poller->handles) || used_ns > span_ns / 10;
    const bool has_events = n_events != poller->seen_events, is_stuck = works && !has_events;
    // One that hardly waits is behind, also if others use its processor, or if what it runs blocks for a moment.
    const bool hardly_waits = has_events && waited_ns - poller->seen_waited_ns < span_ns / 10;
    *n_stuck += is_stuck;
    *n_saturated += is_stuck || hardly_waits || used_ns > span_ns / 10 * 9;
    *is_quiet &= !works && !has_events;
    poller->seen_events = n_events;
    poller->seen_waited_ns = waited_ns;
    poller->seen_cpu_ns = cpu_ns;
}

// Lock held.
static void look(struct look *last) {
    const int64_t now_ns = sl_now_ns();
    int n_stuck = 0, n_saturated = 0;
    bool is_quiet = true;
    for (int i = 0; i < all.n; i++) {
        if (all.pollers[i].polls) {
            look_at(&all.pollers[i], now_ns - last->ns, &n_stuck, &n_saturated, &is_quiet);
        }
    }
    last->ns = now_ns;
    last->n_quiet = is_quiet ? last->n_quiet + 1 : 0;
    last->n_saturated = n_saturated >= all.n_wanted ? last->n_saturated + 1 : 0;
    last->n_calm = n_stuck > 0 || last->n_saturated > 0 ? 0 : last->n_calm + 1;
    if (n_stuck >= all.n_wanted || last->n_saturated == MANY) {
        want_another();
        last->n_saturated = 0;
    } else if (all.n_wanted > 1 && (last->n_calm >= CALM || last->n_quiet >= QUIET)) {
        all.n_wanted--; // one of those that poll notices that after its next event
        last->n_calm = 0;
    }
}

static void *watch(void *) {
    struct look last = {.ns = sl_now_ns()};
    SL_LOCKED(&all.mutex);
    while (!all.ends) {
        if (last.n_quiet >= QUIET && all.n_wanted == 1) {
            atomic_store(&all.is_watched, false);
            look(&last); // an event that came just before has not called
        }
        const bool rests = last.n_quiet >= QUIET && all.n_wanted == 1;
        (void)sl_bell_wait(&all.watched, &all.mutex, sl_deadline_in_ms(rests ? REST_MS : LOOK_MS));
        atomic_store(&all.is_watched, true);
        look(&last);
    }
    return NULL;
}

// ---- life cycle ------------------------------------------------------------------------------------------------------

void sl_rpc_pollers_start(grpc_completion_queue *queue) {
    struct sl_error err;
    all.queue = queue;
    all.visits = grpc_completion_queue_create_for_next(NULL);
    all.ends = false;
    all.n_wanted = 1;
    all.n_polling = 0;
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
        all.n_wanted = all.n;
        sl_bell_ring(&all.wanted, &all.mutex, INT_MAX);
    }
}

void sl_rpc_pollers_join(void) {
    pthread_mutex_lock(&all.mutex);
    all.ends = true;
    sl_bell_ring_held(&all.watched, 1);
    sl_bell_ring(&all.wanted, &all.mutex, INT_MAX);
    for (int i = 0; i < all.n; i++) {
        pthread_join(all.pollers[i].thread, NULL);
    }
    if (all.has_watcher) {
        pthread_join(all.watcher, NULL);
    }
    grpc_completion_queue_shutdown(all.visits);
    grpc_completion_queue_destroy(all.visits);
}
