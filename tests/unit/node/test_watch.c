// SPDX-License-Identifier: Apache-2.0
// Purpose: when a thread that has work stands still, and what is not a stall. Time is passed in; one test runs the watch itself.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/node/watch.h"

#define MS    SL_NS_PER_MS
#define STALL (1000 * MS)

static void test_progress_counter_stands_still_with_work_alone(void **state) {
    (void)state;
    struct sl_progress_counter progress_counter = {.name = "engine"};
    for (int i = 0; i < 50; i++) { // idle for ever
        assert_int_equal(sl_progress_counter_poll(&progress_counter, 500 * MS, STALL), SL_PROGRESS_AS_BEFORE);
    }
    atomic_store(&progress_counter.n_waiting, 1);
    for (int i = 0; i < 50; i++) { // busy for ever
        sl_progress_counter_tick(&progress_counter);
        assert_int_equal(sl_progress_counter_poll(&progress_counter, 900 * MS, STALL), SL_PROGRESS_AS_BEFORE);
    }
    assert_int_equal(sl_progress_counter_poll(&progress_counter, 900 * MS, STALL), SL_PROGRESS_AS_BEFORE);
    assert_int_equal(sl_progress_counter_poll(&progress_counter, 100 * MS, STALL), SL_PROGRESS_STILL);
    assert_int_equal(sl_progress_counter_poll(&progress_counter, 900 * MS, STALL), SL_PROGRESS_AS_BEFORE); // told once
    assert_int_equal(sl_progress_counter_poll(&progress_counter, 100 * MS, STALL), SL_PROGRESS_OVER);
    assert_int_equal(sl_progress_counter_poll(&progress_counter, 5000 * MS, STALL), SL_PROGRESS_AS_BEFORE);
}

static void test_progress_counter_moves_again_with_progress_or_without_work(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct sl_progress_counter progress_counter = {.name = "engine", .n_waiting = 2};
        assert_int_equal(sl_progress_counter_poll(&progress_counter, STALL, STALL), SL_PROGRESS_STILL);
        if (way == 0) {
            sl_progress_counter_tick(&progress_counter);
        } else {
            atomic_store(&progress_counter.n_waiting, 0);
        }
        assert_int_equal(sl_progress_counter_poll(&progress_counter, 10 * MS, STALL), SL_PROGRESS_MOVING);
        assert_int_equal(sl_progress_counter_poll(&progress_counter, 0, STALL), SL_PROGRESS_AS_BEFORE);
        atomic_store(&progress_counter.n_waiting, 1);
        // counted anew
        assert_int_equal(sl_progress_counter_poll(&progress_counter, 999 * MS, STALL), SL_PROGRESS_AS_BEFORE);
        assert_int_equal(sl_progress_counter_poll(&progress_counter, 1 * MS, STALL), SL_PROGRESS_STILL);
    }
}

static void look_from_task(void *arg, int64_t begin, int64_t end, int member) {
    (void)begin, (void)end, (void)member;
    // The thread that would tick is inside of one loop all the time: its tasks are progress.
    assert_int_equal(sl_progress_counter_poll(arg, 900 * MS, STALL), SL_PROGRESS_AS_BEFORE);
}

static void do_nothing(void *arg, int64_t begin, int64_t end, int member) {
    (void)arg, (void)begin, (void)end, (void)member;
}

static void test_progress_counter_counts_the_tasks_of_a_team(void **state) {
    (void)state;
    struct sl_error err;
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(1, &team, &err), SL_OK);
    struct sl_progress_counter progress_counter = {.name = "engine", .n_waiting = 1, .team = team};
    sl_team_run(team, 20, 1, look_from_task, &progress_counter);
    assert_int_equal(sl_progress_counter_count(&progress_counter), 20);
    sl_team_destroy(&team);

    assert_int_equal(sl_team_create(3, &team, &err), SL_OK);
    sl_team_run(team, 100, 7, do_nothing, NULL);
    sl_team_run(team, 5, 7, do_nothing, NULL); // one range
    assert_int_equal(sl_team_tasks_done(team), 15 + 1);
    sl_team_destroy(&team);
}

static atomic_int n_still, n_moving, n_over;

static void on_still(void *arg, const struct sl_progress_counter *progress_counter) {
    assert_ptr_equal(arg, &n_still);
    assert_string_equal(progress_counter->name, "engine");
    atomic_fetch_add(&n_still, 1);
}

static void on_moving(void *arg, const struct sl_progress_counter *progress_counter) {
    (void)arg, (void)progress_counter;
    atomic_fetch_add(&n_moving, 1);
}

static void on_over(void *arg, const struct sl_progress_counter *progress_counter) {
    (void)arg, (void)progress_counter;
    atomic_fetch_add(&n_over, 1);
}

static void wait_for(const atomic_int *count) {
    for (int64_t deadline = sl_deadline_in_ms(20000); atomic_load(count) == 0;) {
        assert_true(sl_now_ns() < deadline);
        sl_sleep_ms(5);
    }
}

static void test_watch_tells_what_becomes_of_progress_counters(void **state) {
    (void)state;
    struct sl_progress_counter idle = {.name = "idle"}, engine = {.name = "engine", .n_waiting = 1, .next = &idle};
    struct sl_thread_watch_config config = {100, &engine, on_still, on_moving, on_over, &n_still};
    struct sl_thread_watch *watch = NULL;
    struct sl_error err;
    assert_int_equal(sl_thread_watch_create(&config, &watch, &err), SL_OK);
    wait_for(&n_still);
    wait_for(&n_over);
    sl_progress_counter_tick(&engine);
    wait_for(&n_moving);
    atomic_store(&engine.n_waiting, 0);
    sl_thread_watch_destroy(&watch);
    assert_null(watch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_counter_stands_still_with_work_alone),
        cmocka_unit_test(test_progress_counter_moves_again_with_progress_or_without_work),
        cmocka_unit_test(test_progress_counter_counts_the_tasks_of_a_team),
        cmocka_unit_test(test_watch_tells_what_becomes_of_progress_counters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
