// SPDX-License-Identifier: Apache-2.0
// Purpose: fibers run, wait for bells and deadlines, and are woken by fibers and threads; their values travel with them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/fiber/fiber.h"
#include "base/locals.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"

#define WAIT_MS 60000 // for what happens at once, on a machine that has much else to do

static struct {
    pthread_mutex_t mutex;
    struct sl_bell changed, ended;
    int n_waiting, n_ended, n_late, n_rung, turn;
    bool open;
} shared = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void start(void (*fn)(void *arg), void *arg) {
    struct sl_error err;
    assert_int_equal(sl_fiber_start("test", fn, arg, &err), SL_OK);
}

static void end(void) {
    pthread_mutex_lock(&shared.mutex);
    shared.n_ended++;
    sl_bell_ring(&shared.ended, &shared.mutex, INT_MAX);
}

static int setup(void **state) {
    (void)state;
    pthread_mutex_lock(&shared.mutex);
    shared.n_waiting = shared.n_ended = shared.n_late = shared.n_rung = shared.turn = 0;
    shared.open = false;
    pthread_mutex_unlock(&shared.mutex);
    return 0;
}

static void wait_for_ends(int n) {
    pthread_mutex_lock(&shared.mutex);
    while (shared.n_ended < n) {
        assert_int_equal(sl_bell_wait(&shared.ended, &shared.mutex, sl_deadline_in_ms(WAIT_MS)), SL_OK);
    }
    pthread_mutex_unlock(&shared.mutex);
}

// ---- bells ----------------------------------------------------------------------------------------------------------------

struct player {
    int number, n_players, n_rounds;
};

// Takes turns with the others, by one bell.
static void *play(void *arg) {
    struct player player = *(struct player *)arg;
    for (int i = 0; i < player.n_rounds; i++) {
        pthread_mutex_lock(&shared.mutex);
        while (shared.turn % player.n_players != player.number) {
            sl_bell_wait(&shared.changed, &shared.mutex, SL_NO_DEADLINE);
        }
        shared.turn++;
        sl_bell_ring(&shared.changed, &shared.mutex, INT_MAX);
    }
    return NULL;
}

static void play_on_fiber(void *arg) {
    assert_non_null(sl_fiber_current());
    play(arg);
    end();
}

static void test_fibers_and_threads_take_turns(void **state) {
    (void)state;
    enum { N = 6, ROUNDS = 300 };
    struct player players[N];
    pthread_t threads[N / 2];
    assert_null(sl_fiber_current());
    for (int i = 0; i < N; i++) {
        players[i] = (struct player){i, N, ROUNDS};
        if (i % 2) {
            start(play_on_fiber, &players[i]);
        } else {
            assert_int_equal(sl_thread_start("test", play, &players[i], &threads[i / 2], NULL), SL_OK);
        }
    }
    wait_for_ends(N / 2);
    for (int i = 0; i < N / 2; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(shared.turn, N * ROUNDS);
}

enum { N_RINGS = 3000, N_LINES = 8 };

struct
    line { // a thread rings as soon as a fiber has answered, and many pairs keep the carriers from noting that a fiber waits
    pthread_mutex_t mutex;
    struct sl_bell bell;
    pthread_t thread;
    int n_rung, n_answered;
};

static void answer_rings(void *arg) {
    struct line *line = arg;
    pthread_mutex_lock(&line->mutex);
    for (int i = 1; i <= N_RINGS; i++) {
        while (line->n_rung < i) {
            sl_bell_wait(&line->bell, &line->mutex, SL_NO_DEADLINE);
        }
        line->n_answered++;
    }
    pthread_mutex_unlock(&line->mutex);
    end();
}

static void *ring(void *arg) {
    struct line *line = arg;
    for (int n = 0, n_tries = 0; n < N_RINGS;) {
        if (pthread_mutex_trylock(&line->mutex) != 0) {
            n_tries++;
        } else if (line->n_answered == n) {
            line->n_rung = ++n;
            sl_bell_ring(&line->bell, &line->mutex, 1);
        } else {
            pthread_mutex_unlock(&line->mutex);
            n_tries++;
        }
        if (n_tries % 64 == 63) {
            sched_yield();
        }
    }
    return NULL;
}

static void test_no_ring_is_lost_before_the_wait(void **state) {
    (void)state;
    static struct line lines[N_LINES];
    for (int i = 0; i < N_LINES; i++) {
        pthread_mutex_init(&lines[i].mutex, NULL);
        start(answer_rings, &lines[i]);
        assert_int_equal(sl_thread_start("test", ring, &lines[i], &lines[i].thread, NULL), SL_OK);
    }
    wait_for_ends(N_LINES);
    for (int i = 0; i < N_LINES; i++) {
        pthread_join(lines[i].thread, NULL);
        assert_int_equal(lines[i].n_answered, N_RINGS);
    }
}

static void be_woken_first(void *arg) {
    (void)arg;
    struct sl_fiber *own = sl_fiber_current();
    for (int i = 0; i < 3; i++) {
        sl_fiber_prepare(own);
        assert_null(sl_fiber_wake(own));
        assert_true(sl_fiber_park(own, SL_NO_DEADLINE));
    }
    end();
}

// Nor is the carrier that a wake takes.
static void test_a_fiber_that_is_woken_on_its_way_goes_on(void **state) {
    (void)state;
    for (int i = 1; i <= 10; i++) {
        sl_sleep_ms(1); // the carriers become idle
        start(be_woken_first, NULL);
        wait_for_ends(i);
    }
}

static void wait_until_open(void *arg) {
    const int64_t *wait_ms = arg;
    const int64_t deadline_ns = sl_deadline_in_ms(*wait_ms);
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&shared.mutex);
    shared.n_waiting++; // before another thread can take the mutex
    while (!shared.open && status == SL_OK) {
        status = sl_bell_wait(&shared.changed, &shared.mutex, deadline_ns);
    }
    shared.n_late += status == SL_ERR_DEADLINE;
    shared.n_rung += shared.open;
    pthread_mutex_unlock(&shared.mutex);
    assert_true(status == SL_OK || sl_now_ns() >= deadline_ns);
    end();
}

// More than have stacks that are kept; those with a deadline end by it, the others by the bell.
static void test_many_wait_and_deadlines_pass(void **state) {
    (void)state;
    enum { N = 1000 };
    static const int64_t forever = -1, soon = 20, later = 30;
    for (int i = 0; i < N; i++) {
        start(wait_until_open, (void *)(i % 4 == 0 ? &soon : i % 4 == 1 ? &later : &forever));
    }
    wait_for_ends(N / 2);
    pthread_mutex_lock(&shared.mutex);
    assert_int_equal(shared.n_late, N / 2);
    assert_int_equal(shared.n_rung, 0);
    shared.open = true;
    sl_bell_ring(&shared.changed, &shared.mutex, INT_MAX);
    wait_for_ends(N);
    assert_int_equal(shared.n_rung, N / 2);
}

static void test_a_bell_wakes_as_many_as_it_says(void **state) {
    (void)state;
    enum { N = 3 };
    static const int64_t forever = -1;
    for (int i = 0; i < N; i++) {
        start(wait_until_open, (void *)&forever);
    }
    for (int n_waiting = 0; n_waiting < N;) {
        sl_sleep_ms(1);
        pthread_mutex_lock(&shared.mutex);
        n_waiting = shared.n_waiting;
        pthread_mutex_unlock(&shared.mutex);
    }
    for (int i = 1; i <= N; i++) {
        pthread_mutex_lock(&shared.mutex);
        shared.open = true;
        sl_bell_ring_held(&shared.changed, 1);
        pthread_mutex_unlock(&shared.mutex);
        wait_for_ends(i);
        sl_sleep_ms(5); // in which another one might wake
        assert_int_equal(shared.n_rung, i);
    }
}

// ---- who runs them ----------------------------------------------------------------------------------------------------------

static pthread_t runner; // of the fiber that ended last

static void note_runner(void *arg) {
    (void)arg;
    pthread_mutex_lock(&shared.mutex);
    runner = pthread_self();
    pthread_mutex_unlock(&shared.mutex);
    end();
}

static void await_ring(void) {
    pthread_mutex_lock(&shared.mutex);
    shared.n_waiting++;
    while (shared.n_rung < shared.n_waiting) {
        sl_bell_wait(&shared.changed, &shared.mutex, SL_NO_DEADLINE);
    }
    pthread_mutex_unlock(&shared.mutex);
}

static void note_runner_later(void *arg) {
    await_ring();
    note_runner(arg);
}

static bool is_waiting(int n) {
    pthread_mutex_lock(&shared.mutex);
    const bool waits = shared.n_waiting == n && shared.changed.waiters != NULL;
    pthread_mutex_unlock(&shared.mutex);
    return waits;
}

// Runs the fiber that waits, the n-th one, on this thread, unless that is suspended so long that a carrier is called.
static void run_waiting(int n, void (*computes_fn)(void)) {
    while (!is_waiting(n)) {
        sl_sleep_ms(1);
    }
    sl_carrier_begin(computes_fn);
    assert_null(sl_fiber_current());
    pthread_mutex_lock(&shared.mutex);
    shared.n_rung = n;
    sl_bell_ring(&shared.changed, &shared.mutex, 1);
    sl_carrier_end();
}

static void test_a_thread_runs_the_fiber_that_it_makes_ready(void **state) {
    (void)state;
    const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
    int n = 0;
    do {
        assert_true(sl_now_ns() < end_ns);
        start(note_runner_later, NULL);
        run_waiting(++n, NULL);
        wait_for_ends(n);
    } while (!pthread_equal(runner, pthread_self()));
    sl_carrier_begin(NULL);
    sl_carrier_end(); // with none
}

static void test_what_a_thread_leaves_the_carriers_run(void **state) {
    (void)state;
    enum { N = 200 };
    static const int64_t later = 20;
    sl_carrier_begin(NULL);
    for (int i = 0; i < N; i++) {
        start(i % 2 ? note_runner : wait_until_open, (void *)&later);
    }
    sl_carrier_end();
    wait_for_ends(N);
}

static void ring_and_compute(void *arg) {
    (void)arg;
    start(note_runner, NULL);
    for (const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);;) {
        pthread_mutex_lock(&shared.mutex);
        const bool has_ended = shared.n_ended > 0;
        pthread_mutex_unlock(&shared.mutex);
        if (has_ended) {
            break;
        }
        assert_true(sl_now_ns() < end_ns);
        sl_fiber_compute();
    }
    end();
}

static void test_a_fiber_that_computes_keeps_no_other_one(void **state) {
    (void)state;
    sl_sleep_ms(1); // the carriers become idle
    start(ring_and_compute, NULL);
    wait_for_ends(2);
}

static int n_computed;

static void count_computing(void) {
    n_computed++;
}

static void compute(void *arg) {
    await_ring();
    sl_fiber_compute();
    sl_fiber_compute();
    note_runner(arg);
}

// A thread that should soon do something else learns it once from each.
static void test_a_thread_learns_that_its_fiber_computes(void **state) {
    (void)state;
    const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
    int n = 0;
    do {
        assert_true(sl_now_ns() < end_ns);
        n_computed = 0;
        start(compute, NULL);
        run_waiting(++n, count_computing);
        wait_for_ends(n);
    } while (!pthread_equal(runner, pthread_self()));
    assert_int_equal(n_computed, 1);
}

static struct sl_bell opened;
static pthread_t runners[2]; // of the one that yields, and the other one
static int turns[2];

static void note_turn(int who) {
    SL_WITH_LOCK(&shared.mutex, runners[who] = pthread_self(); turns[who] = ++shared.turn);
    end();
}

static void come_first(void *) {
    pthread_mutex_lock(&shared.mutex);
    while (!shared.open) {
        sl_bell_wait(&opened, &shared.mutex, SL_NO_DEADLINE);
    }
    pthread_mutex_unlock(&shared.mutex);
    note_turn(1);
}

static void yield_to(void *) {
    await_ring();
    pthread_mutex_lock(&shared.mutex);
    shared.open = true;
    sl_bell_ring(&opened, &shared.mutex, 1);
    sl_fiber_yield();
    note_turn(0);
}

static void test_a_fiber_that_yields_lets_the_ready_ones_run_first(void **) {
    const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
    int n = 0;
    do {
        assert_true(sl_now_ns() < end_ns);
        shared.open = false;
        start(come_first, NULL);
        start(yield_to, NULL);
        run_waiting(++n, NULL);
        wait_for_ends(2 * n);
    } while (!pthread_equal(runners[0], pthread_self()) || !pthread_equal(runners[1], pthread_self()));
    assert_int_equal(turns[1] + 1, turns[0]);
    sl_fiber_yield(); // does nothing on a thread
}

// ---- what travels ----------------------------------------------------------------------------------------------------------

static void keep_values(void *arg) {
    const struct sl_trace trace = {.trace_id = {(uint8_t)(intptr_t)arg, 1}, .span_id = {2}};
    char name[16];
    snprintf(name, sizeof name, "job-%d", (int)(intptr_t)arg);
    sl_log_set_job(name);
    sl_trace_set(&trace);
    struct sl_locals *before = sl_locals();
    for (int i = 0; i < 50; i++) {
        sl_wait_ms(i % 3 == 0); // most carriers run it once
        assert_ptr_equal(sl_locals(), before);
        assert_string_equal(sl_locals()->job_id, name);
        assert_memory_equal(sl_trace_current().trace_id, trace.trace_id, sizeof trace.trace_id);
    }
    end();
}

static void test_values_travel_with_the_fiber(void **state) {
    (void)state;
    enum { N = 40 };
    sl_log_set_job("of the thread");
    for (intptr_t i = 0; i < N; i++) {
        start(keep_values, (void *)i);
    }
    wait_for_ends(N);
    assert_string_equal(sl_locals()->job_id, "of the thread");
}

static void have_none(void *arg) {
    (void)arg;
    const struct sl_trace trace = sl_trace_current();
    assert_string_equal(sl_locals()->job_id, "");
    assert_false(sl_trace_is_set(&trace));
    end();
}

static void set_job(void *arg) {
    (void)arg;
    sl_log_set_job("of a fiber that ends");
    end();
}

// ---- stacks ----------------------------------------------------------------------------------------------------------------

static void use_stack(void *arg) {
    volatile char bytes[64 << 10]; // more than a page, less than the stack
    for (size_t i = 0; i < sizeof bytes; i += 1024) {
        bytes[i] = (char)(intptr_t)arg;
    }
    sl_wait_ms(1);
    for (size_t i = 0; i < sizeof bytes; i += 1024) {
        assert_int_equal(bytes[i], (char)(intptr_t)arg);
    }
    end();
}

static void test_stacks_are_used_again_and_begin_anew(void **state) {
    (void)state;
    enum { N = 3000, AT_ONCE = 100 };
    for (int i = 0; i < N; i++) {
        start(i % 3 == 0 ? have_none : i % 3 == 1 ? use_stack : set_job, (void *)(intptr_t)i);
        if (i % AT_ONCE == AT_ONCE - 1) {
            wait_for_ends(i + 1);
        }
    }
}

static void need_much(void *arg) {
    volatile char bytes[3 << 20]; // more than a fiber has
    for (size_t i = 0; i < sizeof bytes; i += 4096) {
        bytes[i] = 1;
    }
    *(bool *)arg = sl_locals()->job_id[0] == 'j' && bytes[4096] == 1;
    pthread_mutex_lock(&shared.mutex);
    sl_bell_ring(&shared.changed, &shared.mutex, INT_MAX); // it may wake others
}

static void call_for_much(void *arg) {
    sl_log_set_job("job");
    for (int i = 0; i < 10; i++) {
        bool was_there = false;
        sl_fiber_call(need_much, &was_there);
        assert_true(was_there);
        sl_wait_ms(i % 2);
    }
    *(int *)arg += 1;
    end();
}

static void test_what_needs_much_stack_has_the_carrier_s(void **state) {
    (void)state;
    enum { N = 20 };
    int done[N] = {0};
    for (int i = 0; i < N; i++) {
        start(call_for_much, &done[i]);
    }
    wait_for_ends(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(done[i], 1);
    }
    bool on_thread = true;
    sl_log_set_job("");
    sl_fiber_call(need_much, &on_thread);
    assert_false(on_thread);
}

// A stack is a page that no code may touch, and what lies above it. Sanitizers have maps of their own.
static int count_stacks(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned long from, to, guard_end = 0;
    char line[4096], mode[5];
    int n = 0;
    while (fgets(line, sizeof line, maps) && sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3) {
        n += from == guard_end && to - from == SL_FIBER_STACK_BYTES - page;
        guard_end = strcmp(mode, "---p") == 0 && to - from == page ? to : 0;
    }
    fclose(maps);
    return n;
}

static void test_stacks_of_a_burst_are_given_back(void **state) {
    (void)state;
    enum { N = 1000, MOST = 64 };
    int64_t forever = -1;
    for (int i = 0; i < N; i++) {
        start(wait_until_open, &forever);
    }
    assert_true(count_stacks() >= N);
    pthread_mutex_lock(&shared.mutex);
    shared.open = true;
    sl_bell_ring(&shared.changed, &shared.mutex, INT_MAX);
    wait_for_ends(N);
    for (const int64_t end_ns = sl_deadline_in_ms(WAIT_MS); count_stacks() > MOST; sl_sleep_ms(1)) {
        assert_true(sl_now_ns() < end_ns);
    }
}

static int go_down(int depth) {
    volatile char bytes[4096];
    bytes[0] = (char)depth;
    return depth == 0 ? bytes[0] : go_down(depth - 1) + bytes[0];
}

static void use_too_much(void *arg) {
    *(int *)arg = go_down(1 << 20);
}

// In a process of its own, before this one has threads.
static void test_too_deep_a_stack_ends_the_process(void **state) {
    (void)state;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int sum;
        struct sl_error err;
        (void)!freopen("/dev/null", "w", stderr); // where a sanitizer tells of it
        if (sl_fiber_start("deep", use_too_much, &sum, &err) == SL_OK) {
            sl_sleep_ms(WAIT_MS);
        }
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_deep_a_stack_ends_the_process),
        cmocka_unit_test_setup(test_fibers_and_threads_take_turns, setup),
        cmocka_unit_test_setup(test_no_ring_is_lost_before_the_wait, setup),
        cmocka_unit_test_setup(test_a_fiber_that_is_woken_on_its_way_goes_on, setup),
        cmocka_unit_test_setup(test_many_wait_and_deadlines_pass, setup),
        cmocka_unit_test_setup(test_a_bell_wakes_as_many_as_it_says, setup),
        cmocka_unit_test_setup(test_a_thread_runs_the_fiber_that_it_makes_ready, setup),
        cmocka_unit_test_setup(test_what_a_thread_leaves_the_carriers_run, setup),
        cmocka_unit_test_setup(test_a_fiber_that_computes_keeps_no_other_one, setup),
        cmocka_unit_test_setup(test_a_thread_learns_that_its_fiber_computes, setup),
        cmocka_unit_test_setup(test_a_fiber_that_yields_lets_the_ready_ones_run_first, setup),
        cmocka_unit_test_setup(test_values_travel_with_the_fiber, setup),
        cmocka_unit_test_setup(test_stacks_are_used_again_and_begin_anew, setup),
        cmocka_unit_test_setup(test_what_needs_much_stack_has_the_carrier_s, setup),
        cmocka_unit_test_setup(test_stacks_of_a_burst_are_given_back, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
