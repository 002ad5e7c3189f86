// SPDX-License-Identifier: Apache-2.0
// A rank that is killed, stands still, never comes, leaves, gives up, or does something else: all others are told which one it is, in time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tensor/cuda/emu/emulator.h"
#include "tensor/cuda/emulated/driver.h"
#include "tensor/group/meeting.h"
#include "tensor/group/shared.h"
#include "tests/unit/scarce.h"
#include "tests/unit/tensor/group/ranks.h"

#define DEADLINE_MS 2500   // long enough for a rank that is only slow, on a busy machine
#define N           100000 // floats: two slices

// Of a test and its processes.
struct stage {
    atomic_int n_sums; // that a rank has begun
    atomic_bool over;
};

static struct stage *stage;

static int open_stage(void **state) {
    (void)state;
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return stage == MAP_FAILED;
}

static int close_stage(void **state) {
    (void)state;
    munmap(stage, sizeof *stage);
    return waitpid(-1, NULL, WNOHANG) != -1 || sl_emu_used() != 0; // no children, no memory
}

// Sums until one fails. What it and the next ones fail with.
static bool sum_until_lost(struct rank *rank, enum sl_status want, int whose, const char *said) {
    float *x = calloc(N, sizeof *x), *there = rank_put(rank, x, N * sizeof *x);
    struct sl_error err = {0};
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK; i++) {
        atomic_fetch_add(&stage->n_sums, 1);
        status = i % 5 == 4 ? sl_group_gather(rank->group, rank->stream, there, 4, x, &err)
                            : sl_group_sum(rank->group, rank->stream, there, N - 1, &err);
    }
    if (status != want || strstr(err.text, said) == NULL || sl_group_lost(rank->group) != whose) {
        fprintf(stderr, "rank %d: %d, \"%s\" of %d\n", rank->number, (int)status, err.text, sl_group_lost(rank->group));
        return false;
    }
    int who = -7;
    CHECK(sl_group_meet(rank->group, SL_OK, &who, &err) == want && who == whose && strstr(err.text, said) != NULL);
    CHECK(sl_group_sum(rank->group, rank->stream, there, 1, NULL) == want);
    CHECK(rank_take(rank, there, x, 1));
    free(x);
    return true;
}

static void wait_for_sums(int n) {
    for (int64_t end = sl_deadline_in_ms(30000); atomic_load(&stage->n_sums) < n && sl_deadline_left_ms(end) > 0;) {
        sl_sleep_ms(1);
    }
    assert_true(atomic_load(&stage->n_sums) >= n);
}

// --- processes ---------------------------------------------------------------------------------------------------------

static bool sum_beside_a_silent_one(struct rank *rank) {
    const char *said = rank->number == 1 ? "rank 1 of 3, this one, had not come to a" : "rank 1 of 3 has not come to a";
    return sum_until_lost(rank, SL_ERR_PEER_LOST, 1, said);
}

static void end_a_process(int signal) {
#if defined(__SANITIZE_THREAD__)
    skip(); // it sees nothing between processes, and those are too slow beside others for a deadline
#endif
    struct ranks ranks = {.kind = PROCESSES, .size = 3, .join = true, .deadline_ms = DEADLINE_MS};
    ranks_start(&ranks, sum_beside_a_silent_one);
    wait_for_sums(30);
    int64_t begin = sl_now_ns();
    assert_int_equal(kill(ranks.pids[1], signal), 0);
    for (int r = 0; r < 3; r += 2) { // the others, whatever it does
        siginfo_t info;
        assert_int_equal(waitid(P_PID, (id_t)ranks.pids[r], &info, WEXITED | WNOWAIT), 0);
    }
    assert_true(sl_now_ns() - begin < (DEADLINE_MS + 20000 * SLOWNESS) * SL_NS_PER_MS);
    if (signal == SIGSTOP) {
        assert_int_equal(kill(ranks.pids[1], SIGCONT), 0); // it finds that it was given up
    }
    ranks_end(&ranks, signal == SIGKILL ? 1 : -1);
}

static void test_a_killed_process_is_named(void **state) {
    (void)state;
    end_a_process(SIGKILL);
}

static void test_a_stopped_process_is_named(void **state) {
    (void)state;
    end_a_process(SIGSTOP);
}

// --- threads too -------------------------------------------------------------------------------------------------------

static bool join_in_vain(struct rank *rank) {
    struct sl_error err = {0};
    enum sl_status status = sl_group_join(&sl_group_shared, &rank->config, &rank->group, &err);
    CHECK(status == SL_ERR_PEER_LOST && rank->group == NULL);
    CHECK(strstr(err.text, "rank 1 of 2 has not come to a group for 0.1 s") != NULL);
    return true;
}

static void test_who_never_joins_is_named(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 2, .n_absent = 1, .deadline_ms = 100};
        ranks_run(&ranks, join_in_vain);
    }
}

static void *abandon_later(void *arg) {
    wait_for_sums(10);
    sl_group_abandon(arg);
    return NULL;
}

static bool sum_beside_one_that_gives_up(struct rank *rank) {
    pthread_t thread;
    if (rank->number == 1) {
        CHECK(pthread_create(&thread, NULL, abandon_later, rank->group) == 0);
    }
    bool good = sum_until_lost(rank, SL_ERR_PEER_LOST, 1, "rank 1 of 3 has given up");
    return (rank->number != 1 || pthread_join(thread, NULL) == 0) && good;
}

static void test_who_gives_up_is_named(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        atomic_store(&stage->n_sums, 0);
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 3, .join = true};
        ranks_run(&ranks, sum_beside_one_that_gives_up);
    }
}

// Those that wait, asleep, are woken by who gives up.
static bool wait_for_one_that_gives_up(struct rank *rank) {
    struct sl_error err = {0};
    if (rank->number == 0) {
        sl_sleep_ms(50);
        sl_group_abandon(rank->group);
        return true;
    }
    CHECK(sl_group_meet(rank->group, SL_OK, NULL, &err) == SL_ERR_PEER_LOST);
    CHECK(strcmp(err.text, "rank 0 of 3 has given up") == 0);
    return true;
}

static void test_who_waits_is_woken(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 3, .join = true};
        ranks_run(&ranks, wait_for_one_that_gives_up); // else the deadline is a minute
    }
}

static bool leave_early(struct rank *rank) {
    if (rank->number == 2) {
        return sl_group_sum(rank->group, rank->stream, (float[1]){1}, 0, NULL) == SL_OK;
    }
    return sum_until_lost(rank, SL_ERR_PEER_LOST, 2, "rank 2 of 3 has left while others came to a sum");
}

static void test_who_leaves_is_named(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 3, .join = true};
        ranks_run(&ranks, leave_early);
    }
}

static bool do_something_else(struct rank *rank) {
    struct sl_error err = {0};
    if (rank->number == 1) {
        CHECK(sl_group_meet(rank->group, SL_OK, NULL, &err) == SL_ERR_INTERNAL);
    } else {
        return sum_until_lost(rank, SL_ERR_INTERNAL, 1,
                              "rank 1 of 3 came to a meeting of another kind or size than rank 0");
    }
    CHECK(strstr(err.text, "rank 1 of 3 came to a meeting") != NULL);
    return true;
}

static void test_who_does_something_else_is_named(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 3, .join = true};
        ranks_run(&ranks, do_something_else);
    }
}

// A group of another size, too.
static bool join_another(struct rank *rank) {
    struct sl_error err = {0};
    rank->config.size = rank->number == 1 ? 3 : 2;
    CHECK(sl_group_join(&sl_group_shared, &rank->config, &rank->group, &err) == SL_ERR_INTERNAL);
    CHECK(strstr(err.text, "came to a group of another kind or size than rank 0") != NULL);
    return true;
}

static void test_sizes_have_to_agree(void **state) {
    (void)state;
    struct ranks ranks = {.kind = THREADS, .size = 3, .n_absent = 1};
    ranks_run(&ranks, join_another);
}

// --- devices -----------------------------------------------------------------------------------------------------------

static _Thread_local bool device_fails; // of this thread's rank

static enum sl_status wait_or_fail(struct gpu_event *event, struct sl_error *err) {
    return device_fails ? sl_fail(err, SL_ERR_INTERNAL, "the device has failed")
                        : sl_gpu_emulator.event_wait(event, err);
}

static bool fail_in_the_middle(struct rank *rank, bool gathers) {
    struct sl_error err = {0};
    float x[4] = {0}, *there = rank_put(rank, x, sizeof x);
    device_fails = rank->number == 1;
    enum sl_status status = gathers ? sl_group_gather(rank->group, rank->stream, there, 4, there, &err)
                                    : sl_group_sum(rank->group, rank->stream, there, 4, &err);
    device_fails = false;
    CHECK(status == (rank->number == 1 ? SL_ERR_INTERNAL : SL_ERR_PEER_LOST));
    CHECK(strcmp(err.text, rank->number == 1 ? "the device has failed" : "rank 1 of 3 has given up") == 0);
    sl_device_free(rank->device, SL_MEMORY_DEVICE, there);
    return true;
}

static bool fail_in_a_sum(struct rank *rank) {
    return fail_in_the_middle(rank, false);
}

static bool fail_in_a_gather(struct rank *rank) {
    return fail_in_the_middle(rank, true);
}

static void test_a_device_that_fails_fails_the_group(void **state) {
    (void)state;
    struct gpu_driver driver = sl_gpu_emulator;
    driver.event_wait = wait_or_fail;
    for (int i = 0; i < 2; i++) {
        struct ranks ranks = {.kind = EMULATED, .size = 3, .join = true, .driver = &driver};
        ranks_run(&ranks, i == 0 ? fail_in_a_sum : fail_in_a_gather);
    }
}

// --- joining -----------------------------------------------------------------------------------------------------------

static bool is_refused(const struct sl_group_config *config, enum sl_status want, const char *said) {
    struct sl_error err = {0};
    struct sl_group *group = NULL;
    CHECK(sl_group_join(&sl_group_shared, config, &group, &err) == want && group == NULL);
    CHECK(strstr(err.text, said) != NULL);
    return true;
}

static bool join_badly(struct rank *rank) {
    struct sl_group_config good = rank->config, bad[6];
    for (int i = 0; i < 6; i++) {
        bad[i] = good;
    }
    bad[0].rank = 1;
    bad[1].size = SL_MAX_RANKS + 1;
    bad[2].rank = -1;
    bad[3].hall = (char *)good.hall + 4;
    bad[4].hall = NULL;
    bad[5].deadline_ms = -1;
    CHECK(is_refused(&bad[0], SL_ERR_INVALID, "rank 1 of 1"));
    CHECK(is_refused(&bad[1], SL_ERR_INVALID, "sizes are 1 to 16"));
    CHECK(is_refused(&bad[2], SL_ERR_INVALID, "rank -1 of 1"));
    CHECK(is_refused(&bad[3], SL_ERR_INVALID, "a hall at a multiple of 64"));
    CHECK(is_refused(&bad[4], SL_ERR_INVALID, "a hall at a multiple of 64"));
    CHECK(is_refused(&bad[5], SL_ERR_INVALID, "a deadline that is not below 0"));
    CHECK(sl_group_join(&sl_group_shared, &good, &rank->group, NULL) == SL_OK);
    return is_refused(&good, SL_ERR_EXISTS, "rank 0 of 1 has joined this group before");
}

static void test_joining_is_checked(void **state) {
    (void)state;
    struct ranks ranks = {.kind = EMULATED, .size = 1};
    ranks_run(&ranks, join_badly);
}

static enum sl_status join_fresh(void *arg, struct sl_error *err) {
    struct rank *rank = arg;
    memset(rank->config.hall, 0, sl_meeting_hall_bytes());
    enum sl_status status = sl_group_join(&sl_group_shared, &rank->config, &rank->group, err);
    sl_group_leave(&rank->group);
    return status;
}

static bool join_without_memory(struct rank *rank) {
    CHECK(assert_refused_without_memory(join_fresh, rank) == (rank->kind == EMULATED ? 2 : 1)); // staging memory
    return true;
}

static void test_joining_needs_memory(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 1};
        ranks_run(&ranks, join_without_memory);
    }
}

static void test_a_group_has_a_deadline_of_its_own(void **state) {
    (void)state;
    struct sl_meeting meeting;
    void *hall = mmap(NULL, sl_meeting_hall_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(sl_meeting_join(&meeting, &(struct sl_meeting_config){hall, 0, 1, 0, NULL}, NULL), SL_OK);
    assert_int_equal(meeting.deadline_ms, SL_GROUP_DEADLINE_MS);
    sl_meeting_leave(&meeting);
    munmap(hall, sl_meeting_hall_bytes());
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(test) cmocka_unit_test_setup_teardown(test, open_stage, close_stage)
        TEST(test_a_killed_process_is_named),
        TEST(test_a_stopped_process_is_named),
        TEST(test_who_never_joins_is_named),
        TEST(test_who_gives_up_is_named),
        TEST(test_who_waits_is_woken),
        TEST(test_who_leaves_is_named),
        TEST(test_who_does_something_else_is_named),
        TEST(test_sizes_have_to_agree),
        TEST(test_a_device_that_fails_fails_the_group),
        TEST(test_joining_is_checked),
        TEST(test_joining_needs_memory),
        TEST(test_a_group_has_a_deadline_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
