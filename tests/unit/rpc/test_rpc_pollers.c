// SPDX-License-Identifier: Apache-2.0
// Purpose: the threads that poll: a call is answered whatever keeps the one that polls. Half of the tests run without
// the watcher, which would help.
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

enum { ALL = 1000 };

static bool has_watcher;
static int n_pollers, most_pollers = ALL; // that are started

static void *end_at_once(void *) {
    return NULL;
}

enum sl_status __wrap_sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                                      struct sl_error *err) {
    SL_FAIL_IF(strcmp(name, "rpc-poll") == 0 && n_pollers++ >= most_pollers, err, SL_ERR_EXHAUSTED, "no more threads");
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
    n_pollers = 0;
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
    const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
    struct sl_error err;
    enum sl_status status;
    do { // a busy machine may take longer to connect than a channel waits
        status = echo_call(shared.channel, &echo_get, "a", WAIT_MS, &err);
    } while (status == SL_ERR_PEER_LOST && sl_now_ns() < end_ns);
    assert_int_equal(status, SL_OK);
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

static int count_there(void) {
    SL_LOCKED(&shared.mutex);
    return shared.n_there;
}

static void await_there(int n) {
    for (const int64_t end_ns = sl_deadline_in_ms(WAIT_MS); count_there() != n; sl_sleep_ms(1)) {
        assert_true(sl_now_ns() < end_ns);
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

// Works inside of gRPC, after a pause in which the watcher comes to rest: a third of the time, as on a machine that
// others use.
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

static atomic_int n_gone_on;

static void go_on(struct sl_rpc_tag *, bool) {
    atomic_store(&shall_work, true);
    atomic_fetch_add(&n_gone_on, 1);
}

static void test_another_thread_polls_while_one_works_inside_of_grpc(void **state) {
    (void)state;
    struct sl_rpc_tag tag = {go_on};
    atomic_store(&n_gone_on, 0);
    begin(true, true);
    for (int n = 1; count_there() == 0; n++) { // a second one that was wanted for a moment leaves after its event
        complete(&tag);
        assert_true(echo_reaches(&n_gone_on, n, WAIT_MS));
        for (int i = 0; i < 1000 && count_there() == 0; i++) {
            sl_sleep_ms(1);
        }
    }
    assert_answered();
    finish();
    end();
}

int64_t __real_sl_deadline_in_ms(int64_t ms);
int64_t __wrap_sl_deadline_in_ms(int64_t ms);

static atomic_int slowness = 1; // of the watcher

SL_APART static bool is_on(const char *wanted) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    return strcmp(name, wanted) == 0;
}

int64_t __wrap_sl_deadline_in_ms(int64_t ms) {
    const int times = atomic_load(&slowness);
    return __real_sl_deadline_in_ms(times > 1 && is_on("rpc-watch") ? ms * times : ms);
}

static struct dozer {
    struct sl_rpc_tag tag;
    atomic_bool is_queued;
} dozers[64];
static atomic_int n_dozing;
static atomic_bool two_doze;

// Blocks for much less than the time between two looks of the watcher, and uses no processor.
static void doze(struct sl_rpc_tag *tag, bool) {
    if (atomic_fetch_add(&n_dozing, 1) > 0) {
        atomic_store(&two_doze, true);
    }
    sl_sleep_ms(2);
    atomic_fetch_sub(&n_dozing, 1);
    atomic_store(&((struct dozer *)tag)->is_queued, false);
}

static void test_another_thread_polls_when_one_hardly_waits_for_events(void **state) {
    (void)state;
    const int n = sizeof dozers / sizeof *dozers;
    const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
    atomic_store(&slowness, 10); // else a tag is suspended from one look to the next, now and then: stuck
    begin(true, false);
    for (; !atomic_load(&two_doze); sl_sleep_ms(1)) {
        assert_true(sl_now_ns() < end_ns);
        for (int i = 0; i < n; i++) { // this thread completes them: a poller's own would be one event
            if (!atomic_exchange(&dozers[i].is_queued, true)) {
                dozers[i].tag.fn = doze;
                complete(&dozers[i].tag);
            }
        }
    }
    end(); // handles those that are left
    atomic_store(&slowness, 1);
    assert_int_equal(atomic_load(&n_dozing), 0);
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

// gRPC looks at sockets if no event is ready. A tag that completes itself must not keep the thread from the queue
// either.
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
static atomic_int n_rings; // changed under the mutex

static void ring(struct sl_rpc_tag *, bool) {
    pthread_mutex_lock(&shared.mutex);
    n_rings++;
    sl_bell_ring(&rung, &shared.mutex, 1);
}

static void await_ring(void) {
    SL_LOCKED(&shared.mutex);
    for (const int n_heard = n_rings; n_heard == n_rings;) {
        sl_bell_wait(&rung, &shared.mutex, SL_NO_DEADLINE);
    }
}

// Rings if a fiber waits for it. Returns whether one did.
static bool ring_fiber(struct sl_rpc_tag *tag) {
    const int n_before = atomic_load(&n_rings);
    bool waits;
    SL_WITH_LOCK(&shared.mutex, waits = rung.waiters != NULL);
    if (waits) {
        complete(tag);
        assert_true(echo_reaches(&n_rings, n_before + 1, WAIT_MS));
    }
    sl_sleep_ms(1);
    return waits;
}

// Computes when the thread that polls runs it, and not another one that was faster.
static void compute(void *) {
    do {
        await_ring();
    } while (!is_on("rpc-poll"));
    sl_fiber_compute();
    keep_thread();
}

static void test_another_thread_polls_while_a_fiber_computes(void **state) {
    (void)state;
    struct sl_rpc_tag tag = {ring};
    struct sl_error err;
    begin(false, true);
    assert_int_equal(sl_fiber_start("computes", compute, NULL, &err), SL_OK);
    for (const int64_t end_ns = sl_deadline_in_ms(WAIT_MS); count_there() == 0;) {
        assert_true(sl_now_ns() < end_ns);
        (void)ring_fiber(&tag);
    }
    assert_answered();
    finish();
    end();
}

static atomic_int n_blocking;

// Blocks each thread that polls and runs it.
static void block(void *) {
    for (bool is_over = false; !is_over;) {
        await_ring();
        if (is_on("rpc-poll")) {
            keep_thread();
        }
        SL_WITH_LOCK(&shared.mutex, is_over = shared.is_over);
    }
    atomic_fetch_sub(&n_blocking, 1);
}

// However few could be started, fibers that block do not keep all of them.
static void test_one_of_two_threads_that_poll_runs_no_fibers(void **state) {
    (void)state;
    struct sl_rpc_tag tag = {ring};
    struct sl_error err;
    most_pollers = 2;
    begin(true, true);
    for (int i = 0; i < 2; i++) {
        const int64_t end_ns = sl_deadline_in_ms(WAIT_MS);
        atomic_fetch_add(&n_blocking, 1);
        assert_int_equal(sl_fiber_start("blocks", block, NULL, &err), SL_OK);
        for (int n = 0; count_there() == i && (i == 0 || n < 100);) {
            assert_true(sl_now_ns() < end_ns);
            n += ring_fiber(&tag);
        }
    }
    assert_int_equal(count_there(), 1);
    assert_answered();
    finish();
    while (atomic_load(&n_blocking) > 0) {
        (void)ring_fiber(&tag);
    }
    end();
    most_pollers = ALL;
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
        cmocka_unit_test(test_another_thread_polls_when_one_hardly_waits_for_events),
        cmocka_unit_test(test_sockets_are_read_while_an_event_is_always_ready),
        cmocka_unit_test(test_another_thread_polls_while_a_fiber_computes),
        cmocka_unit_test(test_one_of_two_threads_that_poll_runs_no_fibers),
        cmocka_unit_test(test_what_is_left_is_handled_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
