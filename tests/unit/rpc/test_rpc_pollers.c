// SPDX-License-Identifier: Apache-2.0
// Purpose: the threads that poll: a call is answered whatever keeps the one that polls. Half of the tests run without the watcher, which would help.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "base/fiber/bell.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "net/rpc/rpc_internal.h"
#include "tests/unit/rpc/echo_service.h"

enum { WAIT_MS = 30000 }; // for what happens at once, on a machine that has much else to do

enum sl_status __real_sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                                      struct sl_error *err);
enum sl_status __wrap_sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                                      struct sl_error *err);

static bool has_watcher;

static void *end_at_once(void *) {
    return NULL;
}

enum sl_status __wrap_sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                                      struct sl_error *err) {
    return __real_sl_thread_start(name, strcmp(name, "rpc-watch") == 0 && !has_watcher ? end_at_once : fn, arg,
                                  thread_out, err);
}

static struct {
    struct echo echo;
    struct sl_rpc_server *server;
    struct sl_rpc_channel *channel;
    grpc_call *call; // of which only batches of no operation are started, which complete at once
    pthread_mutex_t mutex;
    bool is_over;
    int n_there; // tags and fibers that wait for the end
} shared = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void begin(bool watches, bool serves) {
    struct sl_error err;
    has_watcher = watches;
    shared.is_over = false;
    shared.n_there = 0;
    sl_rpc_init();
    echo_init(&shared.echo);
    if (serves) {
        assert_int_equal(echo_start(&shared.echo, "127.0.0.1:0", 64, &shared.server, &err), SL_OK);
    }
    const char *address = serves ? sl_rpc_server_address(shared.server) : "127.0.0.1:1";
    assert_int_equal(sl_rpc_channel_create(address, NULL, SL_ROLE_ANY, &shared.channel, &err), SL_OK);
    shared.call = sl_rpc_channel_call(shared.channel, "/test.Echo/Get", sl_deadline_in_ms(WAIT_MS), NULL);
}

static void end(void) {
    grpc_call_unref(shared.call);
    sl_rpc_channel_destroy(&shared.channel);
    sl_rpc_server_stop(&shared.server, 1000);
    sl_rpc_shutdown();
}

static void assert_answered(void) {
    struct sl_error err;
    assert_int_equal(echo_call(shared.channel, &echo_get, "a", WAIT_MS, &err), SL_OK);
}

static void complete(struct sl_rpc_tag *tag) {
    assert_int_equal(sl_rpc_batch_start(shared.call, NULL, 0, tag), SL_OK);
}

// Keeps its thread, as neither a tag nor a fiber may, until finish().
static void keep_thread(void) {
    SL_WITH_LOCK(&shared.mutex, shared.n_there++);
    for (bool is_over = false; !is_over; sl_sleep_ms(1)) {
        SL_WITH_LOCK(&shared.mutex, is_over = shared.is_over);
    }
    SL_WITH_LOCK(&shared.mutex, shared.n_there--);
}

static void await_there(int n) {
    const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
    for (int n_there = -1; n_there != n; sl_sleep_ms(1)) {
        assert_true(sl_now_ns() < end_ns);
        SL_WITH_LOCK(&shared.mutex, n_there = shared.n_there);
    }
}

static void finish(void) {
    SL_WITH_LOCK(&shared.mutex, shared.is_over = true);
    await_there(0);
}

static void keep(struct sl_rpc_tag *, bool) {
    keep_thread();
}

static void test_another_thread_polls_when_those_that_poll_are_stuck(void **state) {
    (void)state;
    enum { N = 4 };
    struct sl_rpc_tag tags[N];
    begin(true, true);
    for (int i = 0; i < N; i++) {
        tags[i].fn = keep;
        complete(&tags[i]);
        await_there(i + 1);
        assert_answered();
    }
    finish();
    assert_answered();
    end();
}

grpc_event __real_grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline, void *reserved);
grpc_event __wrap_grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline, void *reserved);

static atomic_bool shall_work; // the next thread that asks gRPC

// Works inside of gRPC, after a pause in which the watcher comes to rest: a third of the time, as on a machine that others use.
grpc_event __wrap_grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline, void *reserved) {
    if (atomic_exchange(&shall_work, false)) {
        sl_sleep_ms(50);
        SL_WITH_LOCK(&shared.mutex, shared.n_there++);
        for (bool is_over = false; !is_over; sl_sleep_ms(2)) {
            for (const int64_t end_ns = sl_now_ns() + SL_NS_PER_MS; sl_now_ns() < end_ns;) {
            }
            SL_WITH_LOCK(&shared.mutex, is_over = shared.is_over);
        }
        SL_WITH_LOCK(&shared.mutex, shared.n_there--);
    }
    return __real_grpc_completion_queue_next(queue, deadline, reserved);
}

static void go_on(struct sl_rpc_tag *, bool) {
    atomic_store(&shall_work, true);
}

static void test_another_thread_polls_while_one_works_inside_of_grpc(void **state) {
    (void)state;
    struct sl_rpc_tag tag = {go_on};
    begin(true, true);
    complete(&tag);
    await_there(1);
    assert_answered();
    finish();
    end();
}

static atomic_int n_busy;
static atomic_bool stays_busy;

static void complete_again(struct sl_rpc_tag *tag, bool) {
    if (atomic_load(&stays_busy)) {
        complete(tag);
    } else {
        atomic_fetch_sub(&n_busy, 1);
    }
}

// gRPC looks at sockets if no event is ready. A tag that completes itself must not keep the thread from the queue either.
static void test_sockets_are_read_while_an_event_is_always_ready(void **state) {
    (void)state;
    enum { N = 3 };
    struct sl_rpc_tag tags[N];
    begin(false, true);
    atomic_store(&stays_busy, true);
    for (int i = 0; i < N; i++) {
        tags[i].fn = complete_again;
        atomic_fetch_add(&n_busy, 1);
        complete(&tags[i]);
    }
    assert_answered();
    atomic_store(&stays_busy, false);
    assert_true(echo_reaches(&n_busy, 0, WAIT_MS));
    end();
}

static struct sl_bell rung;
static int n_rings, n_heard;

static void ring(struct sl_rpc_tag *, bool) {
    pthread_mutex_lock(&shared.mutex);
    n_rings++;
    sl_bell_ring(&rung, &shared.mutex, 1);
}

SL_APART static bool is_on_poller(void) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    return strcmp(name, "rpc-poll") == 0;
}

// Computes when the thread that polls runs it, and not another one that was faster.
static void compute(void *) {
    do {
        SL_LOCKED(&shared.mutex);
        for (n_heard = n_rings; n_heard == n_rings;) {
            sl_bell_wait(&rung, &shared.mutex, SL_NO_DEADLINE);
        }
    } while (!is_on_poller());
    sl_fiber_compute();
    keep_thread();
}

static void test_another_thread_polls_while_a_fiber_computes(void **state) {
    (void)state;
    struct sl_rpc_tag tag = {ring};
    struct sl_error err;
    begin(false, true);
    assert_int_equal(sl_fiber_start("computes", compute, NULL, &err), SL_OK);
    const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
    for (int n_there = 0; n_there == 0;) {
        assert_true(sl_now_ns() < end_ns);
        bool waits;
        SL_WITH_LOCK(&shared.mutex, n_there = shared.n_there; waits = rung.waiters != NULL);
        if (waits) {
            complete(&tag);
        }
        sl_sleep_ms(1);
    }
    assert_answered();
    finish();
    end();
}

static void let_go(struct sl_rpc_tag *, bool) {
    SL_WITH_LOCK(&shared.mutex, shared.is_over = true);
}

static void test_what_is_left_is_handled_at_the_end(void **state) {
    (void)state;
    struct sl_rpc_tag kept = {keep}, last = {let_go};
    begin(false, false);
    complete(&kept);
    await_there(1);
    complete(&last);
    end();
    assert_int_equal(shared.n_there, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_thread_polls_when_those_that_poll_are_stuck),
        cmocka_unit_test(test_another_thread_polls_while_one_works_inside_of_grpc),
        cmocka_unit_test(test_sockets_are_read_while_an_event_is_always_ready),
        cmocka_unit_test(test_another_thread_polls_while_a_fiber_computes),
        cmocka_unit_test(test_what_is_left_is_handled_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
