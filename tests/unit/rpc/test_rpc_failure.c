// SPDX-License-Identifier: Apache-2.0
// Purpose: failures from outside: dead ports, ports in use, peers that are killed or stand still, servers that stop.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/rpc/echo_service.h"
#include "tests/unit/running_clock.h"

// Two peers, started before gRPC is (it does not survive a fork): one to be killed, one to be stopped.
static struct peer {
    pid_t pid;
    int to; // its standard input
    char address[64];
} peers[2];

static int start_peer(struct peer *peer, const char *program) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) {
        return -1;
    }
    peer->pid = fork();
    if (peer->pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    peer->to = in[1];
    FILE *lines = fdopen(out[0], "r");
    if (peer->pid < 0 || !lines || !fgets(peer->address, sizeof peer->address, lines)) {
        return -1;
    }
    peer->address[strcspn(peer->address, "\n")] = '\0';
    fclose(lines);
    return 0;
}

static void test_dead_port_is_unavailable_at_once(void **state) {
    (void)state;
    struct sl_rpc_channel *channel;
    struct sl_rpc_server *server;
    struct sl_rpc_stream *stream;
    struct echo echo;
    struct sl_error err;
    ProtobufCMessage *event;
    char address[64];
    echo_init(&echo);
    assert_int_equal(echo_start(&echo, "127.0.0.1:0", 0, &server, &err), SL_OK);
    snprintf(address, sizeof address, "%s", sl_rpc_server_address(server));
    echo_stop(&echo, &server, 0);
    assert_int_equal(sl_rpc_channel_create(address, NULL, SL_ROLE_ANY, &channel, &err), SL_OK);
    const int64_t start_ns = running_ns();
    assert_int_equal(echo_call(channel, &echo_get, "x", 10000, &err), SL_ERR_PEER_LOST);
    assert_int_equal(err.reason, SL_REASON_UNCONNECTED);
    assert_int_equal(echo_open(channel, &echo_watch, "x", 1, 10000, &stream, &err), SL_OK);
    assert_int_equal(sl_rpc_stream_next(stream, 5000, &event, &err), SL_ERR_PEER_LOST);
    assert_true(running_ns() - start_ns < 1500 * SL_NS_PER_MS);
    sl_rpc_stream_close(&stream);
    // The same channel finds a server that comes up later, within about a second.
    assert_int_equal(echo_start(&echo, address, 0, &server, &err), SL_OK);
    enum sl_status status = SL_ERR_PEER_LOST;
    for (const int64_t end_ns = sl_deadline_in_ms(5000); status != SL_OK && sl_now_ns() < end_ns; sl_sleep_ms(20)) {
        status = echo_call(channel, &echo_get, "x", 1000, &err);
    }
    assert_int_equal(status, SL_OK);
    echo_stop(&echo, &server, 0);
    sl_rpc_channel_destroy(&channel);
}

static void test_server_names_an_address_in_use(void **state) {
    (void)state;
    struct sl_rpc_server *first, *second = NULL;
    struct echo echo;
    struct sl_error err;
    echo_init(&echo);
    assert_int_equal(echo_start(&echo, "127.0.0.1:0", 0, &first, &err), SL_OK);
    assert_int_equal(echo_start(&echo, sl_rpc_server_address(first), 0, &second, &err), SL_ERR_EXISTS);
    assert_non_null(strstr(err.text, sl_rpc_server_address(first)));
    assert_null(second);
    assert_int_equal(echo_start(&echo, "203.0.113.1:0", 0, &second, &err), SL_ERR_INVALID); // not ours
    assert_int_equal(echo_start(&echo, "no port", 0, &second, &err), SL_ERR_INVALID);
    echo_stop(&echo, &first, 0);
}

static void test_server_listens_on_ipv6(void **state) {
    (void)state;
    struct sl_rpc_channel *channel;
    struct sl_rpc_server *server;
    struct echo echo;
    struct sl_error err;
    echo_init(&echo);
    if (echo_start(&echo, "[::1]:0", 0, &server, &err) != SL_OK) {
        print_message("no IPv6 loopback here: %s\n", err.text);
        skip();
    }
    assert_int_equal(sl_rpc_channel_create(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channel, &err), SL_OK);
    assert_int_equal(echo_call(channel, &echo_get, "x", 5000, &err), SL_OK);
    sl_rpc_channel_destroy(&channel);
    echo_stop(&echo, &server, 0);
}

static void test_server_stop_cancels_after_the_grace(void **state) {
    (void)state;
    struct sl_rpc_channel *channel;
    struct sl_rpc_server *server;
    struct sl_rpc_stream *slow, *endless;
    struct echo echo;
    struct sl_error err;
    ProtobufCMessage *event;
    echo_init(&echo);
    assert_int_equal(echo_start(&echo, "127.0.0.1:0", 0, &server, &err), SL_OK);
    assert_int_equal(sl_rpc_channel_create(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channel, &err), SL_OK);
    assert_int_equal(echo_open(channel, &echo_watch, "slow", 10, 20000, &slow, &err), SL_OK);        // 0.2 s
    assert_int_equal(echo_open(channel, &echo_watch, "slow", 100000, 20000, &endless, &err), SL_OK); // 2000 s
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sl_rpc_stream_next(i ? endless : slow, 5000, &event, &err), SL_OK);
        protobuf_c_message_free_unpacked(event, NULL);
    }
    const int64_t start_ns = sl_now_ns(), running = running_ns();
    echo_stop(&echo, &server, 2000);
    assert_true(sl_now_ns() - start_ns >= 1900 * SL_NS_PER_MS);
    assert_true(running_ns() - running < 5000 * SL_NS_PER_MS);
    assert_int_equal(atomic_load(&echo.n_cancelled), 1);
    enum sl_status status;
    int n = 1;
    while ((status = sl_rpc_stream_next(slow, 1000, &event, &err)) == SL_OK) {
        protobuf_c_message_free_unpacked(event, NULL);
        n++;
    }
    assert_int_equal(status, SL_ERR_NOT_FOUND); // within the grace: complete
    assert_int_equal(n, 10);
    while ((status = sl_rpc_stream_next(endless, 1000, &event, &err)) == SL_OK) {
        protobuf_c_message_free_unpacked(event, NULL);
    }
    assert_int_equal(status, SL_ERR_PEER_LOST);
    assert_int_equal(echo_call(channel, &echo_get, "x", 2000, &err), SL_ERR_PEER_LOST);
    sl_rpc_stream_close(&slow);
    sl_rpc_stream_close(&endless);
    sl_rpc_channel_destroy(&channel);
    assert_true(echo_no_calls(2000));
    sl_rpc_server_stop(&server, 0); // NULL
}

// A connection without calls whose client never reads it again.
static int connect_idle_client(const char *address) {
    static const char hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // and no settings: nine bytes of a frame's head
                                "\0\0\0\4\0\0\0\0";
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(client, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(client, hello, sizeof hello, 0), sizeof hello); // the last byte of the head is the literal's
    char first;
    assert_int_equal(recv(client, &first, 1, MSG_PEEK), 1); // the server's settings: it knows the connection
    return client;
}

static void test_server_stop_does_not_wait_for_idle_clients(void **state) {
    (void)state;
    struct sl_rpc_server *server;
    struct echo echo;
    struct sl_error err;
    echo_init(&echo);
    assert_int_equal(echo_start(&echo, "127.0.0.1:0", 0, &server, &err), SL_OK);
    int client = connect_idle_client(sl_rpc_server_address(server));
    const int64_t start_ns = running_ns();
    echo_stop(&echo, &server, 20000);
    assert_true(running_ns() - start_ns < 5000 * SL_NS_PER_MS);
    close(client);
}

// Read events until the peer dies of the signal; how long did it take to notice?
static int64_t lose_peer(struct peer *peer, int with_signal) {
    struct sl_rpc_channel *channel;
    struct sl_rpc_stream *stream;
    struct sl_error err;
    ProtobufCMessage *event;
    assert_int_equal(sl_rpc_channel_create(peer->address, NULL, SL_ROLE_ANY, &channel, &err), SL_OK);
    assert_int_equal(echo_open(channel, &echo_watch, "slow", 100000, 60000, &stream, &err), SL_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(sl_rpc_stream_next(stream, 5000, &event, &err), SL_OK);
        protobuf_c_message_free_unpacked(event, NULL);
    }
    assert_int_equal(kill(peer->pid, with_signal), 0);
    const int64_t start_ns = running_ns();
    enum sl_status status;
    while ((status = sl_rpc_stream_next(stream, 15000, &event, &err)) == SL_OK) {
        protobuf_c_message_free_unpacked(event, NULL);
    }
    assert_int_equal(status, SL_ERR_PEER_LOST);
    const int64_t took_ms = (running_ns() - start_ns) / SL_NS_PER_MS;
    print_message("signal %d noticed after %lld ms: %s\n", with_signal, (long long)took_ms, err.text);
    assert_true(with_signal != SIGKILL || strstr(err.text, ": its process has ended, or was killed"));
    assert_null(strstr(err.text, "--tls-ca")); // it has taken the connection
    sl_rpc_stream_close(&stream);
    sl_rpc_channel_destroy(&channel);
    kill(peer->pid, SIGKILL);
    waitpid(peer->pid, NULL, 0);
    return took_ms;
}

static void test_killed_peer_is_noticed(void **state) {
    (void)state;
    assert_true(lose_peer(&peers[0], SIGKILL) < 2000);
}

static void test_peer_that_stands_still_is_noticed(void **state) {
    (void)state;
    assert_true(lose_peer(&peers[1], SIGSTOP) < 9000);
}

// ---- a server that is none of gRPC's ------------------------------------------------------------------------------------

static bool read_whole(int fd, void *bytes, size_t n) {
    return n == 0 || recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

// Answers the first call on the listening socket *arg with headers and trailers in which no status is, as a proxy or a server
// that is just ending may. Frames of HTTP/2: length (3), type, flags, stream (4).
static void *answer_without_a_status(void *arg) {
    static const uint8_t settings[] = {0, 0, 0, 4, 0, 0, 0, 0, 0}, agreed[] = {0, 0, 0, 4, 1, 0, 0, 0, 0};
    static const uint8_t headers[] = {0,   0,   20,  1,   4,   0,   0,   0,   1,   0x88, 0x0f, 0x10, 16,  'a', 'p',
                                      'p', 'l', 'i', 'c', 'a', 't', 'i', 'o', 'n', '/',  'g',  'r',  'p', 'c'};
    static const uint8_t trailers[] = {0, 0, 5, 1, 5, 0, 0, 0, 1, 0, 1, 'x', 1, 'y'};
    uint8_t preface[24], head[9], body[1 << 14];
    int fd = accept(*(int *)arg, NULL, NULL);
    bool goes_on = fd >= 0 && read_whole(fd, preface, sizeof preface) &&
                   send(fd, settings, sizeof settings, MSG_NOSIGNAL) == (ssize_t)sizeof settings;
    while (goes_on && read_whole(fd, head, sizeof head)) {
        size_t n = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        goes_on = n <= sizeof body && read_whole(fd, body, n);
        if (head[3] == 4 && head[4] == 0) {
            send(fd, agreed, sizeof agreed, MSG_NOSIGNAL);
        } else if (head[3] == 1) {
            send(fd, headers, sizeof headers, MSG_NOSIGNAL);
            send(fd, trailers, sizeof trailers, MSG_NOSIGNAL);
        }
    }
    close(fd);
    return NULL;
}

static void test_an_answer_without_a_status_is_an_error(void **state) {
    (void)state;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof where;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&where, n), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&where, &n), 0);
    pthread_t server;
    assert_int_equal(pthread_create(&server, NULL, answer_without_a_status, &listener), 0);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(where.sin_port));
    struct sl_rpc_channel *channel;
    struct sl_error err;
    assert_int_equal(sl_rpc_channel_create(address, NULL, SL_ROLE_ANY, &channel, &err), SL_OK);
    assert_int_not_equal(echo_call(channel, &echo_get, "x", 10000, &err), SL_OK);
    sl_rpc_channel_destroy(&channel);
    pthread_join(server, NULL);
    close(listener);
}

int main(int argc, char **argv) {
    if (argc != 2 || start_peer(&peers[0], argv[1]) || start_peer(&peers[1], argv[1])) {
        fprintf(stderr, "usage: %s ECHO_SERVER\n", argv[0]);
        return 2;
    }
    sl_rpc_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead_port_is_unavailable_at_once),
        cmocka_unit_test(test_server_names_an_address_in_use),
        cmocka_unit_test(test_server_listens_on_ipv6),
        cmocka_unit_test(test_server_stop_cancels_after_the_grace),
        cmocka_unit_test(test_server_stop_does_not_wait_for_idle_clients),
        cmocka_unit_test(test_an_answer_without_a_status_is_an_error),
        cmocka_unit_test(test_killed_peer_is_noticed),
        cmocka_unit_test(test_peer_that_stands_still_is_noticed),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}
