// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: requests between two fabrics of one process, and of two where one is killed. Replies arrive whole at the thread that asked,
 *          every end is reported, nothing is written after an end, and nothing leaks.
 */
#include "net/fabric/request.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "desk.h"
#include "tests/unit/running_clock.h"

#define MIB (1u << 20)

static const char *transport; // of the group that runs

struct pair {
    struct sl_fabric *requester, *responder;
    struct sl_connection *connection;
    struct desk desk;
};

static struct sl_connection *open_line(struct sl_fabric *fabric, const char *address, uint64_t epoch) {
    struct sl_connection *connection = NULL;
    struct sl_error err = {0};
    if (sl_connection_open(fabric, address, epoch, &connection, &err) != SL_OK) {
        fail_msg("no connection: %s", err.text);
    }
    return connection;
}

static void await_partings(struct sl_fabric *fabric) {
    struct sl_fabric_stats stats;
    int64_t deadline = sl_deadline_in_ms(5000);
    do {
        sl_fabric_get_stats(fabric, &stats);
    } while (stats.peers_connected > 0 && sl_now_ns() < deadline);
    assert_int_equal(stats.peers_connected, 0);
}

static void start_pair(struct pair *pair, int n_threads, const char *inject) {
    pair->responder = start_fabric(transport, "127.0.0.1:0", inject, CALM_HEARTBEAT_MS);
    pair->requester = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    open_desk(&pair->desk, pair->responder, n_threads);
    pair->connection = open_line(pair->requester, sl_fabric_address(pair->responder), sl_fabric_epoch(pair->responder));
}

static void stop_pair(struct pair *pair) {
    sl_connection_close(&pair->connection);
    assert_null(pair->connection);
    stop_fabric(&pair->requester);
    await_partings(pair->responder); // a request that was given up may still be on its way to the desk
    close_desk(&pair->desk);
    stop_fabric(&pair->responder);
}

static struct sl_fabric_request *open_request(struct sl_connection *connection, size_t body_bytes, uint64_t seed,
                                              size_t reply_bytes, uint64_t work_ms, void *reply, size_t capacity,
                                              int64_t deadline_ms) {
    uint8_t *body = malloc(body_bytes);
    make_body(body, body_bytes, seed, reply_bytes, work_ms);
    struct sl_fabric_request *request = NULL;
    struct sl_error err = {0};
    if (sl_fabric_request_open(
            connection, &(struct sl_fabric_question){body, body_bytes, reply, capacity, sl_deadline_in_ms(deadline_ms)},
            &request, &err) != SL_OK) {
        fail_msg("no request: %s", err.text);
    }
    memset(body, 0xdd, body_bytes); // it was copied
    free(body);
    return request;
}

static enum sl_status wait_request(struct sl_fabric_request *request, size_t *bytes_out) {
    struct sl_error err = {0};
    return sl_fabric_request_wait(request, sl_deadline_in_ms(20000), bytes_out, &err);
}

static void test_request_is_replied_to_at_every_size(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 100, 4095, 8193, 32768, 65537, 262144, 262145, 600001, MIB};
    enum { N = sizeof sizes / sizeof *sizes };
    struct pair pair;
    start_pair(&pair, 1, NULL);
    uint8_t *reply = malloc(MIB + 64);
    for (size_t i = 0; i < 2 * N; i++) {
        size_t body_bytes = i < N ? sizes[N - 1 - i] : 64, reply_bytes = sizes[i % N];
        body_bytes = body_bytes < sizeof(struct desk_body) ? sizeof(struct desk_body) : body_bytes;
        memset(reply, 0xee, MIB + 64);
        struct sl_fabric_request *request =
            open_request(pair.connection, body_bytes, i, reply_bytes, 0, reply, reply_bytes, 20000);
        size_t bytes = 12345;
        assert_int_equal(wait_request(request, &bytes), SL_OK);
        assert_true(sl_fabric_request_is_done(request));
        assert_int_equal(bytes, reply_bytes);
        assert_true(reply_is_right(reply, bytes, i));
        for (size_t k = 0; k < 64; k++) { // not a byte beyond
            assert_int_equal(reply[bytes + k], 0xee);
        }
        sl_fabric_request_close(&request);
        assert_null(request);
    }
    assert_string_equal(sl_connection_transport(pair.connection), is_link(transport) ? transport : "shm");
    free(reply);
    stop_pair(&pair);
}

struct requester {
    struct sl_connection *connection;
    uint64_t seed;
    int n_requests, n_wrong;
};

// Eight requests at a time, of all sizes up to 40 KB.
static void *request_many(void *arg) {
    enum { AT_ONCE = 8, CAPACITY = 40000 };
    struct requester *it = arg;
    uint8_t *replies = malloc(AT_ONCE * CAPACITY);
    for (int n = 0; n < it->n_requests; n += AT_ONCE) {
        struct sl_fabric_request *requests[AT_ONCE];
        uint64_t seed = it->seed + (uint64_t)n;
        for (size_t i = 0; i < AT_ONCE; i++) {
            size_t bytes = (seed + i) * 7919 % CAPACITY;
            requests[i] = open_request(it->connection, 64 + bytes % 2000, seed + i, bytes, 0, replies + i * CAPACITY,
                                       bytes, 60000);
        }
        for (size_t i = 0; i < AT_ONCE; i++) {
            size_t bytes = 0;
            struct sl_error err = {0};
            enum sl_status status = sl_fabric_request_wait(requests[i], SL_NO_DEADLINE, &bytes, &err);
            it->n_wrong += status != SL_OK || bytes != (seed + i) * 7919 % CAPACITY ||
                           !reply_is_right(replies + i * CAPACITY, bytes, seed + i);
            sl_fabric_request_close(&requests[i]);
        }
    }
    free(replies);
    return NULL;
}

static void test_requests_of_many_threads_do_not_mix(void **state) {
    (void)state;
    enum { N = 4 };
    struct pair pair;
    start_pair(&pair, 2, NULL);
    struct requester requesters[N];
    pthread_t threads[N];
    for (int i = 0; i < N; i++) {
        requesters[i] = (struct requester){pair.connection, (uint64_t)i << 32, 2504, 0};
        assert_int_equal(sl_thread_start("requester", request_many, &requesters[i], &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < N; i++) { // all of them, before an assertion leaves what they use
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(requesters[i].n_wrong, 0);
    }
    assert_int_equal(desk_read(&pair.desk, &pair.desk.n_taken), N * 2504);
    stop_pair(&pair);
}

// Until the responder has heard that so many of what is queued are not asked for any more.
static void await_cancelled(struct desk *desk, size_t n) {
    int64_t deadline = sl_deadline_in_ms(20000);
    while (desk_queued_cancelled(desk) < n && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_int_equal(desk_queued_cancelled(desk), n);
}

static void test_deadline_ends_a_request(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    request_many(&(struct requester){pair.connection, 4, 8,
                                     0}); // now the connection is up, and what is asked arrives long before its end
    hold_desk(&pair.desk, true);
    uint8_t reply[1000];
    memset(reply, 0xee, sizeof reply);
    size_t bytes = 77;
    struct sl_fabric_request *lasting =
        open_request(pair.connection, 64, 3, sizeof reply, 0, reply, sizeof reply, 60000);
    assert_int_equal(sl_fabric_request_wait(lasting, sl_deadline_in_ms(20), &bytes, NULL), SL_AGAIN);
    assert_int_equal(sl_fabric_request_wait(lasting, 0, &bytes, NULL), SL_AGAIN);
    assert_false(sl_fabric_request_is_done(lasting));
    int64_t start = sl_now_ns(), running = running_ns();
    struct sl_fabric_request *request =
        open_request(pair.connection, 64, 1, sizeof reply, 0, reply, sizeof reply, 800 * SLOWNESS);
    struct sl_fabric_request *unwatched =
        open_request(pair.connection, 64, 2, sizeof reply, 0, reply, sizeof reply, 700 * SLOWNESS);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_DEADLINE);
    assert_true(sl_now_ns() - start >= (800 * SLOWNESS - 1) * SL_NS_PER_MS);
    assert_in_range((running_ns() - running) / SL_NS_PER_MS, 0, 2600 * SLOWNESS);
    int64_t deadline = sl_deadline_in_ms(20000);
    while (!sl_fabric_request_is_done(unwatched) && sl_now_ns() < deadline) { // by itself: no thread waits for it
        sl_sleep_ms(1);
    }
    assert_true(sl_fabric_request_is_done(unwatched));
    assert_int_equal(wait_request(unwatched, &bytes), SL_ERR_DEADLINE);
    assert_int_equal(bytes, 77);
    while (desk_queued(&pair.desk) < 3 && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_int_equal(desk_queued(&pair.desk), 3);
    sl_fabric_request_close(&lasting);
    await_cancelled(&pair.desk, 3);
    hold_desk(&pair.desk, false);
    request_many(&(struct requester){pair.connection, 5, 8, 0}); // after them
    assert_int_equal(desk_read(&pair.desk, &pair.desk.n_cancelled), 3);
    for (size_t i = 0; i < sizeof reply; i++) {
        assert_int_equal(reply[i], 0xee);
    }
    sl_fabric_request_close(&request);
    sl_fabric_request_close(&unwatched);
    stop_pair(&pair);
}

// Closed at every moment of their lives: what was the caller's buffer is never written again.
static void test_late_replies_are_not_written(void **state) {
    (void)state;
    enum { CAPACITY = 400000, N = 150 };
    struct pair pair;
    start_pair(&pair, 2, NULL);
    uint8_t *reply = malloc(CAPACITY);
    for (uint64_t i = 0; i < N; i++) {
        size_t reply_bytes = i % 3 == 0 ? CAPACITY : i % 3 == 1 ? 32768 : 100;
        size_t body_bytes = i % 7 == 0 ? 500000 : 64; // the former by rendezvous
        struct sl_fabric_request *request =
            open_request(pair.connection, body_bytes, i, reply_bytes, i % 4 == 0, reply, CAPACITY, 20000);
        int64_t until = sl_now_ns() + (int64_t)(i * i % 97) * 10000;
        while (sl_now_ns() < until) {
        }
        sl_fabric_request_close(&request);
        memset(reply, (int)i, CAPACITY);
        sl_sleep_ms(i % 5 == 0 ? 5 : 0);
        for (size_t k = 0; k < CAPACITY; k += 61) {
            assert_int_equal(reply[k], (uint8_t)i);
        }
    }
    free(reply);
    stop_pair(&pair);
}

static void test_reply_too_long_is_refused(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    uint8_t reply[200];
    memset(reply, 0xee, sizeof reply);
    size_t bytes = 0;
    struct sl_fabric_request *request = open_request(pair.connection, 64, 1, 101, 0, reply, 100, 20000);
    struct sl_error err = {0};
    assert_int_equal(sl_fabric_request_wait(request, SL_NO_DEADLINE, &bytes, &err), SL_ERR_RANGE);
    assert_non_null(strstr(err.text, "longer than the 100 bytes"));
    for (size_t i = 0; i < sizeof reply; i++) {
        assert_int_equal(reply[i], 0xee);
    }
    sl_fabric_request_close(&request);
    uint8_t *body = calloc(1, SL_REQUEST_MAX_BYTES + 1);
    assert_int_equal(
        sl_fabric_request_open(pair.connection,
                               &(struct sl_fabric_question){body, SL_REQUEST_MAX_BYTES + 1, reply, 100, SL_NO_DEADLINE},
                               &request, NULL),
        SL_ERR_RANGE);
    free(body);
    stop_pair(&pair);
}

static void test_flood_of_requests_is_refused(void **state) {
    (void)state;
    enum { N = SL_MAX_INCOMING + 40 };
    struct pair pair;
    start_pair(&pair, 1, NULL);
    hold_desk(&pair.desk, true);
    struct sl_fabric_request **requests = calloc(N, sizeof *requests);
    uint8_t *replies = malloc(N * 16);
    for (uint64_t i = 0; i < N; i++) {
        requests[i] = open_request(pair.connection, 64, i, 16, 0, replies + i * 16, 16, 20000);
    }
    size_t bytes = 0;
    for (size_t i = SL_MAX_INCOMING; i < N; i++) {
        assert_int_equal(wait_request(requests[i], &bytes), SL_ERR_EXHAUSTED);
    }
    hold_desk(&pair.desk, false);
    for (size_t i = 0; i < SL_MAX_INCOMING; i++) {
        assert_int_equal(wait_request(requests[i], &bytes), SL_OK);
        assert_true(reply_is_right(replies + i * 16, 16, i));
    }
    for (size_t i = 0; i < N; i++) {
        sl_fabric_request_close(&requests[i]);
    }
    free(replies);
    free(requests);
    struct requester again = {pair.connection, 9, 80, 0};
    request_many(&again);
    assert_int_equal(again.n_wrong, 0);
    stop_pair(&pair);
}

// The bound counts the memory of their bodies.
static void test_memory_of_requests_is_bounded(void **state) {
    (void)state;
    enum { N = 256 }; // MiB: REQUESTS_MAX_BYTES of incoming.c
    struct pair pair;
    start_pair(&pair, 2, NULL);
    hold_desk(&pair.desk, true);
    struct sl_fabric_request *requests[N + 1];
    uint8_t replies[N + 1];
    size_t bytes = 0;
    for (size_t i = 0; i <= N; i++) {
        requests[i] = open_request(pair.connection, SL_REQUEST_MAX_BYTES, i, 1, 0, replies + i, 1, 60000);
    }
    assert_int_equal(wait_request(requests[N], &bytes), SL_ERR_EXHAUSTED);
    hold_desk(&pair.desk, false);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(wait_request(requests[i], &bytes), SL_OK);
    }
    for (size_t i = 0; i <= N; i++) {
        sl_fabric_request_close(&requests[i]);
    }
    stop_pair(&pair);
}

static void test_faults_of_replies(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, "drop_reply:2,slow_reply:120");
    uint8_t reply[64];
    size_t bytes = 0;
    int64_t start = sl_now_ns(), running = running_ns();
    struct sl_fabric_request *request = open_request(pair.connection, 64, 1, 64, 0, reply, 64, 20000);
    assert_int_equal(wait_request(request, &bytes), SL_OK);
    assert_true(sl_now_ns() - start >= 119 * SL_NS_PER_MS);
    assert_in_range((running_ns() - running) / SL_NS_PER_MS, 0, 1000);
    sl_fabric_request_close(&request);
    request = open_request(pair.connection, 64, 2, 64, 0, reply, 64, 800);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_DEADLINE); // dropped
    sl_fabric_request_close(&request);
    request = open_request(pair.connection, 64, 3, 64, 0, reply, 64, 20000);
    assert_int_equal(wait_request(request, &bytes), SL_OK);
    sl_fabric_request_close(&request);
    stop_pair(&pair);
}

static void test_connection_to_nobody(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    uint8_t reply[64];
    size_t bytes = 0;
    struct sl_connection *connection = NULL;
    assert_int_equal(sl_connection_open(pair.requester, "127.0.0.1", 1, &connection, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_connection_open(pair.requester, sl_fabric_address(pair.responder), 0, &connection, NULL),
                     SL_ERR_INVALID);
    // Another incarnation.
    connection = open_line(pair.requester, sl_fabric_address(pair.responder), sl_fabric_epoch(pair.responder) + 2);
    struct sl_fabric_request *request = open_request(connection, 64, 1, 64, 0, reply, 64, 20000);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_PEER_STALE);
    sl_fabric_request_close(&request);
    request = open_request(connection, 64, 1, 64, 0, reply, 64, 20000); // it stays so
    assert_int_equal(wait_request(request, &bytes), SL_ERR_PEER_STALE);
    sl_fabric_request_close(&request);
    sl_connection_close(&connection);
    // A fabric that has gone.
    struct sl_fabric *gone = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    char address[64];
    snprintf(address, sizeof address, "%s", sl_fabric_address(gone));
    uint64_t epoch = sl_fabric_epoch(gone);
    sl_fabric_destroy(&gone);
    connection = open_line(pair.requester, address, epoch);
    assert_string_equal(sl_connection_transport(connection), "");
    request = open_request(connection, 64, 1, 64, 0, reply, 64, 20000);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_PEER_LOST);
    sl_fabric_request_close(&request);
    sl_connection_close(&connection);
    // A request to a fabric where no thread replies.
    struct sl_fabric *mute = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    connection = open_line(pair.requester, sl_fabric_address(mute), sl_fabric_epoch(mute));
    request = open_request(connection, 64, 1, 64, 0, reply, 64, 20000);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_UNSUPPORTED);
    sl_fabric_request_close(&request);
    sl_connection_close(&connection);
    sl_fabric_destroy(&mute);
    stop_pair(&pair);
}

static void test_closed_connection_ends_its_requests(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    hold_desk(&pair.desk, true);
    uint8_t reply[64];
    size_t bytes = 0;
    struct sl_connection *other =
        open_line(pair.requester, sl_fabric_address(pair.responder), sl_fabric_epoch(pair.responder));
    struct sl_fabric_request *request = open_request(pair.connection, 64, 1, 64, 0, reply, 64, 20000);
    struct sl_fabric_request *kept = open_request(other, 64, 2, 64, 0, reply, 64, 20000);
    sl_connection_close(&pair.connection);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_CANCELLED);
    sl_fabric_request_close(&request);
    hold_desk(&pair.desk, false);
    assert_int_equal(wait_request(kept, &bytes), SL_OK); // the same peer
    sl_fabric_request_close(&kept);
    sl_connection_close(&other);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(pair.requester, &stats);
    assert_int_equal(stats.peers_connected, 1);
    stop_pair(&pair);
}

static void test_destroy_ends_everything(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    hold_desk(&pair.desk, true);
    uint8_t replies[2][64];
    size_t bytes = 0;
    struct sl_fabric_request *request = open_request(pair.connection, 64, 1, 64, 0, replies[0], 64, 20000);
    struct sl_fabric_request *other = open_request(pair.connection, 64, 2, 64, 0, replies[1], 64, 20000);
    while (desk_queued(&pair.desk) < 2) {
        sl_sleep_ms(1);
    }
    sl_fabric_destroy(&pair.requester); // connections and requests outlive it
    assert_int_equal(wait_request(request, &bytes), SL_ERR_CANCELLED);
    sl_fabric_request_close(&request);
    sl_fabric_request_close(&other);
    request = open_request(pair.connection, 64, 1, 64, 0, replies[0], 64, 20000);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_CANCELLED);
    sl_fabric_request_close(&request);
    sl_connection_close(&pair.connection);
    sl_fabric_destroy(&pair.responder); // and so do incoming requests
    close_desk(&pair.desk);
    assert_int_equal(pair.desk.n_cancelled, 2);
}

// ---- two processes -----------------------------------------------------------------------------------------------

struct place {
    char address[64];
    uint64_t epoch;
};

static void tell_place(const struct sl_fabric *fabric, int fd) {
    struct place place = {.epoch = sl_fabric_epoch(fabric)};
    snprintf(place.address, sizeof place.address, "%s", sl_fabric_address(fabric));
    write_all(fd, &place, sizeof place);
}

// Child: reply for ever.
static void reply_for_ever(void) {
    static struct desk desk;
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    open_desk(&desk, fabric, 2);
    tell_place(fabric, 4);
    sl_sleep_ms(60000);
}

// Child: sends a request to the address that the parent passes, and waits.
static void request_and_wait(void) {
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    struct place place;
    read_all(3, &place, sizeof place);
    struct sl_connection *connection = open_line(fabric, place.address, place.epoch);
    uint8_t replies[3][64];
    for (size_t i = 0; i < 3; i++) {
        open_request(connection, 64, i, 64, 0, replies[i], 64, 60000);
    }
    sl_sleep_ms(60000);
}

static void lose_answerer(int signal_number, int64_t within_ms) {
    struct child child = start_child(transport, "reply");
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    struct place place;
    read_all(child.from, &place, sizeof place);
    struct sl_connection *connection = open_line(fabric, place.address, place.epoch);
    uint8_t reply[64];
    size_t bytes = 0;
    struct sl_fabric_request *request = open_request(connection, 64, 1, 64, 0, reply, 64, 30000);
    assert_int_equal(wait_request(request, &bytes), SL_OK);
    sl_fabric_request_close(&request);
    request = open_request(connection, 64, 1, 64, 30000, reply, 64, 30000);
    sl_sleep_ms(20);
    int64_t start = running_ns();
    kill(child.pid, signal_number);
    assert_int_equal(wait_request(request, &bytes), SL_ERR_PEER_LOST);
    assert_in_range((running_ns() - start) / SL_NS_PER_MS, 0, within_ms);
    sl_fabric_request_close(&request);
    request = open_request(connection, 64, 1, 64, 0, reply, 64, 30000); // at once: the connection is over
    start = running_ns();
    assert_int_equal(wait_request(request, &bytes), SL_ERR_PEER_LOST);
    assert_in_range((running_ns() - start) / SL_NS_PER_MS, 0, 1000);
    sl_fabric_request_close(&request);
    sl_connection_close(&connection);
    end_child(&child);
    stop_fabric(&fabric);
}

static void test_killed_responder_is_noticed(void **state) {
    (void)state;
    lose_answerer(SIGKILL, 10 * QUICK_HEARTBEAT_MS);
}

static void test_stopped_responder_is_noticed(void **state) {
    (void)state;
    lose_answerer(SIGSTOP, 15 * QUICK_HEARTBEAT_MS);
}

static void test_killed_requester_cancels_its_requests(void **state) {
    (void)state;
    struct child child = start_child(transport, "request");
    static struct desk desk;
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    open_desk(&desk, fabric, 1);
    hold_desk(&desk, true);
    tell_place(fabric, child.to);
    int64_t deadline = sl_deadline_in_ms(20000);
    while (desk_queued(&desk) < 3 && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_int_equal(desk_queued(&desk), 3);
    struct sl_fabric_incoming *first = desk.queue[0];
    assert_false(sl_fabric_incoming_is_cancelled(first));
    end_child(&child);
    deadline = sl_deadline_in_ms(10 * QUICK_HEARTBEAT_MS);
    while (!sl_fabric_incoming_is_cancelled(first) && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_true(sl_fabric_incoming_is_cancelled(first));
    close_desk(&desk); // replies to them all the same
    assert_int_equal(desk.n_cancelled, 3);
    stop_fabric(&fabric);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_is_replied_to_at_every_size),
        cmocka_unit_test(test_requests_of_many_threads_do_not_mix),
        cmocka_unit_test(test_deadline_ends_a_request),
        cmocka_unit_test(test_late_replies_are_not_written),
        cmocka_unit_test(test_reply_too_long_is_refused),
        cmocka_unit_test(test_flood_of_requests_is_refused),
        cmocka_unit_test(test_memory_of_requests_is_bounded),
        cmocka_unit_test(test_faults_of_replies),
        cmocka_unit_test(test_connection_to_nobody),
        cmocka_unit_test(test_closed_connection_ends_its_requests),
        cmocka_unit_test(test_destroy_ends_everything),
        cmocka_unit_test(test_killed_responder_is_noticed),
        cmocka_unit_test(test_stopped_responder_is_noticed),
        cmocka_unit_test(test_killed_requester_cancels_its_requests),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    signal(SIGPIPE, SIG_IGN);
    if (argc > 2 && strcmp(argv[2], "reply") == 0) {
        reply_for_ever();
    } else if (argc > 2 && strcmp(argv[2], "request") == 0) {
        request_and_wait();
    } else if (argc > 2) {
        cmocka_set_test_filter(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
