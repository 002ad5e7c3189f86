// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the coordinator alone: a real process, workers that only wait (waiting_workers.h), and clients of Generate.
 *
 * Design: two phases a cell. First a number of jobs is in flight at all times, which gives the rate. Then jobs come at half of that
 *         rate, or at --second-rate, at equal intervals, which gives the added latency: from the request to the last event, less what the workers
 *         report to have waited. One thread drives all clients, by the streams' news. It lags by the time from news to reading,
 *         or from the interval to the request: a cell is void if that was more than a tenth of the latency.
 *         Coordinator, workers and clients are processes of their own; each cell has new ones.
 */
#include "lab/bench/coordinator/bench_coordinator.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/locked.h"
#include "base/model_place.h"
#include "base/thread.h"
#include "client/cli/tool.h"
#include "engine/model/model.h"
#include "lab/bench/coordinator/waiting_workers.h"
#include "lab/result.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"

#define READY_MS      60000
#define JOB_MS        300000
#define LOOK_MS       200 // between looks at the coordinator's memory
#define STOP_MS       5000
#define MAX_JOBS      30000 // in flight
#define MAX_SAMPLES   (1 << 20)
#define N_CONNECTIONS 8
#define N_PROMPT      20
#define WARM_SHARE    0.3 // of the first phase, which does not count
#define LAG_SHARE     0.1 // of the median latency that the clients may lag
#define SPARE_JOBS    64  // more that the coordinator may have

struct options {
    const char *model, *program, *cells, *join;
    int64_t n_tokens, workers;
    double seconds, rate;
    struct sl_waiting_config waiting;
    bool json;
};

static const struct sl_option option_table[] = {
    {"model", 'm', SL_OPTION_MODEL, "demo", "MODEL", "whose tokenizer and plans the coordinator uses",
     SL_FIELD(options, model)},
    {"program", 0, SL_OPTION_STRING, "", "FILE",
     "the sluice-coordinator to measure; without it, the one beside this program", SL_FIELD(options, program)},
    {"cells", 0, SL_OPTION_STRING, "16:256,256:2500,1000:10000", "WORKERS:JOBS,...", "workers, and jobs in flight",
     SL_FIELD(options, cells)},
    {"seconds", 0, SL_OPTION_FLOAT, "10", "S", "of each phase", SL_FIELD(options, seconds), 1, 3600},
    {"second-rate", 0, SL_OPTION_FLOAT, "0", "N", "jobs a second in the second phase; 0: half of the first's",
     SL_FIELD(options, rate), 0, 1e6},
    {"tokens", 0, SL_OPTION_INT, "8", "N", "of an answer", SL_FIELD(options, n_tokens), 1, 1024},
    {"prefill-ms", 0, SL_OPTION_INT, "2", "MS", "that a worker waits instead of reading",
     SL_FIELD(options, waiting.prefill_ms), 0, 60000},
    {"token-ms", 0, SL_OPTION_INT, "2", "MS", "that it waits before each token", SL_FIELD(options, waiting.token_ms), 0,
     60000},
    {"join", 0, SL_OPTION_STRING, "", "HOST:PORT", "be only the workers, of this coordinator, until a signal comes",
     SL_FIELD(options, join)},
    {"workers", 0, SL_OPTION_INT, "8", "N", "with --join: half of them prefill", SL_FIELD(options, workers), 2, 1024},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_signals signals;
};

// ---- clients --------------------------------------------------------------------------------------------------------

struct load;

struct client {
    struct load *load;
    struct sl_rpc_channel *channel;
    struct sl_rpc_stream *stream;
    int64_t begin_ns, news_ns;
    bool queued;
    struct client *next; // in the queue, or among the idle ones
};

struct load {
    const struct bench *bench;
    pthread_mutex_t mutex; // guards the queue, and the clients' news
    pthread_cond_t news;
    struct client *head, **tail;
    struct client *clients, *idle;
    int64_t n_clients, n_running;
    int64_t count_from_ns, end_ns;
    int64_t n_counted, n_ended, n_failed;
    struct sl_error why; // of the first failure
    pid_t coordinator;
    double most_kib, most_threads; // of the coordinator
    double *total_ms, *added_ms, *lag_ms;
    size_t n_samples, n_lags;
};

static void on_news(void *arg) {
    struct client *client = arg;
    struct load *load = client->load;
    SL_LOCKED(&load->mutex);
    if (!client->queued) {
        client->queued = true;
        client->news_ns = sl_now_ns();
        client->next = NULL;
        *load->tail = client;
        load->tail = &client->next;
        pthread_cond_signal(&load->news);
    }
}

static struct client *next_news(struct load *load, int64_t until_ns) {
    SL_LOCKED(&load->mutex);
    while (!load->head && sl_cond_wait_until(&load->news, &load->mutex, until_ns) == SL_OK) {
    }
    struct client *client = load->head;
    if (client) {
        load->head = client->next;
        load->tail = load->head ? load->tail : &load->head;
        client->queued = false;
    }
    return client;
}

static bool is_queued(struct client *client) {
    SL_LOCKED(&client->load->mutex);
    return client->queued;
}

static void note_lag(struct load *load, int64_t since_ns, int64_t now_ns) {
    if (now_ns >= load->count_from_ns && load->n_lags < MAX_SAMPLES) {
        load->lag_ms[load->n_lags++] = (double)(now_ns - since_ns) / SL_NS_PER_MS;
    }
}

static void note_failure(struct load *load, const struct sl_error *err) {
    load->why = load->n_failed++ == 0 ? *err : load->why;
}

static void ask(struct load *load, struct client *client) {
    static int32_t ids[N_PROMPT] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
    Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    tokens.ids = ids;
    tokens.n_ids = N_PROMPT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &tokens;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = (int32_t)load->bench->options.n_tokens;
    request.ignore_eos = true;
    struct sl_error err = {0};
    client->begin_ns = sl_now_ns();
    if (sl_rpc_stream_open(client->channel, &sl_method_inference_generate, &request.base, sl_deadline_in_ms(JOB_MS),
                           NULL, &client->stream, &err) != SL_OK) {
        note_failure(load, &err);
        client->next = load->idle;
        load->idle = client;
        return;
    }
    load->n_running++;
    sl_rpc_stream_on_news(client->stream, on_news, client);
}

static void count_answer(struct load *load, const struct client *client, const Sluice__V1__Statistics *statistics) {
    int64_t now_ns = sl_now_ns();
    if (now_ns < load->count_from_ns || now_ns >= load->end_ns) {
        return;
    }
    load->n_counted++;
    if (statistics && statistics->retrieval && load->n_samples < MAX_SAMPLES) {
        double total_ms = (double)(now_ns - client->begin_ns) / SL_NS_PER_MS;
        load->total_ms[load->n_samples] = total_ms;
        load->added_ms[load->n_samples++] = total_ms - statistics->prefill_ms - statistics->retrieval->wait_ms;
    }
}

// Reads all that is there. Returns whether the job has ended.
static bool hear(struct load *load, struct client *client) {
    for (;;) {
        struct sl_error err = {0};
        ProtobufCMessage *message;
        enum sl_status status = sl_rpc_stream_next(client->stream, 0, &message, &err);
        if (status != SL_OK) {
            if (status != SL_AGAIN && status != SL_ERR_NOT_FOUND) {
                note_failure(load, &err);
            }
            return status != SL_AGAIN;
        }
        const Sluice__V1__Event *event = (const Sluice__V1__Event *)message;
        if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED && event->finished->status_code == 0) {
            count_answer(load, client, event->finished->statistics);
        }
        protobuf_c_message_free_unpacked(message, NULL);
    }
}

static double cpu_seconds(pid_t pid) {
    clockid_t clock;
    struct timespec used = {0};
    return clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &used) == 0
               ? (double)used.tv_sec + 1e-9 * (double)used.tv_nsec
               : 0;
}

static void note_most(struct load *load) {
    double kib = sl_bench_process_status(load->coordinator, "VmRSS");
    double threads = sl_bench_process_status(load->coordinator, "Threads");
    load->most_kib = kib > load->most_kib ? kib : load->most_kib;
    load->most_threads = threads > load->most_threads ? threads : load->most_threads;
}

/*
 * Runs one phase: for `rate` 0, with all clients busy at all times, after a while; else with `rate` jobs a second. Returns when all jobs have ended.
 */
static enum sl_status run_phase(struct load *load, double rate, struct sl_signals *signals, struct sl_error *err) {
    const int64_t begin_ns = sl_now_ns(), span_ns = (int64_t)(load->bench->options.seconds * SL_NS_PER_S);
    load->end_ns = begin_ns + span_ns;
    load->count_from_ns = begin_ns + (int64_t)(WARM_SHARE * (double)span_ns);
    load->n_counted = load->n_ended = load->n_failed = 0;
    int64_t look_ns = begin_ns;
    load->n_samples = load->n_lags = 0;
    int64_t due_ns = begin_ns, now_ns;
    const int64_t step_ns =
        rate > 0 ? (int64_t)(SL_NS_PER_S / rate) : (load->count_from_ns - begin_ns) / load->n_clients;
    while ((now_ns = sl_now_ns()) < load->end_ns || load->n_running > 0) {
        if (sl_signals_check(signals, err) != SL_OK) {
            return err->status;
        }
        bool all_are_due = rate == 0 && now_ns >= load->count_from_ns; // until then, one after the other begins
        while (load->idle && (all_are_due || due_ns <= now_ns) && now_ns < load->end_ns) {
            struct client *client = load->idle;
            load->idle = client->next;
            if (rate > 0) {
                note_lag(load, due_ns, now_ns);
            }
            due_ns += step_ns;
            ask(load, client);
            if (!client->stream) { // it could not ask, and would not the next moment
                break;
            }
        }
        if (now_ns >= look_ns) {
            look_ns = now_ns + LOOK_MS * SL_NS_PER_MS;
            note_most(load);
        }
        int64_t wait_ns = now_ns + 100 * SL_NS_PER_MS;
        struct client *client = next_news(load, load->idle && due_ns > now_ns && due_ns < wait_ns ? due_ns : wait_ns);
        if (!client) {
            continue;
        }
        if (client->stream) {
            note_lag(load, client->news_ns, sl_now_ns());
            if (!hear(load, client)) {
                continue;
            }
            sl_rpc_stream_close(&client->stream);
            load->n_running--;
            load->n_ended++;
        }
        if (!is_queued(client)) { // else the news of what was read already: it is idle when that was taken
            client->next = load->idle;
            load->idle = client;
        }
    }
    return SL_OK;
}

// ---- a cell ---------------------------------------------------------------------------------------------------------

struct cell {
    struct bench *bench;
    int64_t n_workers, n_jobs;
    struct sl_child children[2]; // coordinator, workers
    char address[64];
    bool is_void; // the clients lagged in the phase that is printed
};

static void print(const struct cell *cell, const char *what, double value, const char *unit) {
    char name[96];
    snprintf(name, sizeof name, "%d workers, %d jobs: %s%s", (int)cell->n_workers, (int)cell->n_jobs, what,
             cell->is_void ? " (VOID)" : "");
    sl_bench_print_value("coordinator", name, value, unit, cell->bench->options.json);
}

// Prints what shows whether the phase counts. Marks what is printed from then on if it does not.
static void print_validity(struct cell *cell, struct load *load, const char *phase) {
    char name[64];
    double lag_ms = sl_bench_percentile(load->lag_ms, load->n_lags, 0.99);
    cell->is_void = lag_ms > LAG_SHARE * sl_bench_percentile(load->total_ms, load->n_samples, 0.5);
    snprintf(name, sizeof name, "%s, clients' lag p99", phase);
    print(cell, name, lag_ms, "ms");
    snprintf(name, sizeof name, "%s, refused or failed", phase);
    print(cell, name, (double)load->n_failed, "jobs");
    if (load->n_failed > 0) {
        fprintf(stderr, "the first failure: %s\n", load->why.text);
    }
}

static enum sl_status measure(struct cell *cell, struct load *load, struct sl_error *err) {
    const struct options *options = &cell->bench->options;
    const pid_t pid = cell->children[0].pid;
    const double idle_kib = sl_bench_process_status(pid, "VmRSS");
    const double cpu_s = cpu_seconds(pid);
    SL_TRY(run_phase(load, 0, &cell->bench->signals, err));
    const double rate = (double)load->n_counted / ((1 - WARM_SHARE) * options->seconds);
    const double used_s = cpu_seconds(pid) - cpu_s;
    print_validity(cell, load, "full rate");
    print(cell, "jobs", rate, "jobs/s");
    print(cell, "tokens", rate * (double)options->n_tokens, "tokens/s");
    print(cell, "CPU of the coordinator a job", 1e6 * used_s / (double)load->n_ended, "us");
    print(cell, "latency p50", sl_bench_percentile(load->total_ms, load->n_samples, 0.5), "ms");
    print(cell, "memory a job", (load->most_kib - idle_kib) / (double)load->n_clients, "KiB");
    print(cell, "threads", load->most_threads, "threads");
    enum sl_status status = SL_OK;
    if (rate > 0) {
        const double second = options->rate > 0 ? options->rate : rate / 2;
        status = run_phase(load, second, &cell->bench->signals, err);
        if (status == SL_OK) {
            char phase[32], name[64];
            snprintf(phase, sizeof phase, options->rate > 0 ? "%.0f/s" : "half rate", second);
            print_validity(cell, load, phase);
            snprintf(name, sizeof name, "%s, added p50", phase);
            print(cell, name, sl_bench_percentile(load->added_ms, load->n_samples, 0.5), "ms");
            snprintf(name, sizeof name, "%s, added p99", phase);
            print(cell, name, sl_bench_percentile(load->added_ms, load->n_samples, 0.99), "ms");
        }
    }
    return status;
}

// Runs in a process of its own, because gRPC starts there.
static enum sl_status run_clients(struct cell *cell, struct sl_error *err) {
    struct load load = {.bench = cell->bench, .n_clients = cell->n_jobs, .coordinator = cell->children[0].pid};
    struct sl_rpc_channel *channels[N_CONNECTIONS] = {0};
    pthread_mutex_init(&load.mutex, NULL);
    sl_cond_init(&load.news);
    load.tail = &load.head;
    load.clients = calloc((size_t)load.n_clients, sizeof *load.clients);
    load.total_ms = calloc(3 * MAX_SAMPLES, sizeof *load.total_ms);
    enum sl_status status =
        load.clients && load.total_ms ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for clients");
    sl_rpc_init();
    for (int i = 0; i < N_CONNECTIONS && status == SL_OK; i++) {
        status = sl_rpc_channel_create_alone(cell->address, NULL, SL_ROLE_ANY, &channels[i], err);
    }
    if (status == SL_OK) {
        load.added_ms = load.total_ms + MAX_SAMPLES;
        load.lag_ms = load.added_ms + MAX_SAMPLES;
        for (int64_t i = 0; i < load.n_clients; i++) {
            struct client *client = &load.clients[i];
            *client = (struct client){.load = &load, .channel = channels[i % N_CONNECTIONS], .next = load.idle};
            load.idle = client;
        }
        status = measure(cell, &load, err);
    }
    fflush(stdout);
    return status; // the process ends, and with it calls and memory
}

static enum sl_status start_child(struct cell *cell, int i, const char *name, char *const words[],
                                  struct sl_error *err) {
    SL_TRY(sl_child_start(&cell->children[i], name, words, err));
    SL_FAIL_IF(!sl_child_wait_ready(&cell->children[i], READY_MS, stderr), err, SL_ERR_PEER_LOST, "%s: did not start",
               name);
    return SL_OK;
}

static enum sl_status start_cluster(struct cell *cell, struct sl_error *err) {
    const struct options *options = &cell->bench->options;
    char bin[PATH_MAX], program[PATH_MAX + 32], self[PATH_MAX + 32], n[16], limit[16], prefill_ms[16], token_ms[16];
    SL_TRY(sl_program_folder(bin, err));
    snprintf(program, sizeof program, "%s/sluice-coordinator", bin);
    snprintf(self, sizeof self, "%s/sluice", bin);
    snprintf(n, sizeof n, "%d", (int)cell->n_workers);
    snprintf(limit, sizeof limit, "%d", (int)cell->n_jobs + SPARE_JOBS);
    snprintf(prefill_ms, sizeof prefill_ms, "%d", (int)options->waiting.prefill_ms);
    snprintf(token_ms, sizeof token_ms, "%d", (int)options->waiting.token_ms);
    char *coordinator[] = {options->program[0] ? (char *)options->program : program,
                           "--listen",
                           "127.0.0.1:0",
                           "--model",
                           (char *)options->model,
                           "--max-jobs",
                           limit,
                           "--queue",
                           limit,
                           "--max-watchers",
                           limit,
                           "--tenant-share",
                           "100",
                           "--heartbeat",
                           "5s",
                           "--kept-jobs",
                           "1",
                           "--log",
                           "error",
                           NULL};
    SL_TRY(start_child(cell, 0, "coordinator", coordinator, err));
    SL_FAIL_IF(!sl_child_ready_value(&cell->children[0], "rpc", cell->address, sizeof cell->address), err,
               SL_ERR_PEER_LOST, "%s: its ready line has no address", coordinator[0]);
    char *workers[] = {self,     "bench",   "coordinator",          "--join",       cell->address, "--workers",
                       n,        "--model", (char *)options->model, "--prefill-ms", prefill_ms,    "--token-ms",
                       token_ms, NULL};
    return start_child(cell, 1, "workers", workers, err);
}

static void stop_children(struct cell *cell) {
    for (int i = 1; i >= 0; i--) {
        sl_child_signal(&cell->children[i], SIGTERM);
        sl_child_wait_end(&cell->children[i], STOP_MS, stderr);
    }
}

static enum sl_status run_cell(struct cell *cell, struct sl_error *err) {
    sl_bench_progress("%d workers, %d jobs", (int)cell->n_workers, (int)cell->n_jobs);
    enum sl_status status = start_cluster(cell, err);
    fflush(NULL);
    pid_t parent = getpid(), clients = status == SL_OK ? fork() : -1;
    if (clients == 0) {
        struct sl_error why = {0};
        sl_descriptors_raise();
        bool good = sl_child_dies_with(parent) && run_clients(cell, &why) == SL_OK;
        if (!good && why.status != SL_ERR_CANCELLED) {
            fprintf(stderr, "sluice bench coordinator: %s\n", why.text);
        }
        _exit(good ? 0 : 1);
    }
    int end = 0;
    while (clients > 0 && waitpid(clients, &end, WNOHANG) == 0) {
        sl_children_pump(cell->children, 2, 100, stderr);
        if (sl_signals_received(&cell->bench->signals) > 0) {
            kill(clients, SIGKILL);
        }
    }
    if (status == SL_OK && (clients < 0 || end != 0)) {
        status = sl_fail(err, SL_ERR_INTERNAL, "the clients failed; what they said stands above");
    }
    stop_children(cell);
    enum sl_status stopped = sl_signals_check(&cell->bench->signals, err);
    return stopped != SL_OK ? stopped : status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    if (b->options.join[0]) {
        b->options.waiting.coordinator = b->options.join;
        b->options.waiting.n = b->options.workers;
        enum sl_status status =
            sl_model_fingerprint(b->options.model, SL_WEIGHT_STORED, &b->options.waiting.model, err);
        return status == SL_OK ? sl_waiting_workers_run(&b->options.waiting, &b->signals, err) : status;
    }
    enum sl_status status = SL_OK;
    for (const char *at = b->options.cells; *at && status == SL_OK;) {
        struct cell cell = {.bench = b};
        int n_read = 0;
        if (sscanf(at, "%" SCNd64 ":%" SCNd64 "%n", &cell.n_workers, &cell.n_jobs, &n_read) != 2 ||
            (at[n_read] != '\0' && at[n_read] != ',') || cell.n_workers < 2 || cell.n_workers > 1024 ||
            cell.n_jobs < 1 || cell.n_jobs > MAX_JOBS) {
            return sl_fail(err, SL_ERR_INVALID, "--cells %.40s: expected WORKERS:JOBS, 2 to 1024 and 1 to %d", at,
                           MAX_JOBS);
        }
        at += n_read + (at[n_read] == ',');
        status = run_cell(&cell, err);
    }
    return status;
}

SL_BENCH(coordinator, "[options]",
         "Measure the coordinator with workers that only wait: jobs a second, added latency, memory a job.",
         .check = NULL);
