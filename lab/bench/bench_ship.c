// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures how fast the fabric ships a capsule between two processes of this host, compared with
 *          alternatives in the same minute: the same ship over another transport, ucx_perftest (package ucx-utils),
 *          iperf3.
 *
 * Design: sender and receiver are two children, forked before UCX is started in either; this process only controls
 *         and prints. A ship is timed from sl_ship_open() until the receiver confirms that every digest was right, so
 *         the time includes the claim, both digests and the final exchange. The capsule's pages are in reverse order
 *         in the sender's memory, so none can be merged. Load on the machine varies, so the references and the ships
 *         alternate, ROUNDS times; rates are medians, and a ratio is the median of each round's own. The references
 *         send the same buffer repeatedly. A buffer of 1 MiB never leaves the caches, so a capsule is also compared
 *         with one of its own size. The rate of a small capsule is the median of N_SMALL in a row, all of them at other
 *         addresses: of one alone it would be the time that sleeping threads take to wake up. Both sides of
 *         ucx_perftest poll without a pause. On two cores a third busy thread slows it over tcp several times, and the
 *         ships much less: such ratios are meaningless. Run it on idle cores.
 */
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
#include "client/cli/tool.h"
#include "net/fabric/fabric.h"
#include "lab/bench/bench.h"
#include "lab/result.h"
#include "base/options/config.h"

#define MIB          (1u << 20)
#define REGION_BYTES (256u * MIB)
#define ROUNDS       7 // of alternating references and ships
#define WARM_UPS     1 // rounds of ships before
#define N_SMALL      32

struct shape {
    const char *name;
    uint64_t bytes, piece_bytes;
    int n; // ships in a row
};

// The first N_SCATTERED have pages; the same bytes in large pieces follow in the same order.
enum { N_SCATTERED = 2 };
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

// Returns whether --transport `chosen` is "all" or this one.
static bool is_wanted(const char *chosen, const char *transport) {
    return strcmp(chosen, "all") == 0 || strcmp(chosen, transport) == 0;
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

// ---- the reference -----------------------------------------------------------------------------------------------

// Returns the GB/s of one ucx_perftest between two processes; 0: it is not installed, or failed.
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
    kill(server, SIGKILL); // it has normally ended by now
    waitpid(server, NULL, 0);
    unsetenv("UCX_TLS");
    unsetenv("UCX_NET_DEVICES");
    return rate;
}

// Returns the GB/s of iperf3 over two seconds; 0: it is not installed, or failed.
static double iperf(void) {
    int port = 20000 + (int)(getpid() % 20000);
    char command[256];
    snprintf(command, sizeof command,
             "timeout -s KILL 10 iperf3 -s -1 -B 127.0.0.1 -p %d >/dev/null 2>&1 & sleep 0.3; iperf3 -c 127.0.0.1 -p "
             "%d -t 2 -f K "
             "2>/dev/null; wait",
             port, port);
    double rate = 0;
    FILE *pipe_in = popen(command, "r");
    char line[512];
    while (pipe_in && fgets(line, sizeof line, pipe_in)) {
        double kib_per_s;
        if (strstr(line, "receiver") && sscanf(line, "[%*[^]]] %*s sec %*s %*s %lf KBytes/sec", &kib_per_s) == 1) {
            rate = kib_per_s * 1024 / 1e9;
        }
    }
    if (pipe_in) {
        pclose(pipe_in);
    }
    return rate;
}

// The reference of a transport: the same ships over `transport`, or ucx_perftest's `test` over `tls`, or else iperf3.
struct reference {
    const char *name, *transport, *tls, *test;
    uint64_t bytes;
    int iterations;
};

#define MAX_REFERENCES 3
static const struct transport {
    const char *name;
    struct reference references[MAX_REFERENCES]; // up to the first without a name
} transports[] = {
    {"tcp",
     {{"the same over ucx-tcp", .transport = "ucx-tcp"},
      {"ucx_perftest ucp_am_bw 1 MiB", NULL, "tcp,self", "ucp_am_bw", MIB, 2000},
      {.name = "iperf3"}}},
    {"tls", {{"the same over tcp, in the clear", .transport = "tcp"}}},
    {"shm",
     {{"ucx_perftest ucp_put_bw 64 MiB", NULL, "posix,self,tcp", "ucp_put_bw", 64ull * MIB, 60},
      {"ucx_perftest ucp_put_bw 1 MiB", NULL, "posix,self,tcp", "ucp_put_bw", MIB, 4000}}},
};

static int n_references(const struct transport *transport) {
    int n = 0;
    while (n < MAX_REFERENCES && transport->references[n].name) {
        n++;
    }
    return n;
}

// `beside`: the name of the reference. With `optional`, one that is not installed has no line.
static void print_shape(const char *name, const char *beside, const double rates[ROUNDS],
                        const double reference_rates[ROUNDS], size_t n_rounds, bool optional, bool json) {
    struct sl_bench_result result = {.bench = "ship", .test = name, .unit = "GB/s", .reference = beside};
    double sorted[ROUNDS];
    memcpy(sorted, reference_rates, sizeof sorted);
    if (sl_bench_median(sorted, n_rounds) > 0) {
        sl_bench_print_turns(result, rates, reference_rates, n_rounds, json);
    } else if (!optional) {
        memcpy(sorted, rates, sizeof sorted);
        result.reference = NULL;
        result.value = sl_bench_median(sorted, n_rounds);
        sl_bench_print(&result, json);
    }
}

// Ships once unmeasured before measuring: after seconds of sleep, waking up halves the rate of the first shape.
static bool wake_and_ship(const struct children *children, double rates_out[N_SHAPES]) {
    return ship_all(children, rates_out) && ship_all(children, rates_out);
}

// Runs one round of a reference: writes GB/s for every shape.
static bool run_reference(const struct reference *it, const struct children *children, double rates_out[N_SHAPES]) {
    if (it->transport) {
        return wake_and_ship(children, rates_out);
    }
    double rate = it->test ? perftest(it->tls, it->test, it->bytes, it->iterations) : iperf();
    for (int s = 0; s < N_SHAPES; s++) {
        rates_out[s] = rate;
    }
    return true;
}

struct comparison {
    struct children own, beside[MAX_REFERENCES];
    double rates[N_SHAPES][ROUNDS], references[MAX_REFERENCES][N_SHAPES][ROUNDS];
    size_t n_rounds;
};

// Counts the rounds that were completed. A signal ends it early.
static bool take_turns(const struct transport *transport, struct comparison *c, struct sl_signals *signals, bool json) {
    bool good = true;
    for (int round = -WARM_UPS; good && round < ROUNDS && sl_signals_received(signals) == 0; round++) {
        double rates[N_SHAPES];
        sl_bench_progress("ship over %s: round %d of %d", transport->name, round + 1, ROUNDS);
        for (int r = 0; good && r < n_references(transport) && sl_signals_received(signals) == 0; r++) {
            if (round < 0 && !transport->references[r].transport) {
                continue;
            }
            good = run_reference(&transport->references[r], &c->beside[r], rates);
            for (int s = 0; good && s < N_SHAPES && round >= 0; s++) {
                c->references[r][s][round] = rates[s];
            }
        }
        if (sl_signals_received(signals) > 0) {
            break; // the round is not complete
        }
        good = good && wake_and_ship(&c->own, rates);
        for (int s = 0; good && s < N_SHAPES && round >= 0; s++) {
            char name[96];
            snprintf(name, sizeof name, "%s: %s", transport->name, shapes[s].name);
            c->rates[s][round] = rates[s];
            sl_bench_print_run((struct sl_bench_result){.bench = "ship", .test = name, .unit = "GB/s"}, round + 1,
                               rates[s], json);
        }
        c->n_rounds += good && round >= 0;
    }
    return good;
}

static bool compare(const struct transport *transport, struct sl_signals *signals, bool json) {
    static struct comparison c;
    int n = n_references(transport), n_started = 0;
    memset(&c, 0, sizeof c);
    bool good = start_children(&c.own, transport->name);
    for (; good && n_started < n; n_started++) {
        const char *beside = transport->references[n_started].transport;
        good = !beside || start_children(&c.beside[n_started], beside);
    }
    good = good && take_turns(transport, &c, signals, json);
    while (n_started-- > 0) {
        if (transport->references[n_started].transport) {
            stop_children(&c.beside[n_started]);
        }
    }
    stop_children(&c.own);
    for (int s = 0; good && c.n_rounds > 0 && s < N_SHAPES; s++) {
        char name[96];
        snprintf(name, sizeof name, "%s: %s", transport->name, shapes[s].name);
        for (int r = 0; r < n; r++) {
            print_shape(name, transport->references[r].name, c.rates[s], c.references[r][s], c.n_rounds, r > 0, json);
        }
        if (s < N_SCATTERED) {
            print_shape(name, "the same in large pieces", c.rates[s], c.rates[s + N_SCATTERED], c.n_rounds, false,
                        json);
        }
    }
    fflush(NULL); // before the next fork
    return good;
}

struct bench {
    const char *transport, *model, *certificates;
    int64_t n_tokens;
    bool json;
    struct sl_signals signals;
};

static const struct sl_option option_table[] = {
    {"transport", 't', SL_OPTION_STRING, "all", "NAME", "tcp, tls, shm or all", SL_FIELD(bench, transport)},
    {"certificates", 0, SL_OPTION_STRING, "", "DIR",
     "for tls: tools/test-ca.sh DIR worker/kvstore/bench; without, it is left out", SL_FIELD(bench, certificates)},
    {"model", 'm', SL_OPTION_MODEL, "demo", "MODEL", "of the job whose time to first token is measured afterwards",
     SL_FIELD(bench, model)},
    {"tokens", 0, SL_OPTION_INT, "8000", "N", "length of its prompt; 0 leaves the job out", SL_FIELD(bench, n_tokens),
     0, 1 << 24},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line", SL_FIELD(bench, json)},
};

static enum sl_status check(void *bench, struct sl_error *err) {
    const struct bench *b = bench;
    SL_FAIL_IF(strcmp(b->transport, "tls") == 0 && !b->certificates[0], err, SL_ERR_INVALID,
               "--transport tls: needs --certificates");
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        if (is_wanted(b->transport, transports[i].name)) {
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "--transport: tcp, tls, shm or all");
}

// Measures a job's cost in a process of its own: UCX and gRPC start there, and neither may be used before a fork.
static enum sl_status measure_job(struct bench *b, struct sl_error *err) {
    char n_tokens[32];
    snprintf(n_tokens, sizeof n_tokens, "%lld", (long long)b->n_tokens);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        const char *words[] = {"ttft", "--model", b->model, "--tokens", n_tokens, "--json"};
        int code = sl_bench_run(&sl_bench_ttft, b->json ? 6 : 5, (char **)words, true);
        fflush(NULL);
        _exit(code);
    }
    int end = -1;
    enum sl_status status = SL_OK;
    while (child > 0 && waitpid(child, &end, WNOHANG) == 0) {
        if (status == SL_OK && (status = sl_signals_check(&b->signals, err)) != SL_OK) {
            kill(child, SIGTERM);
        }
        sl_sleep_ms(20);
    }
    return status != SL_OK || end == 0 ? status : sl_fail(err, SL_ERR_INTERNAL, "`sluice bench ttft` has failed");
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    signal(SIGPIPE, SIG_IGN); // write() reports a child that has ended
    fflush(NULL);             // before fork
    set_certificates(b->certificates);
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        bool is_tls = strcmp(transports[i].name, "tls") == 0;
        SL_FAIL_IF((!is_tls || b->certificates[0]) && is_wanted(b->transport, transports[i].name) &&
                       !compare(&transports[i], &b->signals, b->json),
                   err, SL_ERR_INTERNAL, "a process has failed; what it said is above");
    }
    enum sl_status status = sl_signals_check(&b->signals, err);
    return status == SL_OK && b->n_tokens > 0 ? measure_job(b, err) : status;
}

SL_BENCH(ship, "[options]",
         "Measure capsules between two processes against other ways, and what shipping adds to a job.", .check = check);
