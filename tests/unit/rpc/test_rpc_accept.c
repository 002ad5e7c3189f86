// SPDX-License-Identifier: Apache-2.0
// Purpose: a server answers after floods of connections and after a time without descriptors, and knows when its port is deaf.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "net/rpc/rpc_internal.h"
#include "net/rpc/rpc_selfcheck.h"
#include "tests/unit/rpc/echo_service.h"

enum { LIMIT = 256, CEILING = LIMIT - LIMIT / 4, FLOOD = 300, CALL_MS = 20000 };

// Another process, with descriptors of its own, holds n connections to a port from one order until the next.
static struct {
    pid_t pid;
    int orders, done; // pipes
} flooder;

struct order {
    int port, n;
};

static struct sl_rpc_server *server;
static struct echo echo;
static int port;

// from: the client's own port; 0: any.
static int connect_from(int from, int its_port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in own = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)from), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 && from > 0 && bind(fd, (const struct sockaddr *)&own, sizeof own) != 0) {
        close(fd);
        return -1;
    }
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)its_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int connect_to(int its_port) {
    return connect_from(0, its_port);
}

static void obey(int orders, int done) {
    static int held[FLOOD];
    int n_held = 0;
    struct order order;
    while (read(orders, &order, sizeof order) == sizeof order) {
        while (n_held > 0) {
            close(held[--n_held]);
        }
        for (int i = 0; i < order.n; i++) {
            const int fd = connect_to(order.port);
            if (fd >= 0) {
                held[n_held++] = fd;
            }
        }
        if (write(done, &n_held, sizeof n_held) != sizeof n_held) {
            break;
        }
    }
    _exit(0);
}

// Returns the number of connections that the kernel has made; the server may have closed them since.
static int flood(int n) {
    const struct order order = {port, n};
    int n_held = -1;
    assert_int_equal(write(flooder.orders, &order, sizeof order), sizeof order);
    assert_int_equal(read(flooder.done, &n_held, sizeof n_held), sizeof n_held);
    return n_held;
}

static struct sl_rpc_channel *new_channel(void) {
    struct sl_rpc_channel *channel = NULL;
    assert_int_equal(sl_rpc_channel_create_alone(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channel, NULL),
                     SL_OK);
    return channel;
}

static enum sl_status call_anew(void) {
    struct sl_rpc_channel *channel = new_channel();
    struct sl_error err = {0};
    const enum sl_status status = echo_call(channel, &echo_get, "job-1", CALL_MS, &err);
    if (status != SL_OK) {
        print_message("a new connection: %s\n", err.text);
    }
    sl_rpc_channel_destroy(&channel);
    return status;
}

static uint64_t n_refused(void) {
    uint64_t accepted, refused;
    sl_rpc_accept_counts(port, &accepted, &refused);
    return refused;
}

static bool becomes_refused(uint64_t wanted) {
    for (const int64_t end_ns = sl_deadline_in_ms(CALL_MS); sl_now_ns() < end_ns; sl_sleep_ms(10)) {
        if (n_refused() >= wanted) {
            return true;
        }
    }
    return false;
}

// ---- calls that are cancelled at once ----------------------------------------------------------------------------------

enum { CALLS_A_WRITE = 100, RESETS = 100 * 1000 };

static size_t put_frame(uint8_t *at, uint8_t type, uint8_t flags, uint32_t stream, const void *payload, size_t n) {
    const uint8_t head[] = {
        (uint8_t)(n >> 16),      (uint8_t)(n >> 8),      (uint8_t)n,     type, flags, (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    memcpy(at, head, sizeof head);
    memcpy(at + sizeof head, payload, n);
    return sizeof head + n;
}

static size_t put_header(uint8_t *at, const char *name, const char *value) { // literal, without the table
    const size_t n = strlen(name), n_value = strlen(value);
    at[0] = 0;
    at[1] = (uint8_t)n;
    memcpy(at + 2, name, n);
    at[2 + n] = (uint8_t)n_value;
    memcpy(at + 3 + n, value, n_value);
    return 3 + n + n_value;
}

static bool write_all(int fd, const uint8_t *bytes, size_t n) {
    while (n > 0) {
        const ssize_t written = send(fd, bytes, n, MSG_NOSIGNAL);
        if (written <= 0) {
            return false;
        }
        bytes += written;
        n -= (size_t)written;
    }
    return true;
}

static bool begin_http2(int fd) {
    static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    return write_all(fd, preface, sizeof preface);
}

// Opens n_calls <= CALLS_A_WRITE calls on a connection and resets them; n: calls before. False: the server has closed it.
static bool open_and_reset_some(int fd, const char *path, int n, int n_calls) {
    static const char *const names[] = {":method", ":scheme", ":path", ":authority", "te", "content-type"};
    const char *const values[] = {"POST", "http", path, "x", "trailers", "application/grpc"};
    static const uint8_t cancelled[] = {0, 0, 0, 8}, empty[5];
    static uint8_t calls[CALLS_A_WRITE * 256];
    uint8_t block[160];
    size_t n_block = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        n_block += put_header(block + n_block, names[i], values[i]);
    }
    size_t n_bytes = 0;
    for (int i = 0; i < n_calls; i++) {
        const uint32_t stream = 2 * (uint32_t)(n + i) + 1;
        n_bytes += put_frame(calls + n_bytes, 1, 4, stream, block, n_block);
        n_bytes += put_frame(calls + n_bytes, 0, 0, stream, empty, sizeof empty);
        n_bytes += put_frame(calls + n_bytes, 3, 0, stream, cancelled, sizeof cancelled);
    }
    const bool is_open = write_all(fd, calls, n_bytes);
    uint8_t said[65536];
    while (is_open && recv(fd, said, sizeof said, MSG_DONTWAIT) > 0) {
    }
    return is_open;
}

// Opens calls on one connection and resets them, until the server closes it. Returns their number.
static int open_and_reset(const char *path) {
    const int fd = connect_to(port);
    assert_true(fd >= 0 && begin_http2(fd));
    int n = 0;
    for (bool is_open = true; is_open && n < RESETS; n += CALLS_A_WRITE) {
        is_open = open_and_reset_some(fd, path, n, CALLS_A_WRITE);
    }
    close(fd);
    return n;
}

// Opens and resets calls a few at a time, until the server closes the connection. Returns their number.
static int open_and_reset_slowly(void) {
    const int fd = connect_to(port);
    assert_true(fd >= 0 && begin_http2(fd));
    int n = 0;
    for (; open_and_reset_some(fd, "/test.Echo/Get", n, 5) && n < RESETS / 8; n += 5) {
        sl_sleep_ms(1);
    }
    close(fd);
    return n;
}

// A client that connects again after each closed connection may do less with each.
static void test_server_closes_a_hosts_next_connections_sooner(void **state) {
    (void)state;
    const int first = open_and_reset_slowly();
    int last = first;
    for (int i = 0; i < 5; i++) {
        last = open_and_reset_slowly();
    }
    print_message("closed after %d calls, and then after %d\n", first, last);
    assert_in_range(last, 1, first / 2);
}

// Connects from two ports whose peers share an entry of the counts.
static bool connect_pair(int fds_out[2]) {
    enum { FIRST = 20000, LAST = 32000, N_ENTRIES = 4096 }; // N_ENTRIES: as in rpc_resets.c
    static int seen[N_ENTRIES];
    memset(seen, 0, sizeof seen);
    for (int from = FIRST; from < LAST; from++) {
        char peer[64];
        snprintf(peer, sizeof peer, "ipv4:127.0.0.1:%d", from);
        const size_t i = sl_hash(peer, strlen(peer), 0) % N_ENTRIES;
        if (seen[i] == 0) {
            seen[i] = from;
            continue;
        }
        fds_out[0] = connect_from(seen[i], port);
        fds_out[1] = connect_from(from, port);
        if (fds_out[0] >= 0 && fds_out[1] >= 0) {
            return true;
        }
        close(fds_out[0]);
        close(fds_out[1]);
        seen[i] = from;
    }
    return false;
}

// Two connections that take turns must not restart each other's count.
static void test_server_closes_connections_that_share_a_count(void **state) {
    (void)state;
    int fds[2], n[2] = {0};
    assert_true(connect_pair(fds) && begin_http2(fds[0]) && begin_http2(fds[1]));
    bool is_open[2] = {true, true};
    for (int i = 0; is_open[0] && is_open[1] && n[i] < RESETS / 8; i = 1 - i, sl_sleep_ms(1)) {
        is_open[i] = open_and_reset_some(fds[i], "/test.Echo/Get", n[i], 10);
        n[i] += 10;
    }
    print_message("closed after %d and %d calls\n", n[0], n[1]);
    assert_true(is_open[0] != is_open[1]);
    for (int i = is_open[0] ? 0 : 1; is_open[i] && n[i] < RESETS; n[i] += CALLS_A_WRITE) { // the other one, too
        is_open[i] = open_and_reset_some(fds[i], "/test.Echo/Get", n[i], CALLS_A_WRITE);
    }
    assert_false(is_open[0] || is_open[1]);
    close(fds[0]);
    close(fds[1]);
    const int64_t end_ns = sl_deadline_in_ms(CALL_MS);
    enum sl_status status;
    while ((status = call_anew()) != SL_OK && sl_now_ns() < end_ns) {
    }
    assert_int_equal(status, SL_OK);
}

// A gateway watches jobs on one connection, and its own clients may leave after a moment.
static void test_server_keeps_a_connection_that_ends_calls_after_a_message(void **state) {
    (void)state;
    enum { CALLS = 1500 };
    struct sl_rpc_channel *channel = new_channel();
    struct sl_error err;
    uint64_t before, after, refused;
    assert_int_equal(echo_call(channel, &echo_get, "job-1", CALL_MS, &err), SL_OK);
    sl_rpc_accept_counts(port, &before, &refused);
    for (int i = 0; i < CALLS; i++) {
        struct sl_rpc_stream *stream = NULL;
        ProtobufCMessage *message = NULL;
        assert_int_equal(echo_open(channel, &echo_watch, "slow", 1000, CALL_MS, &stream, &err), SL_OK);
        assert_int_equal(sl_rpc_stream_next(stream, CALL_MS, &message, &err), SL_OK);
        protobuf_c_message_free_unpacked(message, NULL);
        sl_rpc_stream_close(&stream);
    }
    assert_int_equal(echo_call(channel, &echo_get, "job-1", CALL_MS, &err), SL_OK);
    sl_rpc_accept_counts(port, &after, &refused);
    assert_int_equal(after, before); // it has not connected again
    sl_rpc_channel_destroy(&channel);
}

// Nor do calls of those that leave before there is a message.
static void test_server_keeps_a_connection_that_ends_streams_before_a_message(void **state) {
    (void)state;
    enum { CALLS = 1500 };
    struct sl_rpc_channel *channel = new_channel();
    struct sl_error err;
    uint64_t before, after, refused;
    assert_int_equal(echo_call(channel, &echo_get, "job-1", CALL_MS, &err), SL_OK);
    sl_rpc_accept_counts(port, &before, &refused);
    for (int i = 0; i < CALLS; i++) {
        struct sl_rpc_stream *stream = NULL;
        const int n_begun = atomic_load(&echo.n_mute);
        assert_int_equal(echo_open(channel, &echo_watch, "mute", 0, CALL_MS, &stream, &err), SL_OK);
        const int64_t end_ns = sl_deadline_in_ms(CALL_MS);
        while (atomic_load(&echo.n_mute) == n_begun && sl_now_ns() < end_ns) {
        }
        assert_int_not_equal(atomic_load(&echo.n_mute), n_begun);
        sl_rpc_stream_close(&stream);
    }
    assert_int_equal(echo_call(channel, &echo_get, "job-1", CALL_MS, &err), SL_OK);
    sl_rpc_accept_counts(port, &after, &refused);
    assert_int_equal(after, before); // it has not connected again
    sl_rpc_channel_destroy(&channel);
}

static void test_peer_is_the_whole_host(void **state) {
    (void)state;
    uint64_t before, accepted, refused;
    sl_rpc_accept_counts(port, &before, &refused);
    const int fd = connect_to(port);
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &bytes), 0);
    const int64_t end_ns = sl_deadline_in_ms(CALL_MS);
    do {
        sl_sleep_ms(10);
        sl_rpc_accept_counts(port, &accepted, &refused);
    } while (accepted == before && sl_now_ns() < end_ns);
    static const char *const others[] = {"ipv4:127.0.0.12", "ipv4:1127.0.0.1", "ipv6:%5B2001:db8::127.0.0.1%5D",
                                         "ipv6:[::1]", "ipv4"};
    char peer[64];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(peer, sizeof peer, "%s:%d", others[i], ntohs(own.sin_port));
        assert_false(sl_rpc_accept_cut(peer));
    }
    snprintf(peer, sizeof peer, "ipv6:%%5B::ffff:127.0.0.1%%5D:%d", ntohs(own.sin_port));
    assert_true(sl_rpc_accept_cut(peer));
    close(fd);
}

// A reset costs a client nothing and the server a call: the memory of calls that wait to be handled grew without bounds.
static void test_server_closes_connections_that_reset_calls(void **state) {
    (void)state;
    static const char *const paths[] = {"/test.Echo/Get", "/no.Service/None"};
    for (int i = 0; i < 2; i++) {
        struct sl_rpc_channel *other = new_channel();
        assert_int_equal(echo_call(other, &echo_get, "job-1", CALL_MS, NULL), SL_OK);
        const int n = open_and_reset(paths[i]);
        print_message("%s: closed after %d calls\n", paths[i], n);
        assert_in_range(n, 1, RESETS - 1);
        assert_int_equal(echo_call(other, &echo_get, "job-1", CALL_MS, NULL), SL_OK); // others' connections stay
        sl_rpc_channel_destroy(&other);
        // The calls of the closed connection may still be ended, which takes a loaded machine a while.
        const int64_t end_ns = sl_deadline_in_ms(CALL_MS);
        enum sl_status status;
        while ((status = call_anew()) != SL_OK && sl_now_ns() < end_ns) {
        }
        assert_int_equal(status, SL_OK);
    }
}

// The calls are not even begun whose resets arrive with them; the next connection may do half.
static void test_resets_in_one_read_are_few(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        int64_t since_ns = 0;
        int n = 1, n_counted = 0;
        while (!sl_rpc_resets_in_a_read(&since_ns, &n_counted) && n < RESETS) {
            n++;
        }
        assert_in_range(n, 1, RESETS - 1);
    }
}

static ssize_t read_some(int fd) {
    static uint8_t bytes[1 << 16];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(fd, &message, 0);
}

// A connection is not blamed for what came on its descriptor before.
static void test_a_descriptors_next_connection_begins_anew(void **state) {
    (void)state;
    int fds[2];
    ssize_t n = 1;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    const int its_port = sl_rpc_local_port(fds[1]);
    assert_true(sl_rpc_headers_watch(fds[1], true, its_port) && begin_http2(fds[0]));
    for (int i = 0; n > 0 && i < RESETS; i += CALLS_A_WRITE) {
        assert_true(open_and_reset_some(fds[0], "/test.Echo/Get", i, CALLS_A_WRITE));
        n = read_some(fds[1]);
    }
    assert_int_equal(n, -1);
    assert_true(sl_rpc_headers_watch(fds[1], true, its_port) && begin_http2(fds[0]));
    assert_true(open_and_reset_some(fds[0], "/test.Echo/Get", 0, 1));
    assert_true(read_some(fds[1]) > 0);
    assert_true(sl_rpc_headers_watch(fds[1], false, its_port));
    close(fds[0]);
    close(fds[1]);
}

// gRPC keeps a header block until it ends, however long it is.
static void test_server_closes_connections_of_endless_headers(void **state) {
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "/usr/bin/python3 tests/unit/rpc/endless_headers.py %s",
             sl_rpc_server_address(server));
    assert_int_equal(system(command), 0);
    assert_int_equal(call_anew(), SL_OK);
}

static int set_up(void **state) {
    (void)state;
    int orders[2], done[2];
    if (pipe2(orders, O_CLOEXEC) || pipe2(done, O_CLOEXEC)) {
        return -1;
    }
    flooder.pid = fork(); // before gRPC is there, and with the limit as it was
    if (flooder.pid == 0) {
        close(orders[1]);
        obey(orders[0], done[1]);
    }
    close(orders[0]);
    close(done[1]);
    flooder.orders = orders[1];
    flooder.done = done[0];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = LIMIT;
    if (flooder.pid < 0 || setrlimit(RLIMIT_NOFILE, &files)) {
        return -1;
    }
    sl_rpc_init();
    echo_init(&echo);
    if (echo_start(&echo, "127.0.0.1:0", 0, &server, NULL) != SL_OK) {
        return -1;
    }
    port = atoi(strrchr(sl_rpc_server_address(server), ':') + 1);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    echo_stop(&echo, &server, 1000);
    sl_rpc_shutdown();
    close(flooder.orders);
    waitpid(flooder.pid, NULL, 0);
    return 0;
}

static void test_server_refuses_a_flood_and_answers_after_it(void **state) {
    (void)state;
    struct sl_rpc_channel *before = new_channel();
    struct sl_error err;
    assert_int_equal(echo_call(before, &echo_get, "job-1", CALL_MS, &err), SL_OK);
    assert_int_equal(n_refused(), 0);
    assert_int_equal(flood(FLOOD), FLOOD);
    assert_true(becomes_refused(FLOOD - CEILING));
    assert_int_equal(call_anew(), SL_ERR_PEER_LOST);                               // at once, not at its deadline
    assert_int_equal(echo_call(before, &echo_get, "job-1", CALL_MS, &err), SL_OK); // open connections stay
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC); // and the rest of the process has room
    assert_in_range(fd, CEILING - 1, LIMIT - 1);
    close(fd);
    assert_int_equal(flood(0), 0);
    enum sl_status status = SL_ERR_PEER_LOST;
    for (const int64_t end_ns = sl_deadline_in_ms(20000); status != SL_OK && sl_now_ns() < end_ns; sl_sleep_ms(10)) {
        status = call_anew();
    }
    assert_int_equal(status, SL_OK);
    sl_rpc_channel_destroy(&before);
}

static void test_server_answers_after_a_time_without_descriptors(void **state) {
    (void)state;
    static int taken[LIMIT];
    int n_taken = 0;
    while ((taken[n_taken] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        n_taken++;
    }
    assert_true(n_taken > 0);
    assert_int_equal(flood(2), 2);
    sl_sleep_ms(200); // accept4() has failed by then
    while (n_taken > 0) {
        close(taken[--n_taken]);
    }
    assert_int_equal(call_anew(), SL_OK);
    assert_int_equal(flood(0), 0);
}

static void test_selfcheck_knows_a_deaf_port(void **state) {
    (void)state;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 64), 0); // the kernel connects, and no process accepts
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &bytes), 0);
    char deaf_address[64], why[512] = "";
    snprintf(deaf_address, sizeof deaf_address, "127.0.0.1:%d", ntohs(at.sin_port));
    struct sl_rpc_selfcheck *deaf = NULL, *good = NULL;
    struct sl_error err;
    assert_int_equal(sl_rpc_selfcheck_start(deaf_address, NULL, &deaf, &err), SL_OK);
    assert_int_equal(sl_rpc_selfcheck_start(sl_rpc_server_address(server), NULL, &good, &err), SL_OK);
    assert_true(sl_rpc_selfcheck_answers(deaf, why, sizeof why)); // not yet
    assert_int_equal(flood(FLOOD), FLOOD);
    const int64_t deaf_ns = sl_deadline_in_ms(SL_RPC_DEAF_MS + 1000);
    bool had_room = true;
    while (sl_now_ns() < deaf_ns) {
        had_room &= sl_rpc_selfcheck_has_room(good, why, sizeof why);
        assert_true(sl_rpc_selfcheck_answers(good, why, sizeof why)); // a port that refuses is not deaf
        sl_sleep_ms(100);
    }
    assert_false(had_room);
    assert_false(sl_rpc_selfcheck_answers(deaf, why, sizeof why));
    assert_non_null(strstr(why, deaf_address));
    assert_true(sl_rpc_selfcheck_answers(good, why, sizeof why));
    sl_rpc_selfcheck_stop(deaf);
    assert_true(sl_rpc_selfcheck_answers(deaf, why, sizeof why)); // its server stops, and is not to be called deaf
    sl_rpc_selfcheck_destroy(&deaf);
    sl_rpc_selfcheck_destroy(&good);
    assert_int_equal(flood(0), 0);
    close(listener);
}

static void test_addresses_are_reached_from_here(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"0.0.0.0:80", "127.0.0.1:80"}, {"[::]:80", "127.0.0.1:80"}, {"127.0.0.2:81", "127.0.0.2:81"},
        {"[::1]:80", "[::1]:80"},       {"localhost:9", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_rpc_address address, near;
        char text[300];
        assert_int_equal(sl_rpc_address_parse(cases[i][0], &address, NULL), SL_OK);
        assert_int_equal(sl_rpc_address_near(&address, &near, NULL), SL_OK);
        sl_rpc_address_format(&near, text, sizeof text);
        if (cases[i][1]) {
            assert_string_equal(text, cases[i][1]);
        } else { // as the machine has it
            assert_true(strcmp(text, "127.0.0.1:9") == 0 || strcmp(text, "[::1]:9") == 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server_refuses_a_flood_and_answers_after_it),
        cmocka_unit_test(test_server_answers_after_a_time_without_descriptors),
        cmocka_unit_test(test_server_closes_a_hosts_next_connections_sooner),
        cmocka_unit_test(test_server_closes_connections_that_reset_calls),
        cmocka_unit_test(test_resets_in_one_read_are_few),
        cmocka_unit_test(test_a_descriptors_next_connection_begins_anew),
        cmocka_unit_test(test_server_closes_connections_of_endless_headers),
        cmocka_unit_test(test_server_closes_connections_that_share_a_count),
        cmocka_unit_test(test_server_keeps_a_connection_that_ends_calls_after_a_message),
        cmocka_unit_test(test_server_keeps_a_connection_that_ends_streams_before_a_message),
        cmocka_unit_test(test_peer_is_the_whole_host),
        cmocka_unit_test(test_selfcheck_knows_a_deaf_port),
        cmocka_unit_test(test_addresses_are_reached_from_here),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
