// SPDX-License-Identifier: Apache-2.0
// The schedule's next chunk: short jobs overtake, the oldest keeps its share, no job starves, and what a token costs.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "prefill/schedule.h"

#define STEP 10.0

// Let the schedule choose and take the step; the job's ticket.
static int64_t turn(struct sl_schedule *schedule, struct sl_schedule_job *jobs, int *n_jobs) {
    int i = sl_schedule_next(schedule, jobs, *n_jobs);
    int64_t ticket = jobs[i].ticket;
    jobs[i].left -= jobs[i].next;
    jobs[i].next = fmin(jobs[i].next, jobs[i].left);
    if (jobs[i].left <= 0) {
        jobs[i] = jobs[--*n_jobs];
    }
    return ticket;
}

static void test_schedule_of_nobody(void **state) {
    (void)state;
    struct sl_schedule schedule = {0};
    assert_int_equal(sl_schedule_next(&schedule, NULL, 0), -1);
}

static void test_schedule_lets_short_jobs_overtake(void **state) {
    (void)state;
    struct sl_schedule schedule = {0};
    struct sl_schedule_job jobs[3] = {{.ticket = 1, .left = 1000, .next = STEP}};
    int n_jobs = 1;
    for (int i = 0; i < 5; i++) { // alone: the share that it had counts for nothing afterwards
        assert_int_equal(turn(&schedule, jobs, &n_jobs), 1);
    }
    jobs[n_jobs++] = (struct sl_schedule_job){.ticket = 2, .left = 30, .next = STEP};
    jobs[n_jobs++] = (struct sl_schedule_job){.ticket = 3, .left = 10, .next = STEP};
    assert_int_equal(turn(&schedule, jobs, &n_jobs), 3);
    assert_int_equal(turn(&schedule, jobs, &n_jobs), 2);
    assert_int_equal(turn(&schedule, jobs, &n_jobs), 2);
    assert_int_equal(turn(&schedule, jobs, &n_jobs), 1); // three steps of others: a quarter is its own
    assert_int_equal(turn(&schedule, jobs, &n_jobs), 2);
    assert_int_equal(turn(&schedule, jobs, &n_jobs), 1);
    assert_int_equal(n_jobs, 1);
}

static void test_schedule_breaks_ties_by_arrival(void **state) {
    (void)state;
    struct sl_schedule schedule = {0};
    struct sl_schedule_job jobs[3] = {{.ticket = 7, .left = STEP, .next = STEP},
                                      {.ticket = 5, .left = STEP, .next = STEP},
                                      {.ticket = 6, .left = STEP, .next = STEP}};
    int n_jobs = 3;
    for (int64_t ticket = 5; ticket <= 7; ticket++) {
        assert_int_equal(turn(&schedule, jobs, &n_jobs), ticket);
    }
}

// A job does not inherit what the oldest before it was owed: it waits for three steps of others, as every job does.
static void test_schedule_owes_the_next_oldest_from_the_beginning(void **state) {
    (void)state;
    struct sl_schedule schedule = {0};
    struct sl_schedule_job jobs[3] = {{.ticket = 1, .left = 1000, .next = STEP},
                                      {.ticket = 2, .left = 900, .next = STEP},
                                      {.ticket = 3, .left = STEP, .next = STEP}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_schedule_next(&schedule, jobs, 3), 2);
    }
    for (int i = 0; i < 3; i++) { // the first is cancelled just before its turn
        assert_int_equal(sl_schedule_next(&schedule, jobs + 1, 2), 1);
    }
    assert_int_equal(sl_schedule_next(&schedule, jobs + 1, 2), 0);
}

// A job that is finishing (nothing left to read) is the shortest of all.
static void test_schedule_takes_what_is_only_to_be_finished(void **state) {
    (void)state;
    struct sl_schedule schedule = {0};
    struct sl_schedule_job jobs[2] = {{.ticket = 1, .left = 50, .next = STEP}, {.ticket = 2}};
    assert_int_equal(sl_schedule_next(&schedule, jobs, 2), 1);
}

// Short jobs arrive without end. In every stretch of work the oldest job gets its share, less at most one step of its own
// and one of another job.
static void assert_share(double long_step, double short_step, double patience) {
    struct sl_schedule schedule = {.patience = patience};
    double own = 0, all = 0, worst = 0, most_ahead = 0;
    for (int64_t i = 0; i < 5000; i++) {
        struct sl_schedule_job jobs[2] = {{.ticket = 1, .left = 1e9, .next = long_step},
                                          {.ticket = i + 2, .left = short_step, .next = short_step}};
        int chosen = sl_schedule_next(&schedule, jobs, 2);
        own += chosen == 0 ? long_step : 0;
        all += jobs[chosen].next;
        double behind = SL_SCHEDULE_SHARE * all - own;
        worst = fmax(worst, behind + most_ahead); // since the moment when it was furthest ahead
        most_ahead = fmax(most_ahead, -behind);
    }
    assert_true(worst <= long_step + short_step + patience);
    assert_true(own <= SL_SCHEDULE_SHARE * all + long_step); // and no more than that beside shorter ones
}

static void test_schedule_gives_the_oldest_its_share(void **state) {
    (void)state;
    assert_share(10, 10, 0);
    assert_share(10, 500, 0); // small steps beside large ones
    assert_share(500, 10, 0); // and the other way
    assert_share(7, 11, 0);
    assert_share(10, 10, 1000);
    assert_share(500, 10, 1000);
}

// A few short jobs pass without a pause; then the oldest gets what it is owed before the next ones count.
static void test_schedule_has_patience(void **state) {
    (void)state;
    struct sl_schedule schedule = {.patience = 100};
    struct sl_schedule_job jobs[2] = {{.ticket = 1, .left = 1000, .next = 40},
                                      {.ticket = 2, .left = 400, .next = STEP}};
    int n_jobs = 2;
    for (int i = 0; i < 40; i++) { // 400 units of work: 100 are owed
        assert_int_equal(turn(&schedule, jobs, &n_jobs), 2);
    }
    assert_true(schedule.owed == 100);
    for (int i = 0; i < 4; i++) { // alone
        assert_int_equal(turn(&schedule, jobs, &n_jobs), 1);
    }
    assert_true(schedule.owed == 0);
    jobs[n_jobs++] = (struct sl_schedule_job){.ticket = 3, .left = 600, .next = STEP};
    for (int i = 0; i < 40; i++) {
        assert_int_equal(turn(&schedule, jobs, &n_jobs), 3);
    }
    assert_int_equal(turn(&schedule, jobs, &n_jobs), 1); // patience has ended
}

/*
 * 10,000 jobs at random times, of sizes over four orders of magnitude, at 95% load: all end. None ends later than when the work that was
 * there when it came, and all that came before its end, has been done four times over. That follows from the quarter that the oldest job is
 * promised, as every job becomes the oldest.
 */
static void test_schedule_starves_nobody(void **state) {
    (void)state;
    enum { N = 10000 };
    struct sl_schedule schedule = {0};
    struct sl_schedule_job *jobs = calloc(N, sizeof *jobs);
    double *sizes = calloc(N + 1, sizeof *sizes), *due = calloc(N + 1, sizeof *due);
    uint64_t random = 1;
    int n_jobs = 0, n_most = 0;
    int64_t n_arrived = 0, n_ended = 0;
    double now = 0, next_arrival = 0, backlog = 0;
    while (n_ended < N) {
        while (n_arrived < N && (next_arrival <= now || n_jobs == 0)) {
            now = fmax(now, next_arrival);
            random = random * 6364136223846793005u + 1442695040888963407u;
            double size = STEP * pow(10, 4 * (double)(random >> 40) * 0x1p-24);
            random = random * 6364136223846793005u + 1442695040888963407u;
            double mean = STEP * (1e4 - 1) / log(1e4); // of sizes
            next_arrival += -log(1 - (double)(random >> 40) * 0x1p-24) * mean / 0.95;
            n_arrived++;
            sizes[n_arrived] = size;
            backlog += size;
            due[n_arrived] = now + backlog / SL_SCHEDULE_SHARE + STEP * (double)(n_jobs + 1);
            jobs[n_jobs++] = (struct sl_schedule_job){.ticket = n_arrived, .left = size, .next = fmin(STEP, size)};
            n_most = n_jobs > n_most ? n_jobs : n_most;
        }
        int i = sl_schedule_next(&schedule, jobs, n_jobs);
        int64_t ticket = jobs[i].ticket;
        double work = jobs[i].next;
        bool ends = jobs[i].left <= work;
        now += work;
        backlog -= work;
        jobs[i].left -= work;
        jobs[i].next = fmin(STEP, jobs[i].left);
        if (ends) {
            jobs[i] = jobs[--n_jobs];
            n_ended++;
            if (now > due[ticket]) {
                fail_msg("job %lld of %.0f ended at %.0f instead of %.0f", (long long)ticket, sizes[ticket], now,
                         due[ticket]);
            }
        }
    }
    assert_true(n_most > 20); // or nothing was shown
    assert_int_equal(n_jobs, 0);
    free(jobs);
    free(sizes);
    free(due);
}

static void test_schedule_work_grows_with_the_position(void **state) {
    (void)state;
    const int64_t never = INT64_MAX;
    double half = 1000, sum = 0;
    for (int64_t p = 0; p < 3000; p++) {
        sum += 1 + ((double)p + 0.5) / half;
    }
    assert_true(fabs(sl_schedule_work(0, 3000, never, half) - sum) < 1e-6 * sum);
    assert_true(fabs(sl_schedule_work(0, 700, never, half) + sl_schedule_work(700, 3000, never, half) - sum) <
                1e-6 * sum);
    // With eviction a token attends to no more than the slots that there are.
    assert_true(fabs(sl_schedule_work(5000, 5100, 500, half) - 150) < 1e-9);
    assert_true(sl_schedule_work(9, 9, never, half) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule_of_nobody),
        cmocka_unit_test(test_schedule_lets_short_jobs_overtake),
        cmocka_unit_test(test_schedule_breaks_ties_by_arrival),
        cmocka_unit_test(test_schedule_owes_the_next_oldest_from_the_beginning),
        cmocka_unit_test(test_schedule_takes_what_is_only_to_be_finished),
        cmocka_unit_test(test_schedule_gives_the_oldest_its_share),
        cmocka_unit_test(test_schedule_has_patience),
        cmocka_unit_test(test_schedule_starves_nobody),
        cmocka_unit_test(test_schedule_work_grows_with_the_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
