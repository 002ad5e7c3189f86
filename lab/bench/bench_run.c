// SPDX-License-Identifier: Apache-2.0
// Purpose: how to run a bench: its options with --time-limit, its signals, and the line of the CPU steal.
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/result.h"

// --- options -------------------------------------------------------------------------------------------------------

#define MAX_OPTIONS 32

// Returns the offset of --time-limit, int64_t of milliseconds: after the bench's own state.
static size_t limit_offset(const struct sl_bench *bench) {
    return (bench->bytes + _Alignof(int64_t) - 1) / _Alignof(int64_t) * _Alignof(int64_t);
}

static bool wants_json(const struct sl_bench *bench, const void *state) {
    for (size_t i = 0; i < bench->n_options; i++) {
        if (strcmp(bench->options[i].name, "json") == 0) {
            return *(const bool *)((const char *)state + bench->options[i].offset);
        }
    }
    return false;
}

static enum sl_status parse(const struct sl_bench *bench, int argc, char **argv, void *state, struct sl_error *err) {
    struct sl_option options[MAX_OPTIONS];
    SL_FAIL_IF(bench->n_options >= MAX_OPTIONS, err, SL_ERR_INTERNAL, "%s has more than %d options", bench->name,
               MAX_OPTIONS - 1);
    memcpy(options, bench->options, bench->n_options * sizeof *options);
    options[bench->n_options] =
        (struct sl_option){.name = "time-limit",
                           .type = SL_OPTION_DURATION,
                           .default_value = "0",
                           .metavar = "TIME",
                           .help = "stop after this time, with the rows that were measured; 0: never",
                           .offset = limit_offset(bench),
                           .max = 86400000};
    const struct sl_program program = {.name = bench->name,
                                       .usage = bench->usage,
                                       .summary = bench->summary,
                                       .options = options,
                                       .n_options = bench->n_options + 1};
    int first;
    enum sl_status status = sl_config_parse(&program, argc, argv, state, &first, err);
    SL_THEN_FAIL_IF(status, first < argc, err, SL_ERR_INVALID, "unexpected argument: %s", argv[first]);
    return status == SL_OK && bench->check ? bench->check(state, err) : status;
}

// --- the processors --------------------------------------------------------------------------------------------------

struct cpu_ticks {
    double all, stolen; // of all processors
};

// Returns zeros where the kernel does not say.
static struct cpu_ticks read_cpu_ticks(void) {
    enum { STOLEN = 7, N_FIELDS = 8 }; // of the line "cpu", see proc(5)
    struct cpu_ticks ticks = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (file == NULL) {
        return ticks;
    }
    double field;
    bool good = fscanf(file, "cpu") == 0;
    for (int i = 0; good && i < N_FIELDS && fscanf(file, "%lf", &field) == 1; i++) {
        ticks.all += field;
        ticks.stolen = i == STOLEN ? field : 0.0;
    }
    fclose(file);
    return ticks;
}

static void print_steal(struct cpu_ticks before, bool json) {
    struct cpu_ticks now = read_cpu_ticks();
    double all = now.all - before.all;
    double share = all > 0.0 ? (now.stolen - before.stolen) / all : 0.0;
    sl_bench_print_value("machine", "CPU steal", 100.0 * share, "%", json);
}

// --- running ---------------------------------------------------------------------------------------------------------

// Sends this process SIGTERM after `ms`.
static enum sl_status start_limit(int64_t ms, timer_t *timer_out, struct sl_error *err) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGTERM};
    struct itimerspec end = {.it_value = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * SL_NS_PER_MS}};
    SL_FAIL_IF(timer_create(CLOCK_MONOTONIC, &event, timer_out) != 0, err, SL_ERR_EXHAUSTED,
               "--time-limit: no timer: %m");
    return timer_settime(*timer_out, 0, &end, NULL) == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL, "--time-limit %" PRId64 " ms: %m", ms);
}

static enum sl_status run_in(const struct sl_bench *bench, void *state, struct sl_error *err) {
    struct sl_signals *signals = (struct sl_signals *)((char *)state + bench->signals);
    int64_t limit_ms = *(const int64_t *)((const char *)state + limit_offset(bench)), begin_ns = sl_now_ns();
    struct cpu_ticks ticks = read_cpu_ticks();
    timer_t timer;
    enum sl_status status = sl_signals_init(signals, err); // before threads start
    SL_TRY(status);
    if (limit_ms > 0) {
        status = start_limit(limit_ms, &timer, err);
    }
    SL_THEN(status, bench->run(state, err));
    sl_signals_cleanup(signals);
    sl_bench_progress(NULL);
    if (status == SL_ERR_CANCELLED && limit_ms > 0 && sl_now_ns() - begin_ns >= limit_ms * SL_NS_PER_MS) {
        fprintf(stderr, "%s: stopped at --time-limit\n", bench->name);
        status = SL_OK;
    }
    if (status == SL_OK && !bench->counts) {
        print_steal(ticks, wants_json(bench, state));
    }
    return status;
}

bool sl_bench_wait_for_line(const struct sl_signals *signals) {
    struct pollfd waits[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = signals->fd, .events = POLLIN}};
    for (char c = '\0'; c != '\n';) {
        bool woken = poll(waits, 2, -1) > 0;
        if (woken && (waits[1].revents != 0 || read(STDIN_FILENO, &c, 1) != 1)) {
            return false;
        }
    }
    return true;
}

int sl_bench_run(const struct sl_bench *bench, int argc, char **argv) {
    struct sl_error err = {0};
    void *state = calloc(1, limit_offset(bench) + sizeof(int64_t)); // holds arrays of every run: too large for a stack
    enum sl_status status =
        state ? parse(bench, argc, argv, state, &err) : sl_fail(&err, SL_ERR_EXHAUSTED, "out of memory");
    int code = status == SL_ERR_CANCELLED ? SL_EXIT_OK : SL_EXIT_USAGE; // --help was printed
    if (status == SL_OK) {
        status = run_in(bench, state, &err);
        code = sl_exit_of(status);
    }
    if (code != SL_EXIT_OK) {
        fprintf(stderr, "%s: %s\n", bench->name, err.text);
    }
    free(state);
    return code;
}
