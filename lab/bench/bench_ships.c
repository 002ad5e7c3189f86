// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ships capsules of some shapes between two processes of this host, once for every line on standard input, for a
 *          program that alternates with others: `sluice bench ship` (lab/sluice_eval/sluice_bench/ship.py).
 *
 * Design: sender and receiver are two children, forked before UCX is started in either; this process only controls
 *         and prints. A ship is timed from sl_ship_open() until the receiver confirms that every digest was right, so
 *         the time includes the claim, both digests and the final exchange. The capsule's pages are in reverse order
 *         in the sender's memory, so none can be merged. The rate of a small capsule is the median of N_SMALL in a row,
 *         all of them at other addresses: the time of one alone would be the time that sleeping threads take to wake up.
 */
#include <jansson.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "client/cli/message_json.h"
#include "client/cli/tool.h"
#include "net/fabric/fabric.h"
#include "lab/bench/bench.h"
#include "lab/result.h"
#include "base/options/config.h"

#define MIB          (1u << 20)
#define REGION_BYTES (256u * MIB)
#define N_SMALL      32

struct shape {
    const char *name;
    uint64_t bytes, piece_bytes;
    int n; // ships in a row
};

static const struct shape shapes[] = {
    {"64 MiB, pages of 16 KiB", 64ull * MIB, 16 << 10, 1},
    {"256 MiB, pages of 16 KiB", 256ull * MIB, 16 << 10, 1},
    {"64 MiB, pieces of 16 MiB", 64ull * MIB, 16ull * MIB, 1},
    {"256 MiB, pieces of 64 MiB", 256ull * MIB, 64ull * MIB, 1},
    {"1 MiB, one piece", MIB, MIB, N_SMALL},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct ticket {
    size_t bytes;
    uint8_t at[SL_TICKET_MAX_BYTES];
};

// ---- a fabric with memory in each process, and bytes over a pipe or socket between them

// Transfers all bytes, or returns false.
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
    for (size_t n = 0; n < bytes;) {
        ssize_t put = write(fd, (const char *)data + n, bytes - n);
        if (put <= 0) {
            return false;
        }
        n += (size_t)put;
    }
    return true;
}

static char ca[512], certificate[512], key[512];

// Sets the folder where transport "tls" finds ca.pem, worker-kvstore-bench.pem and .key.
static void set_certificates(const char *dir) {
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    snprintf(certificate, sizeof certificate, "%s/worker-kvstore-bench.pem", dir);
    snprintf(key, sizeof key, "%s/worker-kvstore-bench.key", dir);
}

// Creates a fabric and a region of it, with every page touched. transport: the fabric's, or "tls": tcp with
// certificates. NULL: it failed and has printed the error.
static struct sl_fabric *create_fabric(const char *transport, uint8_t **region_out) {
    const struct sl_tls_files files = {ca, certificate, key, .revoked = NULL};
    bool is_tls = strcmp(transport, "tls") == 0;
    struct sl_fabric_config config = {.listen = "127.0.0.1:0",
                                      .transport = is_tls ? "tcp" : transport,
                                      .tls = is_tls ? &files : NULL,
                                      .insecure = true};
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    void *region = NULL;
    if (sl_fabric_create(&config, &fabric, &err) != SL_OK ||
        sl_fabric_region_create(fabric, REGION_BYTES, 0, &region, &err) != SL_OK) {
        fprintf(stderr, "%s: %s\n", transport, err.text);
        sl_fabric_destroy(&fabric);
        return NULL;
    }
    (void)madvise(region, REGION_BYTES, MADV_HUGEPAGE); // as an arena does
    memset(region, 1, REGION_BYTES);                    // touches pages before timing
    *region_out = region;
    return fabric;
}

// ---- the children ------------------------------------------------------------------------------------------------

// Returns where a buffer of `bytes` lies in the region, and advances: successive small ones are not cached.
static uint64_t next_place(uint64_t *at_inout, uint64_t bytes) {
    uint64_t at = *at_inout + bytes <= REGION_BYTES ? *at_inout : 0;
    *at_inout = at + bytes;
    return at;
}

// Grants buffers of the sizes requested on `in`, until it is closed.
static int receive(const char *transport, int in, int out) {
    static const struct sl_grant_events no_events = {0};
    uint8_t *region = NULL;
    struct sl_fabric *fabric = create_fabric(transport, &region);
    uint64_t bytes = 0, at = 0;
    struct sl_grant *grant = NULL;
    while (fabric && read_all(in, &bytes, sizeof bytes)) {
        sl_grant_close(&grant);
        uint8_t *packed = NULL;
        struct ticket ticket = {0};
        struct sl_error err = {0};
        struct sl_grant_plan grant_plan = {.block = region + next_place(&at, bytes),
                                           .bytes = bytes,
                                           .deadline_ns = sl_deadline_in_ms(60000),
                                           .events = &no_events};
        if (sl_grant_open(fabric, &grant_plan, &grant, &packed, &ticket.bytes, &err) != SL_OK) {
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

// Returns the GB/s of one ship; negative: it failed.
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

struct pipes {
    int go[2];      // a byte: ship every shape once
    int asks[2];    // sender to receiver: the bytes of a grant
    int tickets[2]; // receiver to sender
    int rates[2];   // GB/s of every shape
};

// Ships a shape as often as it says. Returns the median GB/s; negative: a ship failed.
static double ship_shape(struct sl_fabric *fabric, const uint8_t *region, const struct shape *shape,
                         const struct pipes *pipes) {
    static uint64_t at; // the sender is a process of its own
    double rates[N_SMALL];
    for (int i = 0; i < shape->n; i++) {
        struct ticket ticket;
        bool good = write_all(pipes->asks[1], &shape->bytes, sizeof shape->bytes) &&
                    read_all(pipes->tickets[0], &ticket, sizeof ticket);
        rates[i] = good ? ship_once(fabric, region + next_place(&at, shape->bytes), shape, &ticket) : -1;
        if (rates[i] <= 0) {
            return -1;
        }
    }
    return sl_bench_median(rates, (size_t)shape->n);
}

static int send_all(const char *transport, const struct pipes *pipes) {
    uint8_t *region = NULL;
    struct sl_fabric *fabric = create_fabric(transport, &region);
    bool good = fabric != NULL;
    char go;
    while (good && read_all(pipes->go[0], &go, 1)) {
        double rates[N_SHAPES];
        for (int s = 0; good && s < N_SHAPES; s++) {
            rates[s] = ship_shape(fabric, region, &shapes[s], pipes);
            good = rates[s] > 0;
        }
        good = good && write_all(pipes->rates[1], rates, sizeof rates);
    }
    sl_fabric_destroy(&fabric);
    return good ? 0 : 1;
}

struct children {
    pid_t receiver, sender;
    struct pipes pipes;
};

// Starts the children. The first ones started are stopped last: the others have inherited their pipes.
static bool start_children(struct children *children, const char *transport) {
    struct pipes *pipes = &children->pipes;
    if (pipe(pipes->go) != 0 || pipe(pipes->asks) != 0 || pipe(pipes->tickets) != 0 || pipe(pipes->rates) != 0) {
        perror("ship: pipe");
        return false;
    }
    children->receiver = fork();
    if (children->receiver == 0) {
        close(pipes->asks[1]); // so that the pipe closes when the sender ends
        close(pipes->go[1]);
        close(pipes->rates[1]);
        _exit(receive(transport, pipes->asks[0], pipes->tickets[1]));
    }
    children->sender = fork();
    if (children->sender == 0) {
        close(pipes->go[1]);
        close(pipes->tickets[1]);
        close(pipes->asks[0]);
        _exit(send_all(transport, pipes));
    }
    close(pipes->go[0]), close(pipes->rates[1]);
    close(pipes->asks[0]), close(pipes->asks[1]), close(pipes->tickets[0]), close(pipes->tickets[1]);
    if (children->receiver < 0 || children->sender < 0) {
        perror("ship: fork");
        return false;
    }
    return true;
}

static void stop_children(struct children *children) {
    close(children->pipes.go[1]);
    close(children->pipes.rates[0]);
    waitpid(children->sender, NULL, 0);
    waitpid(children->receiver, NULL, 0);
}

// Ships every shape once; writes GB/s. Returns false if a child failed, which has printed the reason.
static bool ship_all(const struct children *children, double rates_out[N_SHAPES]) {
    return write_all(children->pipes.go[1], "", 1) &&
           read_all(children->pipes.rates[0], rates_out, N_SHAPES * sizeof *rates_out);
}

double sl_bench_ship_rate(const char *transport) {
    struct children children;
    double rates[N_SHAPES] = {0};
    if (!start_children(&children, transport)) {
        return 0;
    }
    bool good = ship_all(&children, rates) && ship_all(&children, rates); // the first one warms up
    stop_children(&children);
    return good ? rates[1] * 1e9 : 0;
}

// ---- the bench ---------------------------------------------------------------------------------------------------

struct bench {
    const char *transport, *certificates;
    struct sl_signals signals;
};

static const struct sl_option option_table[] = {
    {"transport", 't', SL_OPTION_STRING, "shm", "NAME", "tcp, ucx-tcp, tls or shm", SL_FIELD(bench, transport)},
    {"certificates", 0, SL_OPTION_STRING, "", "DIR",
     "certificates for tls, made by tools/test-ca.sh DIR worker/kvstore/bench", SL_FIELD(bench, certificates)},
};

static enum sl_status check(void *bench, struct sl_error *err) {
    const struct bench *b = bench;
    SL_FAIL_IF(strcmp(b->transport, "tls") == 0 && !b->certificates[0], err, SL_ERR_INVALID,
               "--transport tls: needs --certificates");
    return SL_OK;
}

// Prints the GB/s of every shape.
static void print_rates(const double rates[N_SHAPES]) {
    json_t *line = json_object();
    for (int s = 0; s < N_SHAPES; s++) {
        json_object_set_new(line, shapes[s].name, json_real(rates[s]));
    }
    sl_json_print(line, JSON_REAL_PRECISION(6), stdout);
    fflush(stdout);
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    struct children children;
    double rates[N_SHAPES];
    signal(SIGPIPE, SIG_IGN); // write() reports a child that has ended
    fflush(NULL);             // before fork
    set_certificates(b->certificates);
    SL_FAIL_IF(!start_children(&children, b->transport), err, SL_ERR_EXHAUSTED, "no processes");
    bool good = true;
    while (good && sl_bench_wait_for_line(&b->signals)) {
        good = ship_all(&children, rates);
        if (good) {
            print_rates(rates);
        }
    }
    stop_children(&children);
    SL_FAIL_IF(!good, err, SL_ERR_INTERNAL, "a process has failed; its output is above");
    return sl_signals_check(&b->signals, err);
}

SL_BENCH(ships, "[options]", "Ship capsules between two processes once for every line on standard input.",
         .counts = true, .check = check);
