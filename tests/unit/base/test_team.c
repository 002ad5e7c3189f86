// SPDX-License-Identifier: Apache-2.0
// Purpose: a team executes every task exactly once, whatever the sizes; a member begins with its own share and helps others
//          with theirs; and it is quiet between loops.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/processors.h"
#include "base/team.h"
#include "base/thread.h"

#define MAX_TASKS   1000
#define MAX_MEMBERS 8
#define PATIENCE_MS 30000 // of tasks that wait for others: only a broken team needs it

struct work {
    int n_executed[MAX_TASKS]; // a task belongs to one member: plain ints, so that TSan checks the claim
    int64_t grain;
    int64_t sum_of_member[MAX_MEMBERS];
    atomic_bool bad_range;
};

static void execute(void *arg, int64_t begin, int64_t end, int member) {
    struct work *work = arg;
    if (begin >= end || end - begin > work->grain || member < 0 || member >= MAX_MEMBERS) {
        atomic_store(&work->bad_range, true);
    }
    for (int64_t i = begin; i < end; i++) {
        work->n_executed[i]++;
        work->sum_of_member[member] += i;
    }
}

static void run_sizes(struct sl_team *team) {
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 999, 1000};
    static const int64_t grains[] = {1, 3, 64, 5000};
    struct work *work = malloc(sizeof *work);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++) {
            memset(work, 0, sizeof *work);
            work->grain = grains[g];
            sl_team_run(team, sizes[s], grains[g], execute, work);
            int64_t sum = 0;
            for (int m = 0; m < MAX_MEMBERS; m++) {
                sum += work->sum_of_member[m];
            }
            assert_true(sum == sizes[s] * (sizes[s] - 1) / 2);
            for (int64_t i = 0; i < MAX_TASKS; i++) {
                assert_int_equal(work->n_executed[i], i < sizes[s] ? 1 : 0);
            }
            assert_false(atomic_load(&work->bad_range));
        }
    }
    free(work);
}

static void test_team_executes_every_task_once(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_MEMBERS; n++) {
        struct sl_team *team = NULL;
        struct sl_error err;
        assert_int_equal(sl_team_create(n, &team, &err), SL_OK);
        assert_int_equal(sl_team_size(team), n);
        run_sizes(team);
        sl_team_destroy(&team);
        assert_null(team);
    }
    run_sizes(NULL);
    struct sl_team *none = NULL;
    sl_team_destroy(&none);
}

static void add_squares(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    int64_t sum = 0;
    for (int64_t i = begin; i < end; i++) {
        sum += i * i;
    }
    atomic_fetch_add((_Atomic int64_t *)arg, sum);
}

static void test_team_many_small_loops(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(3, &team, NULL), SL_OK);
    for (int64_t i = 0; i < 3000; i++) {
        _Atomic int64_t sum = 0;
        int64_t n = i % 50;
        sl_team_run(team, n, 2, add_squares, &sum);
        assert_true(sum == (n - 1) * n * (2 * n - 1) / 6);
        if (i % 1000 == 999) {
            sl_sleep_ms(5); // long enough for the members to fall asleep
        }
    }
    sl_team_destroy(&team);
}

struct caller {
    struct sl_team *team;
    bool ok;
};

static void *run_loops(void *arg) {
    struct caller *caller = arg;
    caller->ok = true;
    for (int i = 0; i < 300; i++) {
        _Atomic int64_t sum = 0;
        sl_team_run(caller->team, 100, 7, add_squares, &sum);
        caller->ok = caller->ok && sum == 328350;
    }
    return NULL;
}

static void test_team_serialises_its_callers(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(2, &team, NULL), SL_OK);
    struct caller callers[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        callers[i] = (struct caller){.team = team};
        assert_int_equal(sl_thread_start("caller", run_loops, &callers[i], &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_true(callers[i].ok);
    }
    sl_team_destroy(&team);
}

static int64_t process_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * SL_NS_PER_S + t.tv_nsec;
}

static void test_team_idles_without_burning_time(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(4, &team, NULL), SL_OK);
    _Atomic int64_t sum = 0;
    sl_team_run(team, 100, 1, add_squares, &sum);
    sl_sleep_ms(20);
    int64_t begin = process_cpu_ns();
    sl_sleep_ms(100);
    assert_true(process_cpu_ns() - begin < 20 * SL_NS_PER_MS);
    sl_team_destroy(&team);
}

static void test_team_sizes_are_checked(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    struct sl_error err;
    assert_int_equal(sl_team_create(100000, &team, &err), SL_ERR_RANGE);
    assert_null(team);
    assert_int_equal(sl_team_create(0, &team, &err), SL_OK);
    assert_int_equal(sl_team_size(team), sl_processors_count());
    sl_team_destroy(&team);
}

struct shares {
    int64_t tasks_per_share;
    int n_members;
    _Atomic int n_begun; // first tasks of shares
    atomic_bool late;
    int member_of_task[MAX_TASKS];
};

// The first task of each share waits for the first tasks of all others: so each is taken by another member.
static void meet(void *arg, int64_t begin, int64_t end, int member) {
    struct shares *shares = arg;
    for (int64_t i = begin; i < end; i++) {
        shares->member_of_task[i] = member;
        if (i % shares->tasks_per_share == 0) {
            atomic_fetch_add(&shares->n_begun, 1);
            int64_t deadline_ns = sl_deadline_in_ms(PATIENCE_MS);
            while (atomic_load(&shares->n_begun) < shares->n_members) {
                if (sl_now_ns() > deadline_ns) {
                    atomic_store(&shares->late, true);
                    break;
                }
                sched_yield();
            }
        }
    }
}

static void test_team_members_begin_with_their_shares(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(5, &team, NULL), SL_OK);
    static const int64_t tasks_per_share[] = {1, 3, 40};
    for (int run = 0; run < 30; run++) {
        struct shares shares = {.tasks_per_share = tasks_per_share[run % 3], .n_members = 5};
        sl_team_run(team, 5 * shares.tasks_per_share, run % 3 == 2 ? 4 : 1, meet, &shares);
        assert_false(atomic_load(&shares.late));
        for (int i = 0; i < 5; i++) {
            assert_int_equal(shares.member_of_task[i * shares.tasks_per_share], i);
        }
    }
    sl_team_destroy(&team);
}

struct slow {
    _Atomic int n_done;
    int n_others;
    atomic_bool late;
};

// Task 10 ends when all others have ended.
static void wait_for_others(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    struct slow *slow = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t deadline_ns = sl_deadline_in_ms(PATIENCE_MS);
        while (i == 10 && !atomic_load(&slow->late) && atomic_load(&slow->n_done) < slow->n_others) {
            atomic_store(&slow->late, sl_now_ns() > deadline_ns);
            sched_yield();
        }
        atomic_fetch_add(&slow->n_done, 1);
    }
}

static void test_team_takes_from_the_share_of_a_slow_member(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(3, &team, NULL), SL_OK);
    for (int run = 0; run < 50; run++) {
        struct slow slow = {.n_others = 29};
        sl_team_run(team, 30, 1, wait_for_others, &slow); // member 1's share is tasks 10 to 19
        assert_false(atomic_load(&slow.late));
        assert_int_equal(atomic_load(&slow.n_done), 30);
    }
    sl_team_destroy(&team);
}

static void nest(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    for (int64_t i = begin; i < end; i++) {
        sl_team_run(NULL, i, 3, add_squares, arg);
    }
}

static void test_team_tasks_may_run_loops_without_a_team(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(3, &team, NULL), SL_OK);
    _Atomic int64_t sum = 0;
    sl_team_run(team, 20, 1, nest, &sum);
    int64_t expected = 0;
    for (int64_t n = 0; n < 20; n++) {
        expected += n > 0 ? (n - 1) * n * (2 * n - 1) / 6 : 0;
    }
    assert_true(sum == expected);
    sl_team_destroy(&team);
}

struct places {
    _Atomic int n_begun;
    int n_members;
    int n_processors[MAX_MEMBERS]; // that a member may use
    int first[MAX_MEMBERS];
};

static int count_allowed(int *first_out) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (*first_out = 0; !CPU_ISSET((size_t)*first_out, &set); (*first_out)++) {
    }
    return CPU_COUNT(&set);
}

// One task a member.
static void look_around(void *arg, int64_t begin, int64_t end, int member) {
    (void)begin;
    (void)end;
    struct places *places = arg;
    places->n_processors[member] = count_allowed(&places->first[member]);
    atomic_fetch_add(&places->n_begun, 1);
    while (atomic_load(&places->n_begun) < places->n_members) {
        sched_yield();
    }
}

static void test_team_pins_each_member_to_its_own_processor(void **state) {
    (void)state;
    int unused, n_allowed = count_allowed(&unused), n = n_allowed < MAX_MEMBERS ? n_allowed : MAX_MEMBERS;
    struct sl_team *team = NULL;
    struct sl_error err;
    assert_int_equal(sl_team_create(n, &team, &err), SL_OK);
    sl_team_pin_caller(team); // not pinned yet: nothing happens
    assert_int_equal(count_allowed(&unused), n_allowed);
    assert_int_equal(sl_team_pin(team, &err), SL_OK);
    assert_int_equal(count_allowed(&unused), n_allowed);
    sl_team_pin_caller(team);
    struct places places = {.n_members = n};
    sl_team_run(team, n, 1, look_around, &places);
    for (int i = 0; i < n; i++) {
        assert_int_equal(places.n_processors[i], 1);
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(places.first[i], places.first[j]);
        }
    }
    sl_team_release_caller(team);
    assert_int_equal(count_allowed(&unused), n_allowed);
    sl_team_destroy(&team);

    assert_int_equal(sl_team_create(n_allowed + 1, &team, &err), SL_OK);
    assert_int_equal(sl_team_pin(team, &err), SL_ERR_RANGE);
    sl_team_destroy(&team);
}

// Teams that share a machine as parts of one: none has another's processor.
static void test_teams_are_pinned_beside_each_other(void **state) {
    (void)state;
    int unused, n_allowed = count_allowed(&unused), n = n_allowed < MAX_MEMBERS ? n_allowed : MAX_MEMBERS, first = 0;
    struct places all[2] = {{0}};
    for (int part = 0; part < 2 && n >= 2; part++) {
        struct sl_team *team = NULL;
        struct sl_error err;
        all[part].n_members = part == 0 ? n / 2 : n - n / 2;
        assert_int_equal(sl_team_create(all[part].n_members, &team, &err), SL_OK);
        assert_int_equal(sl_team_pin_part(team, first, n, &err), SL_OK);
        sl_team_pin_caller(team);
        sl_team_run(team, all[part].n_members, 1, look_around, &all[part]);
        sl_team_release_caller(team);
        sl_team_destroy(&team);
        first += all[part].n_members;
    }
    for (int i = 0; i < all[0].n_members; i++) {
        assert_int_equal(all[0].n_processors[i], 1);
        for (int j = 0; j < all[1].n_members; j++) {
            assert_int_not_equal(all[0].first[i], all[1].first[j]);
        }
    }
}

// --- a task for each ---------------------------------------------------------------------------------------------------

struct each {
    pthread_t threads[MAX_MEMBERS]; // the threads that have executed each member's task
    int n_executed[MAX_MEMBERS];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stand, released, ended; // of member 1
    int n_looks, gets_on;        // polls that see progress; after the last one the member is released
};

static void release(struct each *each) {
    pthread_mutex_lock(&each->mutex);
    each->released = true;
    pthread_cond_signal(&each->changed);
    pthread_mutex_unlock(&each->mutex);
}

// Counts progress by polls, not by time: a busy machine changes nothing.
static uint64_t progress_of(void *arg, int member) {
    struct each *each = arg;
    if (member == 1 && each->n_looks < each->gets_on && ++each->n_looks == each->gets_on) {
        release(each);
    }
    return (uint64_t)each->n_looks;
}

static void execute_own(void *arg, int64_t begin, int64_t end, int member) {
    struct each *each = arg;
    assert_true(begin == member && end == member + 1);
    each->threads[member] = pthread_self();
    each->n_executed[member]++;
    if (member == 1 && each->stand) {
        pthread_mutex_lock(&each->mutex);
        while (!each->released) {
            pthread_cond_wait(&each->changed, &each->mutex);
        }
        each->ended = true;
        pthread_cond_signal(&each->changed);
        pthread_mutex_unlock(&each->mutex);
    }
}

static void test_each_member_executes_its_own_task(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_MEMBERS; n++) {
        struct sl_team *team = NULL;
        struct sl_error err;
        struct each first = {0}, later = {0};
        struct sl_team_vigil vigil = {PATIENCE_MS, NULL, NULL};
        int lost;
        assert_int_equal(sl_team_create(n, &team, &err), SL_OK);
        assert_int_equal(sl_team_run_each(team, execute_own, &first, &vigil, &lost), SL_OK);
        for (int round = 0; round < 200; round++) {
            assert_int_equal(sl_team_run_each(team, execute_own, &later, &vigil, &lost), SL_OK);
            run_sizes(round == 100 ? team : NULL); // loops that are shared come between
        }
        for (int i = 0; i < n; i++) {
            assert_int_equal(first.n_executed[i], 1);
            assert_int_equal(later.n_executed[i], 200);
            assert_true(pthread_equal(first.threads[i], later.threads[i]));
        }
        sl_team_destroy(&team);
    }
}

static void test_a_member_that_stands_still_is_lost(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    struct sl_error err;
    static struct each each = {.stand = true}; // as long there as the process, as it is asked for
    pthread_mutex_init(&each.mutex, NULL);
    pthread_cond_init(&each.changed, NULL);
    struct sl_team_vigil vigil = {300, progress_of, &each};
    int lost = -1;
    assert_int_equal(sl_team_create(2, &team, &err), SL_OK);
    assert_int_equal(sl_team_run_each(team, execute_own, &each, &vigil, &lost), SL_ERR_PEER_LOST);
    assert_int_equal(lost, 1);
    assert_int_equal(sl_team_run_each(team, execute_own, &each, &vigil, &lost), SL_ERR_PEER_LOST);
    assert_int_equal(lost, 1);
    assert_int_equal(each.n_executed[0], 1); // a lost team does no work
    sl_team_destroy(&team);                  // does not wait for the member that stands still
    assert_null(team);
    release(&each); // the member comes back, exits, and frees the team's memory
    pthread_mutex_lock(&each.mutex);
    while (!each.ended) {
        pthread_cond_wait(&each.changed, &each.mutex);
    }
    pthread_mutex_unlock(&each.mutex);
}

static void test_a_member_that_gets_on_is_waited_for(void **state) {
    (void)state;
    struct sl_team *team = NULL;
    struct sl_error err;
    struct each each = {.stand = true, .gets_on = 12}; // three times as long as a vigil
    pthread_mutex_init(&each.mutex, NULL);
    pthread_cond_init(&each.changed, NULL);
    struct sl_team_vigil vigil = {400, progress_of, &each};
    int lost = -1;
    assert_int_equal(sl_team_create(2, &team, &err), SL_OK);
    assert_int_equal(sl_team_run_each(team, execute_own, &each, &vigil, &lost), SL_OK);
    assert_int_equal(each.n_looks, 12);
    sl_team_destroy(&team);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_teams_are_pinned_beside_each_other),
        cmocka_unit_test(test_each_member_executes_its_own_task),
        cmocka_unit_test(test_a_member_that_stands_still_is_lost),
        cmocka_unit_test(test_a_member_that_gets_on_is_waited_for),
        cmocka_unit_test(test_team_executes_every_task_once),
        cmocka_unit_test(test_team_many_small_loops),
        cmocka_unit_test(test_team_serialises_its_callers),
        cmocka_unit_test(test_team_idles_without_burning_time),
        cmocka_unit_test(test_team_sizes_are_checked),
        cmocka_unit_test(test_team_members_begin_with_their_shares),
        cmocka_unit_test(test_team_takes_from_the_share_of_a_slow_member),
        cmocka_unit_test(test_team_tasks_may_run_loops_without_a_team),
        cmocka_unit_test(test_team_pins_each_member_to_its_own_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
