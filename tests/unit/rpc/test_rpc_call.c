// SPDX-License-Identifier: Apache-2.0
// Purpose: calls between a server and a client in one process: results, limits, cancellation, deadlines, relays,
// health.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>

#include "proto/grpc/health/v1/health.pb-c.h"
#include "proto/methods.h"
#include "tests/unit/rpc/echo_service.h"
#include "tests/unit/running_clock.h"

enum {
    MAX_CALLS = 8,
    BUSY_MS = 60000, // for what happens at once, on a machine that has much else to do
};

// front --next--> back, and a channel to each.
static struct {
    struct echo back_echo, front_echo;
    struct sl_rpc_server *back, *front;
    struct sl_rpc_channel *to_back, *to_front;
} at;

static int set_up(void **state) {
    (void)state;
    struct sl_error err = {0};
    echo_init(&at.back_echo);
    echo_init(&at.front_echo);
    if (echo_start(&at.back_echo, "127.0.0.1:0", MAX_CALLS, &at.back, &err) != SL_OK ||
        sl_rpc_channel_create(sl_rpc_server_address(at.back), NULL, SL_ROLE_ANY, &at.to_back, &err) != SL_OK ||
        echo_start(&at.front_echo, "127.0.0.1:0", 0, &at.front, &err) != SL_OK ||
        sl_rpc_channel_create(sl_rpc_server_address(at.front), NULL, SL_ROLE_ANY, &at.to_front, &err) != SL_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    at.front_echo.next = at.to_back;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    echo_stop(&at.front_echo, &at.front, 1000);
    echo_stop(&at.back_echo, &at.back, 1000);
    sl_rpc_channel_destroy(&at.to_front);
    sl_rpc_channel_destroy(&at.to_back);
    return echo_no_calls(2000) && !at.front && !at.back ? 0 : -1;
}

static void test_unary_returns_the_reply(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(echo_call(at.to_back, &echo_get, "job-1", 5000, &err), SL_OK);
}

static void test_unary_failures_carry_status_and_text(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(echo_call(at.to_back, &echo_get, "fail", 5000, &err), SL_ERR_PEER_STALE);
    assert_string_equal(err.text, "generation 7 of job 'fail' is gone");
    assert_int_equal(echo_call(at.to_front, &echo_relay, "fail", 5000, &err), SL_ERR_PEER_STALE);
    assert_string_equal(err.text, "generation 7 of job 'fail' is gone");
    assert_int_equal(echo_call(at.to_back, &echo_get, "silent", 5000, &err), SL_ERR_INTERNAL);
    const struct sl_rpc_method nothing = {"/test.Echo/Nothing", SL_RPC_UNARY, echo_get.request, echo_get.reply};
    assert_int_equal(echo_call(at.to_back, &nothing, "x", 5000, &err), SL_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "no method /test.Echo/Nothing");
    assert_int_equal(echo_call(at.to_back, &echo_get, "x", -1, &err), SL_ERR_INVALID); // no deadline
}

static void test_reason_and_culprit_travel(void **state) {
    (void)state;
    struct sl_error err;
    const struct {
        struct sl_rpc_channel *channel;
        const struct sl_rpc_method *method;
    } cases[] = {{at.to_back, &echo_get}, {at.to_front, &echo_relay}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(echo_call(cases[i].channel, cases[i].method, "blame", 5000, &err), SL_ERR_EXHAUSTED);
        assert_string_equal(err.text, "no room");
        assert_int_equal(err.reason, SL_REASON_STORE);
        assert_string_equal(err.culprit, "10.0.0.1:7010,[::1]:7011");
        assert_int_equal(echo_call(cases[i].channel, cases[i].method, "fail", 5000, &err), SL_ERR_PEER_STALE);
        assert_int_equal(err.reason, SL_REASON_NONE); // of this failure, not of the one before
        assert_string_equal(err.culprit, "");
        // A server keeps the reasons of its own connections to itself.
        assert_int_equal(echo_call(cases[i].channel, cases[i].method, "unconnected", 5000, &err), SL_ERR_PEER_LOST);
        assert_int_equal(err.reason, SL_REASON_NONE);
        assert_string_equal(err.culprit, "");
    }
    struct sl_rpc_stream *stream;
    ProtobufCMessage *reply;
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)"blame";
    assert_int_equal(
        sl_rpc_stream_open(at.to_back, &echo_get, &request.base, sl_deadline_in_ms(5000), NULL, &stream, &err), SL_OK);
    assert_int_equal(sl_rpc_stream_next(stream, 5000, &reply, &err), SL_ERR_EXHAUSTED);
    assert_int_equal(err.reason, SL_REASON_STORE);
    assert_string_equal(err.culprit, "10.0.0.1:7010,[::1]:7011");
    sl_rpc_stream_close(&stream);
    const struct sl_rpc_method nothing = {"/test.Echo/Nothing", SL_RPC_UNARY, echo_get.request, echo_get.reply};
    assert_int_equal(echo_call(at.to_back, &nothing, "x", 5000, &err), SL_ERR_UNSUPPORTED);
    assert_int_equal(err.reason, SL_REASON_UNKNOWN_METHOD);
}

static void test_unary_refuses_bad_and_big_requests(void **state) {
    (void)state;
    struct sl_error err;
    Grpc__Health__V1__HealthCheckResponse other = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    other.status =
        GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING; // a varint where a string should be
    const struct sl_rpc_method wrong = {echo_get.path, SL_RPC_UNARY, other.base.descriptor, echo_get.reply};
    assert_int_equal(sl_rpc_unary(at.to_back, &wrong, &other.base, sl_deadline_in_ms(5000), NULL, NULL, &err),
                     SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "sluice.v1.JobRequest"));
    char *big = malloc((1 << 20) + 1);
    assert_non_null(big);
    memset(big, 'x', 1 << 20);
    big[1 << 20] = '\0';
    assert_int_equal(echo_call(at.to_back, &echo_get, big, 5000, &err), SL_ERR_EXHAUSTED);
    free(big);
}

// Read to the end, with delays; the sequence must have no gaps.
static enum sl_status read_all(struct sl_rpc_stream *stream, int64_t delay_ms, int64_t *n_out, struct sl_error *err) {
    int64_t n = 0;
    for (;;) {
        ProtobufCMessage *event;
        enum sl_status status = sl_rpc_stream_next(stream, 5000, &event, err);
        if (status != SL_OK) {
            *n_out = n;
            return status;
        }
        assert_int_equal(((Sluice__V1__Event *)event)->sequence, ++n);
        protobuf_c_message_free_unpacked(event, NULL);
        sl_sleep_ms(delay_ms);
    }
}

static void test_calls_are_of_the_methods_types(void **state) {
    (void)state;
    struct sl_error err;
    struct sl_rpc_stream *stream;
    Sluice__V1__WatchRequest request = SLUICE__V1__WATCH_REQUEST__INIT;
    request.job_id = (char *)"other"; // what Get answers with a message of another type
    const int64_t deadline_ns = sl_deadline_in_ms(5000);
    assert_int_equal(sl_rpc_unary(at.to_back, &echo_get, &request.base, deadline_ns, NULL, NULL, &err),
                     SL_ERR_INTERNAL);
    assert_non_null(strstr(err.text, "is a sluice.v1.WatchRequest, not a sluice.v1.JobRequest"));
    assert_int_equal(sl_rpc_unary(at.to_back, &echo_watch, &request.base, deadline_ns, NULL, NULL, &err),
                     SL_ERR_INTERNAL);
    assert_int_equal(sl_rpc_stream_open(at.to_back, &echo_chat, &request.base, deadline_ns, NULL, &stream, &err),
                     SL_ERR_INTERNAL);
    assert_int_equal(echo_call(at.to_back, &echo_get, "other", 5000, &err), SL_ERR_INTERNAL);
    int64_t n;
    assert_int_equal(echo_open(at.to_back, &echo_watch, "other", 1, 5000, &stream, &err), SL_OK);
    assert_int_equal(read_all(stream, 0, &n, &err), SL_ERR_INTERNAL);
    sl_rpc_stream_close(&stream);
}

static void test_stream_delivers_everything_in_order(void **state) {
    (void)state;
    const struct {
        const struct sl_rpc_method *method;
        const char *id;
        int64_t n, delay_ms;
    } cases[] = {{&echo_watch, "x", 5000, 0},
                 {&echo_watch, "x", 0, 0},
                 {&echo_watch, "last", 1, 0},
                 {&echo_watch, "last", 3, 0},
                 {&echo_watch, "after the last", 1, 0},
                 {&echo_watch, "big", 60, 5}, // 3.6 MB to a slow reader: flow control
                 {&echo_follow, "x", 500, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_rpc_stream *stream;
        struct sl_error err;
        int64_t n;
        struct sl_rpc_channel *channel = cases[i].method == &echo_follow ? at.to_front : at.to_back;
        assert_int_equal(echo_open(channel, cases[i].method, cases[i].id, cases[i].n, 30000, &stream, &err), SL_OK);
        assert_int_equal(read_all(stream, cases[i].delay_ms, &n, &err), SL_ERR_NOT_FOUND);
        assert_int_equal(err.status, SL_OK); // the orderly end
        assert_int_equal(n, cases[i].n);
        ProtobufCMessage *event;
        assert_int_equal(sl_rpc_stream_next(stream, 0, &event, &err), SL_ERR_NOT_FOUND); // and it stays ended
        sl_rpc_stream_close(&stream);
        assert_null(stream);
    }
}

static void test_stream_tells_not_found_from_the_end(void **state) {
    (void)state;
    struct sl_rpc_stream *stream;
    struct sl_error err;
    int64_t n;
    assert_int_equal(echo_open(at.to_back, &echo_watch, "missing", 1, 5000, &stream, &err), SL_OK);
    assert_int_equal(read_all(stream, 0, &n, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(n, 0);
    assert_int_equal(err.status, SL_ERR_NOT_FOUND);
    assert_string_equal(err.text, "no such job");
    sl_rpc_stream_close(&stream);
}

static void test_stream_next_times_out_without_loss(void **state) {
    (void)state;
    struct sl_rpc_stream *stream;
    struct sl_error err;
    int n_again = 0;
    int64_t n = 0;
    assert_int_equal(echo_open(at.to_back, &echo_watch, "slow", 10, 5000, &stream, &err), SL_OK);
    for (;;) {
        ProtobufCMessage *event;
        enum sl_status status = sl_rpc_stream_next(stream, 2, &event, &err);
        if (status == SL_AGAIN) {
            n_again++;
        } else if (status == SL_OK) {
            assert_int_equal(((Sluice__V1__Event *)event)->sequence, ++n);
            protobuf_c_message_free_unpacked(event, NULL);
        } else {
            assert_int_equal(status, SL_ERR_NOT_FOUND);
            break;
        }
    }
    assert_int_equal(n, 10);
    assert_true(n_again > 10);
    sl_rpc_stream_close(&stream);
}

static void count_news(void *n) {
    atomic_fetch_add((atomic_int *)n, 1);
}

// Returns how often a stream whose messages are not taken has news.
static int count_ahead(const char *id, int least) {
    struct sl_rpc_stream *stream;
    struct sl_error err;
    ProtobufCMessage *event;
    atomic_int n_news = 0;
    assert_int_equal(echo_open(at.to_back, &echo_watch, id, 200, 30000, &stream, &err), SL_OK);
    sl_rpc_stream_on_news(stream, count_news, &n_news); // calls it at once
    for (int ms = 0; ms < 1000 && atomic_load(&n_news) < least; ms++) {
        sl_sleep_ms(1);
    }
    sl_sleep_ms(100);
    const int n = atomic_load(&n_news);
    assert_int_equal(sl_rpc_stream_next(stream, 0, &event, &err), SL_OK);
    assert_int_equal(((Sluice__V1__Event *)event)->sequence, 1);
    protobuf_c_message_free_unpacked(event, NULL);
    sl_rpc_stream_close(&stream); // with messages that are not read
    return n;
}

static void test_stream_reads_ahead_within_bounds(void **state) {
    (void)state;
    const char *const ids[] = {"x", "big"}; // the second's events have 60 kB each
    for (int i = 0; i < 2; i++) {
        const int least = i == 0 ? 8 : 2;
        const int64_t end_ns = sl_deadline_in_ms(60000);
        int n;
        while ((n = count_ahead(ids[i], least)) < least) { // some came before it counted
            assert_true(sl_now_ns() < end_ns);
        }
        assert_in_range(n, least, least + 2); // and the status may have come
    }
}

static void test_stream_close_stops_the_handler(void **state) {
    (void)state;
    const struct sl_rpc_method *const methods[] = {&echo_watch, &echo_follow};
    for (int i = 0; i < 2; i++) { // the second: through a relay
        struct sl_rpc_stream *stream;
        struct sl_error err;
        ProtobufCMessage *event;
        const int before = atomic_load(&at.back_echo.n_cancelled);
        assert_int_equal(echo_open(i ? at.to_front : at.to_back, methods[i], "x", 1000000000, 60000, &stream, &err),
                         SL_OK);
        assert_int_equal(sl_rpc_stream_next(stream, 5000, &event, &err), SL_OK);
        protobuf_c_message_free_unpacked(event, NULL);
        sl_rpc_stream_close(&stream);
        assert_true(echo_reaches(&at.back_echo.n_cancelled, before + 1, BUSY_MS));
    }
}

static void test_deadline_reaches_the_handler(void **state) {
    (void)state;
    struct sl_error err;
    const int before = atomic_load(&at.back_echo.n_woken);
    const int64_t start_ns = sl_now_ns(), running = running_ns();
    assert_int_equal(echo_call(at.to_back, &echo_get, "wait", 200, &err), SL_ERR_DEADLINE);
    assert_null(strstr(err.text, "Deadline Exceeded")); // gRPC's words, which say less than ours
    assert_true(running_ns() - running < 1500 * SL_NS_PER_MS);
    assert_true(echo_reaches(&at.back_echo.n_woken, before + 1, BUSY_MS));
    const int64_t seen_ms = (atomic_load(&at.back_echo.deadline_ns) - start_ns) / SL_NS_PER_MS;
    assert_in_range(seen_ms, 150, BUSY_MS); // without one it would be years away
    // Through a relay that sets none itself.
    assert_int_equal(echo_call(at.to_front, &echo_relay, "wait", 200, &err), SL_ERR_DEADLINE);
    assert_true(echo_reaches(&at.back_echo.n_woken, before + 2, BUSY_MS));
}

// Stand-in for a client that goes away: a unary method watched as a stream, which can be cancelled.
static struct sl_rpc_stream *open_wait(struct sl_rpc_channel *channel, const struct sl_rpc_method *method) {
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)"wait";
    struct sl_rpc_stream *stream;
    struct sl_error err;
    assert_int_equal(sl_rpc_stream_open(channel, method, &request.base, sl_deadline_in_ms(20000), NULL, &stream, &err),
                     SL_OK);
    return stream;
}

static void test_cancel_wakes_the_handler_under_load(void **state) {
    (void)state;
    struct sl_rpc_stream *load[2], *waiting[2];
    struct sl_error err;
    for (int i = 0; i < 2; i++) { // two readers that keep the queue busy
        assert_int_equal(echo_open(at.to_back, &echo_watch, "x", 1000000000, 60000, &load[i], &err), SL_OK);
    }
    const int before = atomic_load(&at.back_echo.n_woken);
    waiting[0] = open_wait(at.to_back, &echo_get);
    waiting[1] = open_wait(at.to_front, &echo_relay);
    int64_t cancelled_ns = 0, n_read = 0;
    for (int64_t end_ns = sl_deadline_in_ms(5000); sl_now_ns() < end_ns; n_read++) {
        ProtobufCMessage *event;
        assert_int_equal(sl_rpc_stream_next(load[n_read % 2], 5000, &event, &err), SL_OK);
        protobuf_c_message_free_unpacked(event, NULL);
        if (!cancelled_ns && atomic_load(&at.back_echo.n_waiting) == 2 && n_read > 1000) {
            sl_rpc_stream_cancel(waiting[0]);
            sl_rpc_stream_cancel(waiting[1]);
            cancelled_ns = running_ns();
        }
        if (atomic_load(&at.back_echo.n_woken) == before + 2) {
            break;
        }
    }
    const int64_t took_ms = (running_ns() - cancelled_ns) / SL_NS_PER_MS;
    assert_int_equal(atomic_load(&at.back_echo.n_woken), before + 2);
    print_message("cancellation seen after %lld ms under load\n", (long long)took_ms);
    assert_true(took_ms < 1000);
    for (int i = 0; i < 2; i++) {
        ProtobufCMessage *reply;
        assert_int_equal(sl_rpc_stream_next(waiting[i], 2000, &reply, &err), SL_ERR_CANCELLED);
        sl_rpc_stream_close(&waiting[i]);
        sl_rpc_stream_close(&load[i]);
    }
    assert_true(echo_no_calls(2000));
}

static void test_calls_over_the_bound_are_refused_at_once(void **state) {
    (void)state;
    struct sl_rpc_stream *waiting[MAX_CALLS];
    struct sl_error err;
    for (int i = 0; i < MAX_CALLS; i++) {
        waiting[i] = open_wait(at.to_back, &echo_get);
    }
    assert_true(echo_reaches(&at.back_echo.n_waiting, MAX_CALLS, BUSY_MS));
    const int64_t start_ns = running_ns();
    assert_int_equal(echo_call(at.to_back, &echo_get, "x", 5000, &err), SL_ERR_EXHAUSTED);
    assert_true(running_ns() - start_ns < 500 * SL_NS_PER_MS);
    assert_non_null(strstr(err.text, "retry in 1000 ms"));
    for (int i = 0; i < MAX_CALLS; i++) {
        sl_rpc_stream_close(&waiting[i]);
    }
    assert_true(echo_reaches(&at.back_echo.n_waiting, 0, BUSY_MS));
    assert_true(echo_no_calls(2000));
    assert_int_equal(echo_call(at.to_back, &echo_get, "x", 5000, &err), SL_OK); // there is room again
}

enum { N_CALLERS = 6, N_CALLS = 600 };

static void *call_many(void *failures) {
    for (int i = 0; i < N_CALLS; i++) {
        struct sl_error err;
        char id[32];
        snprintf(id, sizeof id, "job-%d", i);
        const bool relay = i % 4 == 0;
        if (echo_call(relay ? at.to_front : at.to_back, relay ? &echo_relay : &echo_get, id, 20000, &err) != SL_OK) {
            print_error("%s\n", err.text);
            atomic_fetch_add((atomic_int *)failures, 1);
        }
    }
    return NULL;
}

static void test_many_concurrent_calls_leave_nothing_behind(void **state) {
    (void)state;
    pthread_t callers[N_CALLERS];
    atomic_int failures = 0;
    struct sl_error err;
    const int64_t start_ns = sl_now_ns();
    for (int i = 0; i < N_CALLERS; i++) {
        assert_int_equal(sl_thread_start("caller", call_many, &failures, &callers[i], &err), SL_OK);
    }
    for (int i = 0; i < N_CALLERS; i++) {
        pthread_join(callers[i], NULL);
    }
    print_message("%.0f calls/s\n", N_CALLERS * N_CALLS / ((double)(sl_now_ns() - start_ns) / SL_NS_PER_S));
    assert_int_equal(atomic_load(&failures), 0);
    assert_true(echo_no_calls(2000));
}

static int health_of(const char *service, struct sl_error *err) {
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)service;
    ProtobufCMessage *reply;
    const enum sl_status status = sl_rpc_unary(at.to_back, &sl_method_grpc_health_v1_health_check, &request.base,
                                               sl_deadline_in_ms(5000), NULL, &reply, err);
    if (status != SL_OK) {
        return status;
    }
    const int serving = (int)((Grpc__Health__V1__HealthCheckResponse *)reply)->status;
    protobuf_c_message_free_unpacked(reply, NULL);
    return serving;
}

static int next_health(struct sl_rpc_stream *stream, int64_t wait_ms, struct sl_error *err) {
    ProtobufCMessage *reply;
    const enum sl_status status = sl_rpc_stream_next(stream, wait_ms, &reply, err);
    if (status != SL_OK) {
        return status == SL_AGAIN ? 100 : (int)status;
    }
    const int serving = (int)((Grpc__Health__V1__HealthCheckResponse *)reply)->status;
    protobuf_c_message_free_unpacked(reply, NULL);
    return serving;
}

static void test_health_is_told_to_watchers(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(health_of("", &err), 1);
    assert_int_equal(health_of("test.Echo", &err), 1);
    assert_int_equal(health_of("nobody", &err), SL_ERR_NOT_FOUND);
    struct sl_rpc_stream *watchers[2];
    const char *const services[] = {"test.Echo", "nobody"};
    for (int i = 0; i < 2; i++) {
        Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
        request.service = (char *)services[i];
        assert_int_equal(sl_rpc_stream_open(at.to_back, &sl_method_grpc_health_v1_health_watch, &request.base,
                                            SL_NO_DEADLINE, NULL, &watchers[i], &err),
                         SL_OK);
    }
    assert_int_equal(next_health(watchers[0], 5000, &err), 1);
    assert_int_equal(next_health(watchers[1], 5000, &err), 3);
    assert_int_equal(next_health(watchers[0], 50, &err), 100); // nothing new
    sl_rpc_health_set(at.back_echo.standard.health, "test.Echo", false);
    assert_int_equal(next_health(watchers[0], 5000, &err), 2);
    assert_int_equal(health_of("test.Echo", &err), 2);
    assert_int_equal(health_of("", &err), 1);
    sl_rpc_health_set(at.back_echo.standard.health, "test.Echo", true);
    assert_int_equal(next_health(watchers[0], 5000, &err), 1);
    sl_rpc_stream_close(&watchers[0]); // and the other watcher is sent away by stopping
    const int64_t start_ns = running_ns();
    echo_stop(&at.back_echo, &at.back, 5000);
    assert_true(running_ns() - start_ns < 3000 * SL_NS_PER_MS);
    assert_int_equal(next_health(watchers[1], 1000, &err), SL_ERR_PEER_LOST);
    sl_rpc_stream_close(&watchers[1]);
}

int main(void) {
    sl_rpc_init();
#define WITH_SERVERS(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_SERVERS(test_unary_returns_the_reply),
        WITH_SERVERS(test_unary_failures_carry_status_and_text),
        WITH_SERVERS(test_reason_and_culprit_travel),
        WITH_SERVERS(test_unary_refuses_bad_and_big_requests),
        WITH_SERVERS(test_calls_are_of_the_methods_types),
        WITH_SERVERS(test_stream_delivers_everything_in_order),
        WITH_SERVERS(test_stream_tells_not_found_from_the_end),
        WITH_SERVERS(test_stream_next_times_out_without_loss),
        WITH_SERVERS(test_stream_reads_ahead_within_bounds),
        WITH_SERVERS(test_stream_close_stops_the_handler),
        WITH_SERVERS(test_deadline_reaches_the_handler),
        WITH_SERVERS(test_cancel_wakes_the_handler_under_load),
        WITH_SERVERS(test_calls_over_the_bound_are_refused_at_once),
        WITH_SERVERS(test_many_concurrent_calls_leave_nothing_behind),
        WITH_SERVERS(test_health_is_told_to_watchers),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}
