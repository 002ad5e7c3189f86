// SPDX-License-Identifier: Apache-2.0
// Purpose: handlers on fibers: what they send arrives in order, and neither it nor what they wait for needs another thread.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/locals.h"
#include "base/log.h"
#include "net/rpc/rpc_internal.h"
#include "net/rpc/rpc_tsan.h"
#include "proto/sluice/v1/inference.pb-c.h"

enum {
    WAIT_MS = 60000, // for what happens at once, on a machine that has much else to do
    MANY = 100,      // events that are long
    LONG = 30000,
};

static const struct sl_rpc_method watch = {"/test.Fibers/Watch", SL_RPC_SERVER_STREAM,
                                           &sluice__v1__watch_request__descriptor, &sluice__v1__event__descriptor};
static const struct sl_rpc_method *const methods[] = {&watch};
static const struct sl_rpc_service service = {"test.Fibers", methods, 1};

static struct {
    struct sl_rpc_server *server;
    struct sl_rpc_channel *channel;
    atomic_int n_inline;     // completions that a fiber's own thread has taken
    atomic_int n_of_job;     // of which in the name of the fiber's job
    atomic_int n_on_pollers; // handlers that a polling thread has begun, or gone on with
    atomic_int n_cancelled;
} shared;

int __real_grpc_completion_queue_thread_local_cache_flush(grpc_completion_queue *queue, void **tag, int *ok);
int __wrap_grpc_completion_queue_thread_local_cache_flush(grpc_completion_queue *queue, void **tag, int *ok);

// A tag that stands before gRPC's own, and sees what that would see.
struct look {
    struct sl_rpc_tag tag, *own;
};

static void look(struct sl_rpc_tag *tag, bool ok) {
    struct sl_rpc_tag *own = ((struct look *)tag)->own;
    SL_RPC_TAKE_OVER(own);
    atomic_fetch_add(&shared.n_of_job, sl_locals()->job_id[0] != '\0');
    own->fn(own, ok);
}

int __wrap_grpc_completion_queue_thread_local_cache_flush(grpc_completion_queue *queue, void **tag, int *ok) {
    static _Thread_local struct look one = {.tag = {look}};
    const int found = __real_grpc_completion_queue_thread_local_cache_flush(queue, tag, ok);
    atomic_fetch_add(&shared.n_inline, found);
    if (found) {
        one.own = *tag;
        *tag = &one.tag;
    }
    return found;
}

SL_APART static void note_thread(void) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    atomic_fetch_add(&shared.n_on_pollers, strcmp(name, "rpc-poll") == 0);
}

// Sends as many events as are asked for; without a number, until the client goes.
static enum sl_status send_events(void *context, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                  struct sl_error *err) {
    (void)context;
    const int64_t n = ((const Sluice__V1__WatchRequest *)message)->from_sequence;
    note_thread();
    sl_log_set_job("job-of-a-fiber");
    static char text[LONG + 1]; // several times what gRPC lets wait
    memset(text, 'x', LONG);
    for (int64_t i = 1; i <= n || n == 0; i++) {
        Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
        uint8_t packed[LONG + 64]; // more than the frames of a program may have
        event.sequence = i;
        event.job_id = n == MANY ? text : (char *)"job";
        const size_t n_bytes = sluice__v1__event__pack(&event, packed);
        if (sl_rpc_call_send_packed(call, packed, n_bytes, i == n || i % 3 != 0) != SL_OK) {
            atomic_fetch_add(&shared.n_cancelled, 1);
            return sl_fail(err, SL_ERR_CANCELLED, "the client is gone");
        }
        note_thread(); // the fiber may have waited for the event before
    }
    return SL_OK;
}

static int set_up(void **state) {
    (void)state;
    static const struct sl_rpc_handler handlers[] = {{&watch, send_events, SL_ROLE_ANY}};
    struct sl_rpc_implementation services[] = {SL_RPC_IMPLEMENTATION(&service, handlers, NULL)};
    services[0].on_fibers = true;
    const struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = services, .n_services = 1};
    struct sl_error err;
    sl_rpc_init();
    return sl_rpc_server_start(&config, &shared.server, &err) == SL_OK &&
                   sl_rpc_channel_create(sl_rpc_server_address(shared.server), NULL, SL_ROLE_ANY, &shared.channel,
                                         &err) == SL_OK
               ? 0
               : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_rpc_channel_destroy(&shared.channel);
    sl_rpc_server_stop(&shared.server, 1000);
    sl_rpc_shutdown();
    return 0;
}

static struct sl_rpc_stream *ask(int64_t n) {
    Sluice__V1__WatchRequest request = SLUICE__V1__WATCH_REQUEST__INIT;
    request.job_id = "job";
    request.from_sequence = n;
    struct sl_rpc_stream *stream = NULL;
    struct sl_error err;
    assert_int_equal(
        sl_rpc_stream_open(shared.channel, &watch, &request.base, sl_deadline_in_ms(WAIT_MS), NULL, &stream, &err),
        SL_OK);
    return stream;
}

// Reads n events, which are numbered.
static void read_events(struct sl_rpc_stream *stream, int64_t n) {
    struct sl_error err;
    for (int64_t i = 1; i <= n; i++) {
        ProtobufCMessage *message = NULL;
        assert_int_equal(sl_rpc_stream_next(stream, WAIT_MS, &message, &err), SL_OK);
        assert_int_equal(((const Sluice__V1__Event *)message)->sequence, i);
        protobuf_c_message_free_unpacked(message, NULL);
    }
}

static void test_events_that_wait_for_the_next_one_arrive_in_order(void **state) {
    (void)state;
    static const int64_t n_events[] = {1, 2, 3, MANY, 3000};
    for (size_t k = 0; k < sizeof n_events / sizeof *n_events; k++) {
        struct sl_rpc_stream *stream = ask(n_events[k]);
        ProtobufCMessage *message = NULL;
        struct sl_error err = {0};
        read_events(stream, n_events[k]);
        assert_int_equal(sl_rpc_stream_next(stream, WAIT_MS, &message, &err), SL_ERR_NOT_FOUND);
        assert_int_equal(err.status, SL_OK); // the orderly end
        sl_rpc_stream_close(&stream);
    }
    assert_true(atomic_load(&shared.n_inline) > 0);
    assert_int_equal(atomic_load(&shared.n_of_job), 0); // they may be other calls'
}

static void test_a_polling_thread_runs_the_fiber_that_it_makes_ready(void **state) {
    (void)state;
    for (const int64_t end_ns = sl_deadline_in_ms(WAIT_MS); atomic_load(&shared.n_on_pollers) == 0;) {
        assert_true(sl_now_ns() < end_ns);
        struct sl_rpc_stream *stream = ask(MANY);
        read_events(stream, MANY);
        sl_rpc_stream_close(&stream);
    }
}

// More than pollers that run fibers. Each fills what its client may have unread, and waits.
static void test_clients_that_do_not_read_keep_no_thread(void **state) {
    (void)state;
    enum { N = 30 };
    struct sl_rpc_stream *streams[N];
    atomic_store(&shared.n_cancelled, 0);
    for (int i = 0; i < N; i++) {
        streams[i] = ask(0);
    }
    struct sl_rpc_stream *other = ask(10);
    read_events(other, 10);
    sl_rpc_stream_close(&other);
    for (int i = 0; i < N; i++) {
        read_events(streams[i], 10);
        sl_rpc_stream_close(&streams[i]);
    }
    for (const int64_t end_ns = sl_deadline_in_ms(WAIT_MS); atomic_load(&shared.n_cancelled) < N; sl_sleep_ms(1)) {
        assert_true(sl_now_ns() < end_ns);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_that_wait_for_the_next_one_arrive_in_order),
        cmocka_unit_test(test_a_polling_thread_runs_the_fiber_that_it_makes_ready),
        cmocka_unit_test(test_clients_that_do_not_read_keep_no_thread),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
