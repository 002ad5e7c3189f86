// SPDX-License-Identifier: Apache-2.0
// Purpose: a team executes every task exactly once, whatever the sizes, and is quiet between loops.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"

#define MAX_TASKS   1000
#define MAX_MEMBERS 8

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
    for (int n = 1; n <= 5; n++) {
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
    assert_true(sl_team_size(team) >= 1);
    sl_team_destroy(&team);
}

static void *report_name_and_mask(void *arg) {
    char *name = arg;
    pthread_getname_np(pthread_self(), name, 16);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    return sigismember(&mask, SIGINT) && sigismember(&mask, SIGTERM) ? arg : NULL;
}

static void test_thread_has_a_name_and_no_signals(void **state) {
    (void)state;
    char name[16] = "";
    pthread_t thread;
    assert_int_equal(sl_thread_start("a-name-longer-than-fifteen", report_name_and_mask, name, &thread, NULL), SL_OK);
    void *result;
    pthread_join(thread, &result);
    assert_ptr_equal(result, name);
    assert_string_equal(name, "a-name-longer-t");
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGINT)); // the creator's mask is as it was
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_team_executes_every_task_once), cmocka_unit_test(test_team_many_small_loops),
        cmocka_unit_test(test_team_serialises_its_callers),   cmocka_unit_test(test_team_idles_without_burning_time),
        cmocka_unit_test(test_team_sizes_are_checked),        cmocka_unit_test(test_thread_has_a_name_and_no_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
