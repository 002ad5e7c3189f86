// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: named threads, monotonic condition variables, and the team of threads that runs parallel loops.
 *
 * Design of the team: a loop is published by raising `round`; every member takes ranges of `grain` tasks with one
 *         atomic addition until none is left, then counts itself out. The caller is member 0 and returns when all
 *         other members have counted out, so that the loop's description may live in the team and be reused.
 *         Waiting, on either side, is a bounded spin (loops follow each other within microseconds inside a forward
 *         pass) and then a sleep on a condition variable. On a busy machine the spin is what must be short: it takes
 *         time from the very thread that is waited for.
 *
 * Invariants: fn, arg, n_tasks and grain are written only while no member is inside a round (n_inside == 0).
 *         A member that saw round r has finished round r - 1.
 */
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define MAX_NAME_BYTES   16
#define MAX_TEAM_THREADS 1024
#define SPIN_NS          5000

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
    if (!start) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "thread %s: out of memory", name);
    }
    start->fn = fn;
    start->arg = arg;
    snprintf(start->name, sizeof start->name, "%s", name);

    // A thread inherits the mask of its creator: block all around the creation, so that signals go to main alone.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread_out, NULL, run_start, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        free(start);
        return sl_fail(err, SL_ERR_EXHAUSTED, "thread %s: %s", name, strerror(rc));
    }
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

struct member {
    struct sl_team *team;
    pthread_t thread;
    int index;
};

struct sl_team {
    int n_members;        // the caller among them
    pthread_mutex_t busy; // serialises callers of sl_team_run()

    // The loop of this round.
    sl_team_fn fn;
    void *arg;
    int64_t n_tasks;
    int64_t grain;
    _Atomic int64_t next_task;

    // The protocol of rounds. The lock guards only the sleeping; the values are atomic for those who spin.
    pthread_mutex_t lock;
    pthread_cond_t round_began;
    pthread_cond_t round_ended;
    _Atomic uint64_t round;
    _Atomic int n_inside; // members other than the caller that have not finished the round
    _Atomic bool stopping;

    struct member members[];
};

static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_ranges(struct sl_team *team, int member) {
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&team->next_task, team->grain, memory_order_relaxed);
        if (begin >= team->n_tasks) {
            return;
        }
        int64_t left = team->n_tasks - begin;
        team->fn(team->arg, begin, begin + (left < team->grain ? left : team->grain), member);
    }
}

// The same ranges as in a team, so that a task may size its scratch by `grain`.
static void run_in_caller(int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg) {
    for (int64_t begin = 0; begin < n_tasks;) {
        int64_t end = n_tasks - begin < grain ? n_tasks : begin + grain;
        fn(arg, begin, end, 0);
        begin = end;
    }
}

// True once the round is no longer `seen` (or the team stops).
static bool round_changed(struct sl_team *team, uint64_t seen) {
    return atomic_load_explicit(&team->round, memory_order_acquire) != seen;
}

static void wait_for_round(struct sl_team *team, uint64_t seen) {
    int64_t give_up_ns = sl_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (round_changed(team, seen)) {
                return;
            }
            cpu_relax();
        }
    } while (sl_now_ns() < give_up_ns);
    pthread_mutex_lock(&team->lock);
    while (!round_changed(team, seen)) {
        pthread_cond_wait(&team->round_began, &team->lock);
    }
    pthread_mutex_unlock(&team->lock);
}

static void wait_for_members(struct sl_team *team) {
    int64_t give_up_ns = sl_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&team->n_inside, memory_order_acquire) == 0) {
                return;
            }
            cpu_relax();
        }
    } while (sl_now_ns() < give_up_ns);
    pthread_mutex_lock(&team->lock);
    while (atomic_load_explicit(&team->n_inside, memory_order_acquire) != 0) {
        pthread_cond_wait(&team->round_ended, &team->lock);
    }
    pthread_mutex_unlock(&team->lock);
}

static void begin_round(struct sl_team *team) {
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add_explicit(&team->round, 1, memory_order_release);
    pthread_cond_broadcast(&team->round_began);
    pthread_mutex_unlock(&team->lock);
}

static void *run_member(void *arg) {
    struct member *member = arg;
    struct sl_team *team = member->team;
    for (uint64_t seen = 0;; seen++) {
        wait_for_round(team, seen);
        if (atomic_load_explicit(&team->stopping, memory_order_relaxed)) {
            return NULL;
        }
        take_ranges(team, member->index);
        if (atomic_fetch_sub_explicit(&team->n_inside, 1, memory_order_acq_rel) == 1) {
            // Under the lock, so that the caller is either before its test or already asleep.
            pthread_mutex_lock(&team->lock);
            pthread_cond_signal(&team->round_ended);
            pthread_mutex_unlock(&team->lock);
        }
    }
}

static void stop_members(struct sl_team *team, int n_started) {
    atomic_store_explicit(&team->stopping, true, memory_order_relaxed);
    begin_round(team);
    for (int i = 1; i <= n_started; i++) {
        pthread_join(team->members[i].thread, NULL);
    }
}

static void free_team(struct sl_team *team) {
    pthread_cond_destroy(&team->round_ended);
    pthread_cond_destroy(&team->round_began);
    pthread_mutex_destroy(&team->lock);
    pthread_mutex_destroy(&team->busy);
    free(team);
}

enum sl_status sl_team_create(int n_threads, struct sl_team **team_out, struct sl_error *err) {
    if (n_threads <= 0) {
        cpu_set_t allowed; // what this process may use, which in a container is less than what the machine has
        n_threads = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed)
                                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
        n_threads = n_threads < 1 ? 1 : n_threads > MAX_TEAM_THREADS ? MAX_TEAM_THREADS : n_threads;
    }
    if (n_threads > MAX_TEAM_THREADS) {
        return sl_fail(err, SL_ERR_RANGE, "team: %d threads, at most %d", n_threads, MAX_TEAM_THREADS);
    }
    struct sl_team *team = calloc(1, sizeof *team + (size_t)n_threads * sizeof team->members[0]);
    if (!team) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "team: out of memory");
    }
    team->n_members = n_threads;
    pthread_mutex_init(&team->busy, NULL);
    pthread_mutex_init(&team->lock, NULL);
    sl_cond_init(&team->round_began);
    sl_cond_init(&team->round_ended);
    for (int i = 1; i < n_threads; i++) {
        char name[MAX_NAME_BYTES];
        snprintf(name, sizeof name, "team-%d", i);
        team->members[i] = (struct member){.team = team, .index = i};
        enum sl_status status = sl_thread_start(name, run_member, &team->members[i], &team->members[i].thread, err);
        if (status != SL_OK) {
            stop_members(team, i - 1);
            free_team(team);
            return status;
        }
    }
    *team_out = team;
    return SL_OK;
}

void sl_team_destroy(struct sl_team **team) {
    if (*team) {
        stop_members(*team, (*team)->n_members - 1);
        free_team(*team);
        *team = NULL;
    }
}

int sl_team_size(const struct sl_team *team) {
    return team ? team->n_members : 1;
}

void sl_team_run(struct sl_team *team, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg) {
    if (n_tasks <= 0) {
        return;
    }
    if (grain < 1) {
        grain = 1;
    }
    if (!team || team->n_members == 1) {
        run_in_caller(n_tasks, grain, fn, arg);
        return;
    }
    pthread_mutex_lock(&team->busy);
    if (n_tasks <= grain) { // one range: not worth waking anybody, but member 0's scratch needs the lock
        fn(arg, 0, n_tasks, 0);
    } else {
        team->fn = fn;
        team->arg = arg;
        team->n_tasks = n_tasks;
        team->grain = grain;
        atomic_store_explicit(&team->next_task, 0, memory_order_relaxed);
        atomic_store_explicit(&team->n_inside, team->n_members - 1, memory_order_relaxed);
        begin_round(team);
        take_ranges(team, 0);
        wait_for_members(team);
    }
    pthread_mutex_unlock(&team->busy);
}
