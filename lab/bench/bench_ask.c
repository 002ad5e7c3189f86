// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what one ask costs, and how fast ranges of a window are fetched, between two processes of this host.
 *
 * Design: answerer and asker are two children, forked before UCX is started in either. An ask of 1 KiB is answered with
 *         32 KiB by a thread that does nothing else: what is timed is the way there and back. It stands beside a message of
 *         the same sizes there and back through a socket pair with blocking reads, which is the floor of two threads that
 *         wake each other. A fetch is 16 MiB of ranges scattered over a window of 64 MiB, beside a copy of the same ranges
 *         within one process.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/thread.h"
#include "fabric/fetch.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/pair.h"
#include "lab/result.h"

#define MIB           (1u << 20)
#define WINDOW_BYTES  (64u * MIB)
#define FETCH_BYTES   (16u * MIB)
#define REQUEST_BYTES 1024
#define ANSWER_BYTES  (32u << 10)
#define N_ASKS        4000
#define N_FETCHES     15

struct place { // where the answerer is
    char address[64];
    uint64_t epoch;
    uint8_t ticket[SL_TICKET_MAX_BYTES];
    size_t ticket_bytes;
};

// ---- the answerer ----------------------------------------------------------------------------------------------------

struct desk {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sl_fabric_incoming *question; // one at a time
    const uint8_t *answer;
};

static void on_question(void *arg, struct sl_fabric_incoming *question) {
    struct desk *desk = arg;
    pthread_mutex_lock(&desk->lock);
    desk->question = question;
    pthread_cond_signal(&desk->changed);
    pthread_mutex_unlock(&desk->lock);
}

static void *serve(void *arg) {
    struct desk *desk = arg;
    for (;;) {
        pthread_mutex_lock(&desk->lock);
        while (!desk->question) {
            pthread_cond_wait(&desk->changed, &desk->lock);
        }
        struct sl_fabric_incoming *question = desk->question;
        desk->question = NULL;
        pthread_mutex_unlock(&desk->lock);
        sl_fabric_incoming_reply(&question, desk->answer, ANSWER_BYTES, NULL, NULL);
    }
    return NULL;
}

// Until the socket is closed.
static int answer(const char *transport, int socket) {
    static struct desk desk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    uint8_t *region = NULL, *ticket = NULL;
    struct sl_error err = {0};
    struct sl_fabric *fabric = sl_pair_fabric(transport, WINDOW_BYTES, &region);
    if (!fabric) {
        return 1;
    }
    struct place place = {.epoch = sl_fabric_epoch(fabric)};
    struct sl_window *window = NULL;
    pthread_t thread;
    desk.answer = region;
    if (sl_window_open(fabric, region, WINDOW_BYTES, &window, &ticket, &place.ticket_bytes, &err) != SL_OK ||
        sl_thread_start("desk", serve, &desk, &thread, &err) != SL_OK) {
        fprintf(stderr, "ask: %s\n", err.text);
        return 1;
    }
    sl_fabric_on_request(fabric, on_question, &desk);
    memcpy(place.ticket, ticket, place.ticket_bytes);
    snprintf(place.address, sizeof place.address, "%s", sl_fabric_address(fabric));
    uint8_t request[REQUEST_BYTES];
    if (sl_pair_write(socket, &place, sizeof place)) {
        while (sl_pair_read(socket, request, sizeof request) && sl_pair_write(socket, region, ANSWER_BYTES)) {
        }
    }
    _exit(0); // the thread and everything else with it
}

// ---- the asker -------------------------------------------------------------------------------------------------------

struct asker {
    const char *transport;
    int socket;
    struct place place;
    struct sl_fabric *fabric;
    struct sl_connection *connection;
    uint8_t *region;
    bool json;
};

// Microseconds of one ask; negative: it failed.
static double ask_once(struct asker *it) {
    static const uint8_t request[REQUEST_BYTES];
    struct sl_error err = {0};
    struct sl_fabric_request *sent = NULL;
    size_t bytes = 0;
    int64_t start_ns = sl_now_ns(), deadline = start_ns + 5 * SL_NS_PER_S;
    enum sl_status status = sl_fabric_request_open(it->connection, request, sizeof request, it->region, ANSWER_BYTES,
                                                   deadline, &sent, &err);
    if (status == SL_OK) {
        status = sl_fabric_request_wait(sent, deadline, &bytes, &err);
        sl_fabric_request_close(&sent);
    }
    if (status != SL_OK) {
        fprintf(stderr, "ask: %s\n", err.text);
        return -1;
    }
    return (double)(sl_now_ns() - start_ns) / 1e3;
}

static double socket_once(const struct asker *it) {
    static uint8_t request[REQUEST_BYTES];
    int64_t start_ns = sl_now_ns();
    return sl_pair_write(it->socket, request, sizeof request) && sl_pair_read(it->socket, it->region, ANSWER_BYTES)
               ? (double)(sl_now_ns() - start_ns) / 1e3
               : -1;
}

static bool measure_asks(struct asker *it) {
    double *asks = malloc(2 * N_ASKS * sizeof *asks), *sockets = asks + N_ASKS;
    bool good = asks != NULL;
    for (int i = -N_ASKS / 10; good && i < N_ASKS; i++) { // the first ones warm up
        int n = i < 0 ? 0 : i;
        asks[n] = ask_once(it);
        good = asks[n] >= 0;
    }
    for (int i = 0; good && i < N_ASKS; i++) {
        sockets[i] = socket_once(it);
        good = sockets[i] >= 0;
    }
    if (good) {
        qsort(asks, N_ASKS, sizeof *asks, sl_bench_ascending);
        qsort(sockets, N_ASKS, sizeof *sockets, sl_bench_ascending);
        static const struct {
            const char *name;
            int at;
        } quantiles[] = {{"p50", N_ASKS / 2}, {"p99", N_ASKS * 99 / 100}};
        for (size_t q = 0; q < 2; q++) {
            char name[96], reference[96];
            snprintf(name, sizeof name, "%s: 1 KiB asked, 32 KiB answered, %s", it->transport, quantiles[q].name);
            snprintf(reference, sizeof reference, "socket pair, %s", quantiles[q].name);
            struct sl_bench_result result = {.bench = "ask",
                                             .test = name,
                                             .value = asks[quantiles[q].at],
                                             .unit = "us",
                                             .reference = reference,
                                             .reference_value = sockets[quantiles[q].at],
                                             .as_factor = true};
            sl_bench_print(&result, it->json);
        }
    }
    free(asks);
    return good;
}

// GB/s; negative: it failed.
static double fetch_once(struct asker *it, const struct sl_fetch_range *ranges, size_t n) {
    struct sl_error err = {0};
    struct sl_fetch *fetch = NULL;
    int64_t start_ns = sl_now_ns(), deadline = start_ns + 20 * SL_NS_PER_S;
    enum sl_status status =
        sl_fetch_open(it->connection, it->place.ticket, it->place.ticket_bytes, ranges, n, deadline, &fetch, &err);
    if (status == SL_OK) {
        status = sl_fetch_wait(fetch, deadline, &err);
        sl_fetch_close(&fetch);
    }
    if (status != SL_OK) {
        fprintf(stderr, "ask: %s\n", err.text);
        return -1;
    }
    return FETCH_BYTES / ((double)(sl_now_ns() - start_ns) / SL_NS_PER_S) / 1e9;
}

static double copy_once(const struct asker *it, const struct sl_fetch_range *ranges, size_t n) {
    int64_t start_ns = sl_now_ns();
    for (size_t i = 0; i < n; i++) {
        memcpy(ranges[i].to, it->region + ranges[i].offset, ranges[i].bytes);
    }
    return FETCH_BYTES / ((double)(sl_now_ns() - start_ns) / SL_NS_PER_S) / 1e9;
}

static bool measure_fetches(struct asker *it, size_t range_bytes) {
    size_t n = FETCH_BYTES / range_bytes, stride = WINDOW_BYTES / n;
    struct sl_fetch_range *ranges = calloc(n, sizeof *ranges);
    uint8_t *to = malloc(FETCH_BYTES);
    double rates[N_FETCHES], copies[N_FETCHES];
    bool good = ranges && to;
    for (size_t i = 0; good && i < n; i++) { // 7919 is odd: every stride once, in no order
        ranges[i] = (struct sl_fetch_range){i * 7919 % n * stride, to + i * range_bytes, range_bytes};
    }
    for (int i = -2; good && i < N_FETCHES; i++) {
        int k = i < 0 ? 0 : i;
        rates[k] = fetch_once(it, ranges, n);
        copies[k] = copy_once(it, ranges, n);
        good = rates[k] > 0;
    }
    if (good) {
        char name[96];
        snprintf(name, sizeof name, "%s: 16 MiB fetched, ranges of %zu KiB", it->transport, range_bytes >> 10);
        sl_bench_print_turns(
            (struct sl_bench_result){
                .bench = "ask", .test = name, .unit = "GB/s", .reference = "copies in one process"},
            rates, copies, N_FETCHES, it->json);
    }
    free(to);
    free(ranges);
    return good;
}

static int ask(const char *transport, int socket, bool json) {
    struct asker it = {.transport = transport, .socket = socket, .json = json};
    struct sl_error err = {0};
    it.fabric = sl_pair_fabric(transport, WINDOW_BYTES, &it.region);
    bool good = it.fabric && sl_pair_read(socket, &it.place, sizeof it.place);
    if (good && sl_connection_open(it.fabric, it.place.address, it.place.epoch, &it.connection, &err) != SL_OK) {
        fprintf(stderr, "ask: %s\n", err.text);
        good = false;
    }
    good = good && measure_asks(&it) && measure_fetches(&it, 128 << 10) && measure_fetches(&it, 1 << 10);
    fflush(NULL);
    sl_connection_close(&it.connection);
    sl_fabric_destroy(&it.fabric);
    close(socket); // which ends the answerer
    return good ? 0 : 1;
}

static bool measure(const char *transport, bool json) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        perror("ask: socketpair");
        return false;
    }
    pid_t answerer = fork();
    if (answerer == 0) {
        close(sockets[0]);
        _exit(answer(transport, sockets[1]));
    }
    pid_t asker = fork();
    if (asker == 0) {
        close(sockets[1]);
        _exit(ask(transport, sockets[0], json));
    }
    close(sockets[0]);
    close(sockets[1]);
    int status = 1;
    if (asker > 0) {
        waitpid(asker, &status, 0);
    }
    if (answerer > 0) {
        waitpid(answerer, NULL, 0);
    }
    return answerer > 0 && asker > 0 && status == 0;
}

struct bench {
    const char *transport;
    bool json;
};

static const struct sl_option option_table[] = {
    {"transport", 't', SL_OPTION_STRING, "all", "NAME", "tcp, shm or all", SL_FIELD(bench, transport)},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line", SL_FIELD(bench, json)},
};

static enum sl_status check(void *bench, struct sl_error *err) {
    const struct bench *b = bench;
    return sl_pair_wants(b->transport, "shm") || sl_pair_wants(b->transport, "tcp")
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "--transport: tcp, shm or all");
}

static enum sl_status run(void *bench, struct sl_error *err) {
    static const char *const transports[] = {"shm", "tcp"};
    const struct bench *b = bench;
    signal(SIGPIPE, SIG_IGN); // a child that has ended is told by write()
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        fflush(NULL); // before fork
        if (sl_pair_wants(b->transport, transports[i]) && !measure(transports[i], b->json)) {
            return sl_fail(err, SL_ERR_INTERNAL, "a process has failed; what it said is above");
        }
    }
    return SL_OK;
}

const struct sl_bench sl_bench_ask = {
    .name = "sluice bench ask",
    .usage = "[options]",
    .summary = "Measure asks and fetches between two processes.",
    SL_OPTIONS(option_table),
    .bytes = sizeof(struct bench),
    .check = check,
    .run = run,
};
