// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how fast the fabric ships a capsule between two processes of this host, beside what ucx_perftest (package
 * ucx-utils) reaches over the same transport in the same minute.
 *
 * Design: sender and receiver are two children, forked before UCX is started in either; this process only asks and
 * prints. A ship is timed from sl_ship_open() to the receiver's word that every digest was right, so that the claim,
 * both digests and the final exchange are inside. The capsule's pages lie in reverse order in the sender's memory:
 * nothing can be merged. Medians of RUNS after one warm-up.
 */
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench.h"
#include "fabric/fabric.h"

#define MIB          (1u << 20)
#define REGION_BYTES (256u * MIB)
#define RUNS         7

struct shape {
    const char *name;
    uint64_t bytes, piece_bytes;
};

static const struct shape shapes[] = {
    {"64 MiB, pages of 16 KiB", 64ull * MIB, 16 << 10},
    {"256 MiB, pages of 16 KiB", 256ull * MIB, 16 << 10},
    {"64 MiB, pieces of 16 MiB", 64ull * MIB, 16ull * MIB},
    {"256 MiB, pieces of 64 MiB", 256ull * MIB, 64ull * MIB},
    {"1 MiB, one piece", MIB, MIB},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct ticket {
    size_t bytes;
    uint8_t at[SL_TICKET_MAX_BYTES];
};

static bool read_all(int fd, void *data, size_t bytes) {
    for (size_t n = 0; n < bytes;) {
        ssize_t got = read(fd, (char *)data + n, bytes - n);
        if (got <= 0) {
            return false;
        }
        n += (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes) {
    return write(fd, data, bytes) == (ssize_t)bytes; // all of them fit a pipe
}

// ---- the children ------------------------------------------------------------------------------------------------

static struct sl_fabric *start(const char *transport, uint8_t **region_out) {
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = transport};
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    void *region = NULL;
    if (sl_fabric_create(&config, &fabric, &err) != SL_OK ||
        sl_fabric_region_create(fabric, REGION_BYTES, 0, &region, &err) != SL_OK) {
        fprintf(stderr, "ship: %s\n", err.text);
        sl_fabric_destroy(&fabric);
        return NULL;
    }
    memset(region, 1, REGION_BYTES); // every page is there before a clock runs
    *region_out = region;
    return fabric;
}

// Grants of the sizes that are asked for on `in`, until it is closed.
static int receive(const char *transport, int in, int out) {
    static const struct sl_grant_events no_events = {0};
    uint8_t *region = NULL;
    struct sl_fabric *fabric = start(transport, &region);
    uint64_t bytes = 0;
    struct sl_grant *grant = NULL;
    while (fabric && read_all(in, &bytes, sizeof bytes)) {
        sl_grant_close(&grant);
        uint8_t *packed = NULL;
        struct ticket ticket = {0};
        struct sl_error err = {0};
        if (sl_grant_open(fabric, region, bytes, sl_deadline_in_ms(60000), &no_events, NULL, &grant, &packed,
                          &ticket.bytes, &err) != SL_OK) {
            fprintf(stderr, "ship: %s\n", err.text);
            break;
        }
        memcpy(ticket.at, packed, ticket.bytes);
        free(packed);
        if (!write_all(out, &ticket, sizeof ticket)) {
            break;
        }
    }
    sl_grant_close(&grant);
    sl_fabric_destroy(&fabric);
    return 0;
}

// GB/s of one ship; negative: it failed.
static double ship_once(struct sl_fabric *fabric, const uint8_t *region, const struct shape *shape,
                        const struct ticket *ticket) {
    struct sl_error err = {0};
    struct sl_ship *ship = NULL;
    int64_t start_ns = sl_now_ns();
    enum sl_status status = sl_ship_open(fabric, ticket->at, ticket->bytes, sl_deadline_in_ms(60000), &ship, &err);
    if (status == SL_OK) {
        for (uint64_t at = 0; at < shape->bytes; at += shape->piece_bytes) {
            sl_ship_piece(ship, at, region + shape->bytes - shape->piece_bytes - at, shape->piece_bytes);
        }
        status = sl_ship_finish(ship, "bench", 5, &err);
    }
    double seconds = (double)(sl_now_ns() - start_ns) / SL_NS_PER_S;
    sl_ship_close(&ship);
    if (status != SL_OK) {
        fprintf(stderr, "ship: %s\n", err.text);
        return -1;
    }
    return (double)shape->bytes / seconds / 1e9;
}

static int send_all(const char *transport, int tickets, int asks, int results) {
    uint8_t *region = NULL;
    struct sl_fabric *fabric = start(transport, &region);
    bool good = fabric != NULL;
    for (int s = 0; good && s < N_SHAPES; s++) {
        double rates[RUNS];
        for (int run = -1; good && run < RUNS; run++) { // run -1 warms up
            struct ticket ticket;
            good =
                write_all(asks, &shapes[s].bytes, sizeof shapes[s].bytes) && read_all(tickets, &ticket, sizeof ticket);
            double rate = good ? ship_once(fabric, region, &shapes[s], &ticket) : -1;
            good = rate > 0;
            rates[run < 0 ? 0 : run] = rate;
        }
        double median = good ? sl_bench_median(rates, RUNS) : -1;
        good = good && write_all(results, &median, sizeof median);
    }
    sl_fabric_destroy(&fabric);
    return good ? 0 : 1;
}

// Median GB/s of every shape over a transport. False: a child failed, and has said why.
static bool ship_over(const char *transport, double rates_out[N_SHAPES]) {
    int asks[2], tickets[2], results[2];
    if (pipe(asks) != 0 || pipe(tickets) != 0 || pipe(results) != 0) {
        perror("ship: pipe");
        return false;
    }
    pid_t receiver = fork();
    if (receiver == 0) {
        close(asks[1]); // so that the end of the sender is the end of its asking
        close(results[1]);
        _exit(receive(transport, asks[0], tickets[1]));
    }
    pid_t sender = fork();
    if (sender == 0) {
        close(tickets[1]);
        close(asks[0]);
        _exit(send_all(transport, tickets[0], asks[1], results[1]));
    }
    close(asks[0]), close(asks[1]), close(tickets[0]), close(tickets[1]), close(results[1]);
    bool good = receiver > 0 && sender > 0 && read_all(results[0], rates_out, N_SHAPES * sizeof *rates_out);
    close(results[0]);
    if (sender > 0) {
        waitpid(sender, NULL, 0);
    }
    if (receiver > 0) {
        waitpid(receiver, NULL, 0);
    }
    return good;
}

// ---- the reference -----------------------------------------------------------------------------------------------

// GB/s of one ucx_perftest between two processes; 0: it is not installed, or failed.
static double perftest(const char *tls, const char *test, uint64_t bytes, int iterations) {
    char port[16];
    snprintf(port, sizeof port, "%d", 20000 + (int)(getpid() % 20000));
    setenv("UCX_TLS", tls, 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    pid_t server = fork();
    if (server == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) {
            _exit(127);
        }
        execlp("ucx_perftest", "ucx_perftest", "-p", port, (char *)NULL);
        _exit(127);
    }
    if (server < 0) {
        perror("ship: fork");
        return 0;
    }
    sl_sleep_ms(500);
    char command[256];
    snprintf(command, sizeof command, "ucx_perftest -p %s 127.0.0.1 -t %s -s %llu -n %d -w 5 2>/dev/null", port, test,
             (unsigned long long)bytes, iterations);
    double rate = 0;
    FILE *pipe_in = popen(command, "r");
    char line[512];
    while (pipe_in && fgets(line, sizeof line, pipe_in)) {
        double mib_per_s; // the sixth column: bandwidth over the whole run
        if (sscanf(line, "Final: %*s %*s %*s %*s %*s %lf", &mib_per_s) == 1) {
            rate = mib_per_s * MIB / 1e9;
        }
    }
    if (pipe_in) {
        pclose(pipe_in);
    }
    kill(server, SIGKILL); // by now it has ended on its own, if all went well
    waitpid(server, NULL, 0);
    unsetenv("UCX_TLS");
    unsetenv("UCX_NET_DEVICES");
    return rate;
}

static void print_case(const char *transport, int s, double rate, const char *reference, double reference_rate,
                       bool json) {
    char name[96];
    snprintf(name, sizeof name, "%s: %s", transport, shapes[s].name);
    struct sl_bench_result result = {.bench = "ship",
                                     .test = name,
                                     .value = rate,
                                     .unit = "GB/s",
                                     .reference = reference_rate > 0 ? reference : NULL,
                                     .reference_value = reference_rate,
                                     .ratio_value = rate};
    sl_bench_print(&result, json);
}

int sl_bench_ship(int argc, char **argv) {
    static const struct option options[] = {{"json", no_argument, NULL, 'j'}, {0}};
    bool json = false;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c != 'j') {
            fprintf(stderr, "usage: %s [--json]\n", argv[0]);
            return 2;
        }
        json = true;
    }
    fflush(NULL); // before fork
    double rates[N_SHAPES];
    double am = perftest("tcp,self", "ucp_am_bw", MIB, 2000);
    if (!ship_over("tcp", rates)) {
        return 1;
    }
    for (int s = 0; s < N_SHAPES; s++) {
        print_case("tcp", s, rates[s], "ucx_perftest ucp_am_bw 1 MiB", am, json);
    }
    fflush(NULL);
    double hot = perftest("posix,self,tcp", "ucp_put_bw", MIB, 4000);
    double cold = perftest("posix,self,tcp", "ucp_put_bw", 64ull * MIB, 60);
    if (!ship_over("shm", rates)) {
        return 1;
    }
    for (int s = 0; s < N_SHAPES; s++) {
        bool small = shapes[s].bytes <= MIB;
        print_case("shm", s, rates[s], small ? "ucx_perftest ucp_put_bw 1 MiB" : "ucx_perftest ucp_put_bw 64 MiB",
                   small ? hot : cold, json);
    }
    return 0;
}
