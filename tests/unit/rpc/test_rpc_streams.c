// SPDX-License-Identifier: Apache-2.0
// Purpose: requests that come in part, late, or never: what a server holds of them, and for how long.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <dlfcn.h>
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/locked.h"
#include "net/rpc/rpc_internal.h"
#include "tests/unit/rpc/echo_service.h"

enum { MOST_STREAMS = 8, MOST_BYTES = 1000, CALL_MS = 20000 };

static struct sl_rpc_streams one, two;

// ---- the count -------------------------------------------------------------------------------------------------------

static int begin_counting(void **state) {
    (void)state;
    sl_rpc_streams_allow(MOST_STREAMS, MOST_BYTES);
    one = (struct sl_rpc_streams){.owner = 1};
    two = (struct sl_rpc_streams){.owner = 2};
    return 0;
}

static int end_counting(void **state) {
    (void)state;
    sl_rpc_streams_end(&one);
    sl_rpc_streams_end(&two);
    return 0;
}

// A message of n_bytes begins, of which n_sent come.
static bool begin_message(struct sl_rpc_streams *streams, uint32_t id, uint32_t n_bytes, size_t n_sent) {
    uint8_t bytes[5 + 4 * MOST_BYTES] = {0, (uint8_t)(n_bytes >> 24), (uint8_t)(n_bytes >> 16), (uint8_t)(n_bytes >> 8),
                                         (uint8_t)n_bytes};
    return sl_rpc_streams_data(streams, id, bytes, 5 + n_sent);
}

static bool send_more(struct sl_rpc_streams *streams, uint32_t id, size_t n_sent) {
    static const uint8_t zeros[4 * MOST_BYTES];
    return sl_rpc_streams_data(streams, id, zeros, n_sent);
}

static void test_a_message_counts_until_it_is_finished(void **state) {
    (void)state;
    assert_true(sl_rpc_streams_open(&one, 1));
    assert_true(sl_rpc_streams_open(&one, 3));
    for (int i = 0; i < 10; i++) { // in pieces, some of them of its head
        assert_true(begin_message(&one, 1, 900, 500));
        assert_true(send_more(&one, 1, 400));
        assert_true(begin_message(&one, 1, 0, 0));
        static const uint8_t head[] = {1, 0, 0, 3, 0x84};
        for (size_t k = 0; k < sizeof head; k++) {
            assert_true(sl_rpc_streams_data(&one, 1, &head[k], 1));
        }
        assert_true(send_more(&one, 1, 900));
    }
    assert_true(begin_message(&one, 1, UINT32_MAX, 600));
    assert_true(begin_message(&one, 3, 2000, 400));
    assert_false(send_more(&one, 3, 1));
    sl_rpc_streams_close(&one, 1);
    assert_true(send_more(&one, 1, 4000)); // it is over: gRPC drops that
    assert_true(send_more(&one, 3, 599));
    assert_false(send_more(&one, 3, 1));
}

static void test_who_holds_less_than_its_part_goes_on(void **state) {
    (void)state;
    assert_true(sl_rpc_streams_open(&one, 1));
    assert_true(sl_rpc_streams_open(&two, 1));
    assert_true(begin_message(&one, 1, 2000, 900));
    assert_true(begin_message(&two, 1, 2000, 400)); // 1300 of both
    assert_false(send_more(&one, 1, 1));
    assert_true(send_more(&two, 1, 100));
    assert_false(send_more(&two, 1, 1));
    size_t owner;
    assert_true(sl_rpc_streams_most(&owner) >= 900 && owner == one.owner);
    sl_rpc_streams_end(&one);
    assert_int_equal(sl_rpc_streams_most(&owner), 0); // the other one, which holds little, is not refused in its place
    assert_true(send_more(&two, 1, 400));
    assert_false(send_more(&two, 1, 400));
}

static void test_open_streams_are_few(void **state) {
    (void)state;
    uint32_t id = 1;
    for (int i = 0; i < MOST_STREAMS; i++, id += 2) {
        assert_true(sl_rpc_streams_open(&one, id));
    }
    assert_false(sl_rpc_streams_open(&one, id));
    assert_true(sl_rpc_streams_open(&one, 1)); // its trailers
    for (int i = 0; i < 1000; i++) {           // the last one closes, and another opens
        sl_rpc_streams_close(&one, i == 0 ? id - 2 : id);
        id += 2;
        assert_true(sl_rpc_streams_open(&one, id));
    }
    assert_false(sl_rpc_streams_open(&one, id + 2));
    assert_true(one.cap <= 4 * MOST_STREAMS);
    assert_true(begin_message(&one, 1, 2000, 900));
    assert_false(send_more(&one, 1, 101));
}

// Each connection of a caller would cost a server all the calls that one may have, until it is closed as well.
static void test_after_a_closed_connection_streams_are_fewer(void **state) {
    (void)state;
    uint32_t id = 1;
    one.caller = 11;
    two.caller = 13;
    for (; id < 2 * MOST_STREAMS; id += 2) {
        assert_true(sl_rpc_streams_open(&one, id));
    }
    assert_false(sl_rpc_streams_open(&one, id)); // more than it may: closed
    sl_rpc_streams_end(&one);
    assert_true(sl_rpc_streams_open(&one, 1));
    assert_false(sl_rpc_streams_open(&one, 3));
    assert_true(sl_rpc_streams_open(&two, 1) && sl_rpc_streams_open(&two, 3));
    sl_rpc_resets_note(two.caller);
    assert_true(sl_rpc_streams_open(&two, 5)); // it had as many before
    sl_rpc_streams_end(&two);
    assert_true(sl_rpc_streams_open(&two, 1));
    assert_false(sl_rpc_streams_open(&two, 3));
    one.caller = 0; // of a server nothing is noted
    sl_rpc_resets_note(0);
    assert_true(sl_rpc_streams_open(&one, 5));
}

// gRPC does not read a connection that it gives up: its descriptor, or another library's of the same number, holds nothing.
static void test_a_connection_that_is_shut_down_holds_nothing(void **state) {
    (void)state;
    enum { PREFACE = 24, FRAME = 9, HEAD = 5, SENT = 900 };
    static uint8_t bytes[PREFACE + FRAME + FRAME + HEAD + SENT];
    uint8_t *headers = bytes + PREFACE, *data = headers + FRAME;
    memcpy(headers, (uint8_t[FRAME]){0, 0, 0, 1, 4, 0, 0, 0, 1}, FRAME);
    memcpy(data, (uint8_t[FRAME]){0, (HEAD + SENT) >> 8, (HEAD + SENT) & 255, 0, 0, 0, 0, 0, 1}, FRAME);
    memcpy(data + FRAME, (uint8_t[HEAD]){0, 0, 0, 8, 0}, HEAD);
    static uint8_t room[sizeof bytes];
    struct iovec part = {room, sizeof room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_true(sl_rpc_headers_watch(ends[0], true, 1));
    assert_int_equal(write(ends[1], bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(recvmsg(ends[0], &message, 0), sizeof bytes);
    assert_true(sl_rpc_streams_open(&one, 1));
    assert_true(begin_message(&one, 1, 2000, 400)); // 1300 of both
    assert_false(send_more(&one, 1, 101));
    assert_int_equal(shutdown(ends[0], SHUT_RDWR), 0);
    assert_true(send_more(&one, 1, 400));
    close(ends[0]);
    close(ends[1]);
}

// ---- replies that wait for others to be read ---------------------------------------------------------------------------

static struct sl_rpc_calls replies;

static int begin_replies(void **state) {
    (void)state;
    sl_rpc_init();
    sl_rpc_calls_init(&replies, 1000);
    return 0;
}

static int end_replies(void **state) {
    (void)state;
    while (replies.unsent.oldest) {
        struct sl_rpc_call *call = replies.unsent.oldest;
        assert_true(sl_rpc_call_leave_line(call, &replies.unsent));
        sl_rpc_call_unref(call);
    }
    sl_rpc_calls_cleanup(&replies);
    sl_rpc_shutdown();
    return 0;
}

static void *await_room(void *call) {
    sl_rpc_call_await_room(call);
    return NULL;
}

// Returns whether another reply of a caller must wait. It then joins the line.
static bool must_wait(size_t owner, size_t n_bytes) {
    pthread_t sender;
    struct sl_error err;
    struct sl_rpc_call *call = sl_rpc_call_create(NULL, &replies, NULL);
    grpc_slice slice = grpc_slice_malloc(n_bytes);
    bool waits = false, is_there = false;
    call->reply = grpc_raw_byte_buffer_create(&slice, 1);
    call->owner = owner;
    grpc_slice_unref(slice);
    assert_int_equal(sl_thread_start("sender", await_room, call, &sender, &err), SL_OK);
    while (!waits && !is_there) {
        sl_sleep_ms(1);
        SL_LOCKED(&replies.mutex);
        waits = replies.waiting_bytes > 0;
        is_there = call->line != NULL;
    }
    pthread_mutex_lock(&replies.mutex);
    atomic_store(&call->cancelled, true);
    sl_bell_ring(&replies.left, &replies.mutex, INT_MAX);
    pthread_join(sender, NULL);
    return waits;
}

// A quarter of the line, and a sixteenth of a full one; a caller without a reply there never waits.
static void test_a_callers_part_of_the_line_of_replies(void **state) {
    (void)state;
    enum { MIB = 1 << 20, LINE = SL_RPC_LINE_BYTES };
    assert_false(must_wait(1, LINE / 16)); // none is there
    assert_false(must_wait(1, LINE / 8));
    assert_true(must_wait(1, LINE / 16)); // with the calls' own bytes it is more than a quarter
    assert_false(must_wait(2, 40 * MIB));
    assert_false(must_wait(3, LINE / 32));
    assert_false(must_wait(3, LINE / 64));
    assert_false(must_wait(4, LINE / 16)); // full from here on
    assert_true(replies.unsent.bytes > LINE - 4 * MIB);
    assert_true(must_wait(3, LINE / 32));
    assert_true(must_wait(4, MIB));
    assert_false(must_wait(5, LINE / 2));
    assert_true(must_wait(5, MIB));
    assert_false(must_wait(6, MIB));
    assert_false(must_wait(6, MIB));
}

// ---- a server --------------------------------------------------------------------------------------------------------

static struct sl_rpc_server *server;
static struct echo echo;

static struct {
    atomic_uintptr_t newest; // long message that was made here: the client's
    atomic_int n_destroyed;  // other long messages: requests at the server
    atomic_int n_before;     // those that had been when the server began to refuse a call
} payloads;

enum { LONG = 50000 };

void __real_grpc_byte_buffer_destroy(grpc_byte_buffer *bytes);
grpc_byte_buffer *__real_grpc_raw_byte_buffer_create(grpc_slice *slices, size_t n_slices);
grpc_call_error __real_grpc_call_start_batch(grpc_call *call, const grpc_op *ops, size_t n_ops, void *tag, void *none);
void __wrap_grpc_byte_buffer_destroy(grpc_byte_buffer *bytes);
grpc_byte_buffer *__wrap_grpc_raw_byte_buffer_create(grpc_slice *slices, size_t n_slices);
grpc_call_error __wrap_grpc_call_start_batch(grpc_call *call, const grpc_op *ops, size_t n_ops, void *tag, void *none);

grpc_byte_buffer *__wrap_grpc_raw_byte_buffer_create(grpc_slice *slices, size_t n_slices) {
    grpc_byte_buffer *bytes = __real_grpc_raw_byte_buffer_create(slices, n_slices);
    if (grpc_byte_buffer_length(bytes) > LONG) {
        atomic_store(&payloads.newest, (uintptr_t)bytes);
    }
    return bytes;
}

void __wrap_grpc_byte_buffer_destroy(grpc_byte_buffer *bytes) {
    if (bytes && grpc_byte_buffer_length(bytes) > LONG && atomic_load(&payloads.newest) != (uintptr_t)bytes) {
        atomic_fetch_add(&payloads.n_destroyed, 1);
    }
    __real_grpc_byte_buffer_destroy(bytes);
}

grpc_call_error __wrap_grpc_call_start_batch(grpc_call *call, const grpc_op *ops, size_t n_ops, void *tag, void *none) {
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].op == GRPC_OP_SEND_STATUS_FROM_SERVER &&
            ops[i].data.send_status_from_server.status == GRPC_STATUS_RESOURCE_EXHAUSTED) {
            atomic_store(&payloads.n_before, atomic_load(&payloads.n_destroyed));
        }
    }
    return __real_grpc_call_start_batch(call, ops, n_ops, tag, none);
}

// ---- a thread that is suspended after it has sent -----------------------------------------------------------------------

static _Atomic(void *) send_at_once; // as dlsym() has found it
static atomic_int late_port;         // of connections on which sending takes long

void *__real_dlsym(void *handle, const char *name);
void *__wrap_dlsym(void *handle, const char *name);

static ssize_t send_late(int fd, const struct msghdr *message, int flags) {
    ssize_t (*next)(int fd, const struct msghdr *message, int flags);
    void *found = atomic_load(&send_at_once);
    memcpy(&next, &found, sizeof next); // ISO C has no conversion between the two kinds of pointers
    const ssize_t n = next(fd, message, flags);
    const int error = errno;
    sl_sleep_ms(n > 0 && atomic_load(&late_port) > 0 && sl_rpc_local_port(fd) == atomic_load(&late_port) ? 3 : 0);
    errno = error;
    return n;
}

void *__wrap_dlsym(void *handle, const char *name) {
    void *found = __real_dlsym(handle, name);
    if (strcmp(name, "sendmsg") == 0) {
        ssize_t (*late)(int fd, const struct msghdr *message, int flags) = send_late;
        atomic_store(&send_at_once, found);
        memcpy(&found, &late, sizeof found);
    }
    return found;
}

static struct serving {
    int max_calls, request_ms; // 0: the defaults
} a_call = {.max_calls = 1}, impatient = {.request_ms = 500}, usual;

static int set_up(void **state) {
    const struct serving *serving = *state;
    sl_rpc_init();
    echo_init(&echo);
    echo.request_bytes = 8 << 20; // 4 MiB are for requests in part: four of the largest
    echo.request_ms = serving->request_ms;
    return echo_start(&echo, "127.0.0.1:0", serving->max_calls, &server, NULL) == SL_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    echo_stop(&echo, &server, 1000);
    sl_rpc_shutdown();
    return 0;
}

static void test_requests_in_part_are_bounded(void **state) {
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "/usr/bin/python3 tests/unit/rpc/partial_requests.py %s",
             sl_rpc_server_address(server));
    assert_int_equal(system(command), 0);
}

static void test_a_request_that_does_not_come_ends(void **state) {
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "/usr/bin/python3 tests/unit/rpc/late_request.py %s %d",
             sl_rpc_server_address(server), impatient.request_ms);
    assert_int_equal(system(command), 0);
}

static void *wait_long(void *channel) {
    struct sl_error err;
    (void)echo_call(channel, &echo_get, "wait", 3000, &err);
    return NULL;
}

// Its client may not read the status for long.
static void test_payload_of_a_refused_request_is_freed_first(void **state) {
    (void)state;
    struct sl_rpc_channel *channel;
    struct sl_error err;
    pthread_t waiter;
    static char text[LONG + 1000];
    memset(text, 'x', sizeof text - 1);
    assert_int_equal(sl_rpc_channel_create(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channel, &err), SL_OK);
    assert_int_equal(sl_thread_start("waiter", wait_long, channel, &waiter, &err), SL_OK);
    assert_true(echo_reaches(&echo.n_waiting, 1, CALL_MS));
    atomic_store(&payloads.n_destroyed, 0);
    atomic_store(&payloads.n_before, -1);
    assert_int_equal(echo_call(channel, &echo_get, text, CALL_MS, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "handles 1 calls already"));
    assert_int_equal(atomic_load(&payloads.n_before), 1);
    pthread_join(waiter, NULL);
    sl_rpc_channel_destroy(&channel);
}

// A connection has as many calls as it may, and the next one begins as soon as one has ended.
static void test_a_connection_with_many_calls_stays(void **state) {
    (void)state;
    enum { N = 1000, ROUNDS = 10 };
    static struct sl_rpc_stream *streams[N];
    struct sl_rpc_channel *channel;
    struct sl_error err;
    assert_int_equal(sl_rpc_channel_create(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channel, &err), SL_OK);
    atomic_store(&late_port, atoi(strrchr(sl_rpc_server_address(server), ':') + 1));
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < N; i++) {
            assert_int_equal(echo_open(channel, &echo_watch, "missing", 1, CALL_MS, &streams[i], &err), SL_OK);
        }
        for (int i = 0; i < N; i++) {
            ProtobufCMessage *message;
            const enum sl_status status = sl_rpc_stream_next(streams[i], CALL_MS, &message, &err);
            assert_true(status == SL_ERR_NOT_FOUND || status == SL_ERR_EXHAUSTED); // not SL_ERR_PEER_LOST
            sl_rpc_stream_close(&streams[i]);
        }
    }
    atomic_store(&late_port, 0);
    sl_rpc_channel_destroy(&channel);
}

// Replies of more bytes than the server keeps for clients that do not read: all of these are read at once.
static void test_fast_readers_get_every_reply(void **state) {
    (void)state;
    enum { CHANNELS = 4, N = 160, LEAST = SL_RPC_LINE_BYTES + (16 << 20) };
    static struct sl_rpc_stream *streams[N];
    struct sl_rpc_channel *channels[CHANNELS];
    struct sl_error err;
    int64_t n_bytes = 0;
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = "long";
    for (int i = 0; i < CHANNELS; i++) {
        assert_int_equal(
            sl_rpc_channel_create_alone(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channels[i], &err), SL_OK);
    }
    for (int i = 0; i < N; i++) { // most of them over one connection: its caller has most
        assert_int_equal(sl_rpc_stream_open(channels[i % 16 < CHANNELS ? i % 16 : 0], &echo_get, &request.base,
                                            sl_deadline_in_ms(CALL_MS), NULL, &streams[i], &err),
                         SL_OK);
    }
    for (int i = 0; i < N; i++) {
        ProtobufCMessage *message = NULL;
        if (sl_rpc_stream_next(streams[i], CALL_MS, &message, &err) != SL_OK) {
            fail_msg("reply %d of %d: %s", i, N, err.text);
        }
        n_bytes += (int64_t)strlen(((Sluice__V1__Job *)message)->status_text);
        protobuf_c_message_free_unpacked(message, NULL);
        sl_rpc_stream_close(&streams[i]);
    }
    assert_true(n_bytes > LEAST);
    for (int i = 0; i < CHANNELS; i++) {
        sl_rpc_channel_destroy(&channels[i]);
    }
}

static void test_a_reader_does_not_wait_for_another_client(void **state) {
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "/usr/bin/python3 tests/unit/rpc/unread_replies.py %s",
             sl_rpc_server_address(server));
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest counting[] = {
        cmocka_unit_test_setup_teardown(test_a_message_counts_until_it_is_finished, begin_counting, end_counting),
        cmocka_unit_test_setup_teardown(test_who_holds_less_than_its_part_goes_on, begin_counting, end_counting),
        cmocka_unit_test_setup_teardown(test_open_streams_are_few, begin_counting, end_counting),
        cmocka_unit_test_setup_teardown(test_after_a_closed_connection_streams_are_fewer, begin_counting, end_counting),
        cmocka_unit_test_setup_teardown(test_a_connection_that_is_shut_down_holds_nothing, begin_counting,
                                        end_counting),
    };
    const struct CMUnitTest serving[] = {
        cmocka_unit_test_setup_teardown(test_a_callers_part_of_the_line_of_replies, begin_replies, end_replies),
        cmocka_unit_test_prestate_setup_teardown(test_requests_in_part_are_bounded, set_up, tear_down, &usual),
        cmocka_unit_test_prestate_setup_teardown(test_a_request_that_does_not_come_ends, set_up, tear_down, &impatient),
        cmocka_unit_test_prestate_setup_teardown(test_payload_of_a_refused_request_is_freed_first, set_up, tear_down,
                                                 &a_call),
        cmocka_unit_test_prestate_setup_teardown(test_a_connection_with_many_calls_stays, set_up, tear_down, &a_call),
        cmocka_unit_test_prestate_setup_teardown(test_fast_readers_get_every_reply, set_up, tear_down, &usual),
        cmocka_unit_test_prestate_setup_teardown(test_a_reader_does_not_wait_for_another_client, set_up, tear_down,
                                                 &usual),
    };
    const int failed = cmocka_run_group_tests(counting, NULL, NULL); // before a server allows more
    return failed + cmocka_run_group_tests(serving, NULL, NULL);
}
