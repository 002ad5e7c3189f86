// SPDX-License-Identifier: Apache-2.0
/*
 * Design: the caller publishes a loop by raising `round`. Every member takes the ranges of its own share, each with one
 *         atomic addition on a cache line of its own. Then it takes, member after member, the ranges that others have
 *         not begun; then it counts itself out. The caller is member 0 and returns when all other members have counted
 *         out, so that the loop's description may be part of the team and be reused. If each member has a task of its
 *         own, no member takes from other shares, and the caller's wait is limited: a team that has lost a member is
 *         never used again.
 *
 * Invariants: fn, arg, n_tasks, grain and the shares are written only while no member is inside a round: n_inside is 0.
 *             A member that saw round r has finished round r - 1.
 *             Sleeping threads are counted (n_before, n_behind) as base/futex.h describes: a loop makes no system call
 *             if no thread sleeps. Members hold no lock while they wait, so a member that is stuck blocks no other
 *             thread.
 */
#include "base/team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/futex.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/spin_budget.h"
#include "base/processors.h"
#include "base/thread.h"

#define MAX_TEAM_THREADS 1024
#define MAX_VIGIL        64 // members of a team that has a task for each
#define CACHE_LINE       64

struct member {
    _Alignas(CACHE_LINE) _Atomic int64_t next_range; // next range of this member's share; may exceed the end
    int64_t end_range;
    _Atomic uint64_t n_done; // ranges that this member has executed

    struct sl_team *team;
    pthread_t thread; // unused for member 0
    int index;
    struct sl_spin_budget budget; // member 0 waits for the end of loops, the others for their beginning
};

struct sl_team {
    int n_members;        // including the caller
    pthread_mutex_t busy; // serializes callers of sl_team_run()
    int caller_processor; // member 0's processor; -1: the team is not pinned
    cpu_set_t released;   // the allowed processors before the team was pinned

    // The loop of the current round.
    sl_team_fn fn;
    void *arg;
    int64_t n_tasks;
    int64_t grain;
    bool each;          // each member takes only its own share
    int lost;           // a member that makes no progress; -1: none
    _Atomic int n_left; // users of a team that was given up, including its destroyer: the last one to leave frees it

    _Alignas(CACHE_LINE) _Atomic uint32_t round;
    _Atomic int n_before; // members that sleep until the next round
    _Atomic bool stopping;
    _Alignas(CACHE_LINE) _Atomic uint32_t n_inside; // members other than the caller that have not finished the round
    _Atomic int n_behind;                           // callers that sleep until n_inside is 0

    struct member members[];
};

// --- waiting -------------------------------------------------------------------------------------------------------

static void wake(_Atomic uint32_t *word, _Atomic int *n_asleep) {
    if (atomic_load(n_asleep) > 0) {
        sl_futex_wake(word);
    }
}

struct wait {
    struct sl_team *team;
    uint32_t seen;
};

static bool round_changed(void *arg) {
    const struct wait *wait = arg;
    return atomic_load(&wait->team->round) != wait->seen;
}

static bool all_outside(void *arg) {
    const struct wait *wait = arg;
    return atomic_load(&wait->team->n_inside) == 0;
}

static void wait_for_round(struct member *member, uint32_t seen) {
    struct sl_team *team = member->team;
    struct wait wait = {team, seen};
    if (sl_spin_budget_poll(&member->budget, round_changed, &wait)) {
        return;
    }
    atomic_fetch_add(&team->n_before, 1);
    while (!round_changed(&wait)) {
        sl_futex_sleep(&team->round, seen, -1);
    }
    atomic_fetch_sub(&team->n_before, 1);
}

static void wait_for_members(struct sl_team *team) {
    struct wait wait = {team, 0};
    if (sl_spin_budget_poll(&team->members[0].budget, all_outside, &wait)) {
        return;
    }
    atomic_fetch_add(&team->n_behind, 1);
    for (uint32_t inside; (inside = atomic_load(&team->n_inside)) > 0;) {
        sl_futex_sleep(&team->n_inside, inside, -1);
    }
    atomic_fetch_sub(&team->n_behind, 1);
}

// --- the loop ------------------------------------------------------------------------------------------------------

static void count_done(struct member *member) {
    atomic_fetch_add_explicit(&member->n_done, 1, memory_order_relaxed);
}

// Executes, as `member`, the rest of `owner`'s share.
static void take_share(struct sl_team *team, struct member *owner, int member) {
    if (atomic_load_explicit(&owner->next_range, memory_order_relaxed) >= owner->end_range) {
        return; // the usual case: avoid writing to the other member's cache line
    }
    for (;;) {
        int64_t range = atomic_fetch_add_explicit(&owner->next_range, 1, memory_order_relaxed);
        if (range >= owner->end_range) {
            return;
        }
        int64_t begin = range * team->grain, left = team->n_tasks - begin;
        team->fn(team->arg, begin, begin + (left < team->grain ? left : team->grain), member);
        count_done(&team->members[member]);
    }
}

static void take_shares(struct sl_team *team, int member) {
    if (team->each) {
        take_share(team, &team->members[member], member);
        return;
    }
    for (int i = member; i < team->n_members; i++) {
        take_share(team, &team->members[i], member);
    }
    for (int i = 0; i < member; i++) {
        take_share(team, &team->members[i], member);
    }
}

// Runs the same ranges as a team would, so that a task may size its scratch by `grain`.
static void run_in_caller(struct sl_team *team, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg) {
    for (int64_t begin = 0; begin < n_tasks;) {
        int64_t end = n_tasks - begin < grain ? n_tasks : begin + grain;
        fn(arg, begin, end, 0);
        begin = end;
        if (team) {
            count_done(&team->members[0]);
        }
    }
}

static void begin_round(struct sl_team *team) {
    atomic_fetch_add(&team->round, 1);
    wake(&team->round, &team->n_before);
}

static void publish(struct sl_team *team, int64_t n_tasks, int64_t grain, bool each, sl_team_fn fn, void *arg) {
    int64_t n = team->n_members, n_ranges = (n_tasks - 1) / grain + 1;
    team->each = each;
    team->fn = fn;
    team->arg = arg;
    team->n_tasks = n_tasks;
    team->grain = grain;
    for (int64_t i = 0, begin = 0; i < n; i++) {
        int64_t end = n_ranges / n * (i + 1) + n_ranges % n * (i + 1) / n; // n_ranges * (i + 1) / n, without overflow
        atomic_store_explicit(&team->members[i].next_range, begin, memory_order_relaxed);
        team->members[i].end_range = end;
        begin = end;
    }
    atomic_store_explicit(&team->n_inside, (uint32_t)team->n_members - 1, memory_order_relaxed);
    begin_round(team);
}

static void run_in_team(struct sl_team *team, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg) {
    publish(team, n_tasks, grain, false, fn, arg);
    take_shares(team, 0);
    wait_for_members(team);
}

void sl_team_run(struct sl_team *team, int64_t n_tasks, int64_t grain, sl_team_fn fn, void *arg) {
    if (n_tasks <= 0) {
        return;
    }
    if (grain < 1) {
        grain = 1;
    }
    if (!team || team->n_members == 1) {
        run_in_caller(team, n_tasks, grain, fn, arg);
        return;
    }
    SL_LOCKED(&team->busy);
    if (n_tasks <= grain) { // one range: waking other members does not pay, but member 0's scratch needs the lock
        fn(arg, 0, n_tasks, 0);
        count_done(&team->members[0]);
    } else {
        run_in_team(team, n_tasks, grain, fn, arg);
    }
}

// --- a task for each -----------------------------------------------------------------------------------------------

#define LOOK_MS 100 // time from one check for late members to the next

struct late {
    uint64_t done; // ranges of the member before this round
    uint64_t progress;
    int64_t still_ms;
};

// Returns the member that has made no progress for too long; -1: none, and elapsed_ms was added to their waiting times.
static int look_at_late(struct sl_team *team, const struct sl_team_vigil *vigil, struct late *late,
                        int64_t elapsed_ms) {
    for (int i = 1; i < team->n_members; i++) {
        uint64_t progress = vigil->progress != NULL ? vigil->progress(vigil->arg, i) : 0;
        bool moves = progress != late[i].progress;
        bool is_done = atomic_load(&team->members[i].n_done) != late[i].done;
        late[i].progress = progress;
        late[i].still_ms = moves || is_done ? 0 : late[i].still_ms + elapsed_ms;
        if (late[i].still_ms >= vigil->still_ms) {
            return i;
        }
    }
    return -1;
}

// Waits until all members are outside, or one is lost.
static void keep_vigil(struct sl_team *team, const struct sl_team_vigil *vigil, struct late *late) {
    struct wait wait = {team, 0};
    if (sl_spin_budget_poll(&team->members[0].budget, all_outside, &wait)) {
        return;
    }
    (void)look_at_late(team, vigil, late, 0);
    atomic_fetch_add(&team->n_behind, 1);
    for (uint32_t inside; (inside = atomic_load(&team->n_inside)) > 0 && team->lost < 0;) {
        int64_t began_ns = sl_now_ns();
        sl_futex_sleep(&team->n_inside, inside, LOOK_MS * SL_NS_PER_MS);
        if (sl_now_ns() - began_ns >= LOOK_MS * SL_NS_PER_MS) {
            team->lost = look_at_late(team, vigil, late, LOOK_MS);
        }
    }
    atomic_fetch_sub(&team->n_behind, 1);
}

enum sl_status sl_team_run_each(struct sl_team *team, sl_team_fn fn, void *arg, const struct sl_team_vigil *vigil,
                                int *lost_out) {
    *lost_out = -1;
    if (team->n_members > MAX_VIGIL) {
        return SL_ERR_RANGE;
    }
    if (team->n_members == 1) {
        fn(arg, 0, 1, 0);
        count_done(&team->members[0]);
        return SL_OK;
    }
    SL_LOCKED(&team->busy);
    if (team->lost < 0) {
        struct late late[MAX_VIGIL];
        for (int i = 1; i < team->n_members; i++) {
            late[i] = (struct late){.done = atomic_load_explicit(&team->members[i].n_done, memory_order_relaxed)};
        }
        publish(team, team->n_members, 1, true, fn, arg);
        take_shares(team, 0);
        keep_vigil(team, vigil, late);
    }
    *lost_out = team->lost;
    return *lost_out < 0 ? SL_OK : SL_ERR_PEER_LOST;
}

static void free_team(struct sl_team *team) {
    pthread_mutex_destroy(&team->busy);
    free(team);
}

static void leave(struct sl_team *team) {
    if (atomic_fetch_sub(&team->n_left, 1) == 1) {
        free_team(team);
    }
}

static void *run_member(void *arg) {
    struct member *member = arg;
    struct sl_team *team = member->team;
    for (uint32_t seen = 0;; seen++) {
        wait_for_round(member, seen);
        if (atomic_load_explicit(&team->stopping, memory_order_relaxed)) {
            if (team->lost >= 0) {
                leave(team);
            }
            return NULL;
        }
        take_shares(team, member->index);
        if (atomic_fetch_sub(&team->n_inside, 1) == 1) {
            wake(&team->n_inside, &team->n_behind);
        }
    }
}

// --- life cycle ----------------------------------------------------------------------------------------------------

static void stop_members(struct sl_team *team, int n_started) {
    atomic_store_explicit(&team->stopping, true, memory_order_relaxed);
    begin_round(team);
    for (int i = 1; i <= n_started; i++) {
        pthread_join(team->members[i].thread, NULL);
    }
}

enum sl_status sl_team_create(int n_threads, struct sl_team **team_out, struct sl_error *err) {
    if (n_threads <= 0) {
        n_threads = sl_processors_count();
        n_threads = n_threads > MAX_TEAM_THREADS ? MAX_TEAM_THREADS : n_threads;
    }
    SL_FAIL_IF(n_threads > MAX_TEAM_THREADS, err, SL_ERR_RANGE, "team: %d threads, at most %d", n_threads,
               MAX_TEAM_THREADS);
    size_t bytes = sizeof(struct sl_team) + (size_t)n_threads * sizeof(struct member);
    struct sl_team *team = aligned_alloc(CACHE_LINE, bytes); // both sizes are multiples of CACHE_LINE
    SL_FAIL_IF(!team, err, SL_ERR_EXHAUSTED, "team: out of memory");
    memset(team, 0, bytes);
    team->n_members = n_threads;
    team->caller_processor = -1;
    team->lost = -1;
    pthread_mutex_init(&team->busy, NULL);
    for (int i = 0; i < n_threads; i++) {
        team->members[i] = (struct member){.team = team, .index = i};
    }
    for (int i = 1; i < n_threads; i++) {
        char name[32];
        snprintf(name, sizeof name, "team-%d", i);
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

// Gives up a team with a stuck member. That member cannot be joined, and may resume its task later, so it keeps the
// team alive until it leaves.
static void leave_members(struct sl_team *team) {
    atomic_store(&team->n_left, team->n_members);
    for (int i = 1; i < team->n_members; i++) {
        pthread_detach(team->members[i].thread);
    }
    atomic_store(&team->stopping, true);
    begin_round(team);
    leave(team);
}

void sl_team_destroy(struct sl_team **team) {
    if (*team && (*team)->lost >= 0) {
        leave_members(*team);
    } else if (*team) {
        stop_members(*team, (*team)->n_members - 1);
        free_team(*team);
    }
    *team = NULL;
}

int sl_team_size(const struct sl_team *team) {
    return team ? team->n_members : 1;
}

uint64_t sl_team_tasks_done(const struct sl_team *team) {
    uint64_t n = 0;
    for (int i = 0; team && i < team->n_members; i++) {
        n += atomic_load_explicit(&team->members[i].n_done, memory_order_relaxed);
    }
    return n;
}

// --- pinning -------------------------------------------------------------------------------------------------------

static int pin(pthread_t thread, int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)processor, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set);
}

enum sl_status sl_team_pin(struct sl_team *team, struct sl_error *err) {
    return sl_team_pin_part(team, 0, team->n_members, err);
}

enum sl_status sl_team_pin_part(struct sl_team *team, int first, int n_all, struct sl_error *err) {
    SL_FAIL_IF(n_all > MAX_TEAM_THREADS, err, SL_ERR_RANGE, "team: %d threads, at most %d", n_all, MAX_TEAM_THREADS);
    SL_FAIL_IF(sched_getaffinity(0, sizeof team->released, &team->released) != 0, err, SL_ERR_IO,
               "team: the processors of this process: %s", strerror(errno));
    int processors[MAX_TEAM_THREADS];
    SL_TRY(sl_processors_place("", &team->released, n_all, processors, err));
    for (int i = 1; i < team->n_members; i++) {
        int processor = processors[first + i], rc = pin(team->members[i].thread, processor);
        SL_FAIL_IF(rc != 0, err, SL_ERR_IO, "team: pinning thread %d to processor %d: %s", i, processor, strerror(rc));
    }
    team->caller_processor = processors[first];
    return SL_OK;
}

void sl_team_pin_caller(struct sl_team *team) {
    if (team != NULL && team->caller_processor >= 0) {
        int rc = pin(pthread_self(), team->caller_processor);
        if (rc != 0) { // slower, but correct
            sl_log_warn("team", "cannot pin to processor %d: %s", team->caller_processor, strerror(rc));
        }
    }
}

void sl_team_release_caller(struct sl_team *team) {
    if (team != NULL && team->caller_processor >= 0) {
        int rc = pthread_setaffinity_np(pthread_self(), sizeof team->released, &team->released);
        if (rc != 0) {
            sl_log_warn("team", "cannot release from processor %d: %s", team->caller_processor, strerror(rc));
        }
    }
}
