// SPDX-License-Identifier: Apache-2.0
// Purpose: the admin port, by a client of plain sockets: what each path says through a process' life, and what is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "net/admin/admin.h"
#include "base/metrics.h"
#include "base/thread.h"

static int connect_from(const struct sl_admin *admin, const char *host) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    struct sockaddr_in there = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)atoi(strrchr(sl_admin_address(admin), ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval patience = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&there, sizeof there), 0);
    return fd;
}

static int connect_to(const struct sl_admin *admin) {
    return connect_from(admin, "127.0.0.1");
}

// Sends these bytes and returns all that is received until the connection ends.
static const char *ask(const struct sl_admin *admin, const char *words) {
    static char reply[65536];
    int fd = connect_to(admin);
    assert_int_equal(send(fd, words, strlen(words), MSG_NOSIGNAL), strlen(words));
    size_t used = 0;
    ssize_t n;
    while (used < sizeof reply - 1 && (n = recv(fd, reply + used, sizeof reply - 1 - used, 0)) > 0) {
        used += (size_t)n;
    }
    close(fd);
    reply[used] = '\0';
    return reply;
}

static const char *get(const struct sl_admin *admin, const char *path) {
    char words[256];
    snprintf(words, sizeof words, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    return ask(admin, words);
}

static void assert_answer(const struct sl_admin *admin, const char *path, const char *status, const char *body) {
    const char *reply = get(admin, path);
    char line[64];
    snprintf(line, sizeof line, "HTTP/1.1 %s ", status);
    assert_memory_equal(reply, line, strlen(line));
    const char *text = strstr(reply, "\r\n\r\n");
    assert_non_null(text);
    assert_string_equal(text + 4, body);
}

static bool say(void *arg, char why[SL_WHY_BYTES]) {
    const char *words = *(const char **)arg;
    snprintf(why, SL_WHY_BYTES, "%s", words ? words : "");
    return !words;
}

static struct sl_admin *open_admin(void) {
    struct sl_admin *admin;
    struct sl_error err = {0};
    assert_int_equal(sl_admin_open("127.0.0.1:0", "1.2.3", &admin, &err), SL_OK);
    return admin;
}

static void test_probes_through_a_life(void **state) {
    (void)state;
    struct sl_admin *admin = open_admin();
    assert_answer(admin, "/startupz", "503", "starting\n");
    assert_answer(admin, "/livez", "200", "ok\n");
    assert_answer(admin, "/readyz", "503", "starting\n");

    const char *engine = NULL, *registered = "not registered yet", *stopping = NULL;
    sl_admin_add_check(admin, &(struct sl_admin_check){SL_PROBE_LIVE, "threads", say, &engine});
    sl_admin_add_check(admin, &(struct sl_admin_check){SL_PROBE_READY, "registered", say, &registered});
    sl_admin_add_check(admin, &(struct sl_admin_check){SL_PROBE_READY, "stopping", say, &stopping});
    assert_answer(admin, "/readyz", "503", "starting\n");
    sl_admin_started(admin);
    assert_answer(admin, "/startupz", "200", "ok\n");
    assert_answer(admin, "/readyz", "503", "not registered yet\n");
    assert_answer(admin, "/readyz?verbose", "503", "registered: not registered yet\nstopping: ok\n");
    registered = NULL;
    assert_answer(admin, "/readyz", "200", "ok\n");
    stopping = "stopping: it was\r\ntold to";
    assert_answer(admin, "/readyz", "503", "stopping: it was  told to\n"); // one line
    assert_answer(admin, "/livez", "200", "ok\n");
    const char *disk = NULL;
    sl_admin_add_check(admin, &(struct sl_admin_check){SL_PROBE_NOTICE, "disk", say, &disk});
    assert_answer(admin, "/livez", "200", "ok\n");
    disk = "the disk stands still";
    assert_answer(admin, "/livez", "200", "the disk stands still\nok\n");
    assert_answer(admin, "/livez?verbose", "200", "threads: ok\ndisk: the disk stands still\n");
    disk = NULL;
    engine = "the engine stands still";
    assert_answer(admin, "/livez", "503", "the engine stands still\n");
    assert_answer(admin, "/livez?verbose=1", "503", "threads: the engine stands still\ndisk: ok\n");
    assert_answer(admin, "/livez?other", "503", "the engine stands still\n");
    sl_admin_close(&admin);
    assert_null(admin);
}

static void write_figure(void *arg, FILE *page) {
    sl_metrics_declare(page, SL_GAUGE, "x_figure", "Words.");
    sl_metrics_sample(page, "x_figure", *(const int *)arg, NULL);
}

static void test_metrics_are_those_of_all(void **state) {
    (void)state;
    struct sl_admin *admin = open_admin();
    int figure = 7;
    sl_admin_add_metrics(admin, write_figure, &figure);
    const char *reply = get(admin, "/metrics");
    assert_memory_equal(reply, "HTTP/1.1 200 ", 13);
    static const char *const wanted[] = {"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
                                         "\nsluice_build_info{version=\"1.2.3\"} 1\n",
                                         "\nx_figure 7\n",
                                         "\nprocess_cpu_seconds_total ",
                                         "\nprocess_resident_memory_bytes ",
                                         "\nprocess_open_fds ",
                                         "\nprocess_start_time_seconds "};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (!strstr(reply, wanted[i])) {
            fail_msg("no %s in %s", wanted[i], reply);
        }
    }
    // Started within this hour.
    double started =
        strtod(strstr(reply, "\nprocess_start_time_seconds ") + strlen("\nprocess_start_time_seconds "), NULL);
    assert_true(started > (double)time(NULL) - 3600 && started < (double)time(NULL) + 5);
    sl_admin_close(&admin);
}

static void test_everything_else_is_refused(void **state) {
    (void)state;
    struct sl_admin *admin = open_admin();
    sl_admin_started(admin);
    static const char *const methods[] = {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char words[256];
        snprintf(words, sizeof words,
                 "%s /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", methods[i]);
        const char *reply = ask(admin, words);
        assert_memory_equal(reply, "HTTP/1.1 405 ", 13);
        assert_non_null(strstr(reply, "Allow: GET, HEAD\r\n"));
    }
    assert_memory_equal(get(admin, "/"), "HTTP/1.1 404 ", 13);
    assert_memory_equal(get(admin, "/livez/"), "HTTP/1.1 404 ", 13);
    assert_null(strstr(get(admin, "/livez"), "Allow:"));
    assert_memory_equal(get(admin, "/../etc/passwd"), "HTTP/1.1 404 ", 13);
    const char *head = ask(admin, "HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    assert_string_equal(strstr(head, "\r\n\r\n"), "\r\n\r\n");
    // A body is read to its end, if that is not far, so that its sender hears what is wrong.
    for (int n_bytes = 60000; n_bytes <= 300000; n_bytes += 240000) {
        int fd = connect_to(admin);
        char reply[64] = "";
        snprintf(reply, sizeof reply, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", n_bytes);
        assert_int_equal(send(fd, reply, strlen(reply), MSG_NOSIGNAL), strlen(reply));
        int n_sent = 0;
        for (ssize_t n; n_sent < n_bytes && (n = send(fd, reply, 50, MSG_NOSIGNAL)) > 0;) {
            n_sent += (int)n;
        }
        memset(reply, 0, sizeof reply);
        ssize_t n = recv(fd, reply, sizeof reply - 1, 0);
        assert_true(n_bytes < 65536 ? strncmp(reply, "HTTP/1.1 405 ", 13) == 0 : n <= 0);
        close(fd);
    }
    // A GET with a body is answered, and a head without an end is not waited for at any length.
    assert_memory_equal(
        ask(admin, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"),
        "HTTP/1.1 200 ", 13);
    static char endless[64 << 10];
    memset(endless, 'a', sizeof endless - 1);
    memcpy(endless, "GET /livez HTTP/1.1\r\nX: ", 24);
    int fd = connect_to(admin);
    (void)!send(fd, endless, sizeof endless - 1, MSG_NOSIGNAL);
    char reply[64] = "";
    assert_true(recv(fd, reply, sizeof reply - 1, 0) <= 0 || strncmp(reply, "HTTP/1.1 4", 10) == 0);
    close(fd);
    assert_answer(admin, "/livez", "200", "ok\n");
    sl_admin_close(&admin);
}

static void test_one_host_does_not_keep_many_connections(void **state) {
    (void)state;
    struct sl_admin *admin = open_admin();
    int fds[40], n_closed = 0;
    for (int i = 0; i < 40; i++) {
        fds[i] = connect_to(admin);
    }
    for (int i = 39; i >= 0; i--) { // those that came last
        struct timeval patience = {.tv_usec = 300000};
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        char byte;
        n_closed += recv(fds[i], &byte, 1, 0) == 0;
        if (n_closed > 0) {
            break;
        }
    }
    assert_true(n_closed > 0);
    for (int i = 0; i < 40; i++) {
        close(fds[i]);
    }
    for (int i = 0; i < 100 && strncmp(get(admin, "/livez"), "HTTP/1.1 200 ", 13) != 0; i++) {
        usleep(50000); // until it has seen that they are gone
    }
    assert_answer(admin, "/livez", "200", "ok\n");
    sl_admin_close(&admin);
}

static void test_many_hosts_make_room(void **state) {
    (void)state;
    enum { N_HOSTS = 5, N_EACH = 15 }; // more than there are places
    struct sl_admin *admin = open_admin();
    int fds[N_HOSTS * N_EACH];
    for (int i = 0; i < N_HOSTS * N_EACH; i++) {
        char host[32];
        snprintf(host, sizeof host, "127.0.0.%d", 2 + i / N_EACH);
        fds[i] = connect_from(admin, host);
        (void)!send(fds[i], "GET /livez HTTP/1.1\r\nHost:", 26, MSG_NOSIGNAL); // a head that does not end
        usleep(1000);
    }
    assert_answer(admin, "/livez", "200", "ok\n");
    char byte;
    assert_true(recv(fds[0], &byte, 1, 0) <= 0); // the oldest has made room
    for (int i = 0; i < N_HOSTS * N_EACH; i++) {
        close(fds[i]);
    }
    sl_admin_close(&admin);
}

static void test_places_are_checked(void **state) {
    (void)state;
    static const char *const bad[] = {
        "", "nowhere", ":", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:http"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_admin *admin;
        struct sl_error err = {0};
        assert_int_equal(sl_admin_open(bad[i], "1", &admin, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "--admin-listen"));
        assert_null(admin);
    }
    struct sl_admin *admin = open_admin(), *second;
    struct sl_error err = {0};
    assert_int_equal(sl_admin_open(sl_admin_address(admin), "1", &second, &err), SL_ERR_IO); // taken
    assert_non_null(strstr(err.text, "in use"));
    sl_admin_close(&admin);
}

static void test_brackets_are_of_ipv6(void **state) {
    (void)state;
    struct sl_admin *admin;
    struct sl_error err = {0};
    enum sl_status status = sl_admin_open("[::1]:0", "1", &admin, &err);
    if (status == SL_ERR_IO || strstr(err.text, "not supported")) {
        print_message("no IPv6 here: %s\n", err.text);
        return;
    }
    assert_int_equal(status, SL_OK);
    assert_memory_equal(sl_admin_address(admin), "[::1]:", 6);
    sl_admin_close(&admin);
}

static void test_none_is_no_port(void **state) {
    (void)state;
    struct sl_admin *admin;
    assert_int_equal(sl_admin_open("none", "1", &admin, NULL), SL_OK);
    assert_null(admin);
    assert_string_equal(sl_admin_address(admin), "");
    int figure = 0;
    const char *words = NULL;
    sl_admin_add_check(admin, &(struct sl_admin_check){SL_PROBE_LIVE, "x", say, &words});
    sl_admin_add_metrics(admin, write_figure, &figure);
    sl_admin_started(admin);
    sl_admin_close(&admin);
}

// After sl_admin_close() no page that was added is called any more, whatever clients request meanwhile.
struct life {
    struct sl_admin *admin;
    _Atomic bool over;
    _Atomic int n_calls;
};

static void count_call(void *arg, FILE *page) {
    struct life *life = arg;
    assert_false(atomic_load(&life->over));
    atomic_fetch_add(&life->n_calls, 1);
    fputs("x 1\n", page);
}

static void *ask_on(void *arg) {
    struct life *life = arg;
    for (int i = 0; i < 50; i++) {
        int fd = connect_to(life->admin);
        static const char words[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        (void)!send(fd, words, sizeof words - 1, MSG_NOSIGNAL);
        char reply[4096];
        while (recv(fd, reply, sizeof reply, 0) > 0) {
        }
        close(fd);
    }
    return NULL;
}

static void test_many_may_ask_while_things_come_and_go(void **state) {
    (void)state;
    struct life life = {.admin = open_admin()};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(sl_thread_start("ask", ask_on, &life, &threads[i], NULL), SL_OK);
    }
    sl_admin_add_metrics(life.admin, count_call, &life);
    sl_admin_started(life.admin);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    ask_on(&life); // those may all have asked before there was anything to call
    assert_true(atomic_load(&life.n_calls) > 0);
    int fd = connect_to(life.admin); // one that says nothing does not keep it open
    sl_admin_close(&life.admin);
    atomic_store(&life.over, true);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probes_through_a_life),
        cmocka_unit_test(test_metrics_are_those_of_all),
        cmocka_unit_test(test_everything_else_is_refused),
        cmocka_unit_test(test_one_host_does_not_keep_many_connections),
        cmocka_unit_test(test_many_hosts_make_room),
        cmocka_unit_test(test_places_are_checked),
        cmocka_unit_test(test_brackets_are_of_ipv6),
        cmocka_unit_test(test_none_is_no_port),
        cmocka_unit_test(test_many_may_ask_while_things_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
