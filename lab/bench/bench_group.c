// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what it costs ranks to meet, and to add up what each has, by their number and by size: what tensor parallelism pays in every layer
 *          (tensor/group).
 *
 * Design: ranks are threads, or processes, over processors; nothing is computed between two sums, so they come at the same time as far as there
 *         is a processor for each. A figure is a rank's time for one of many in a row, the median of the runs. A sum stands beside one rank's copy of as
 *         many bytes, which is what it would cost at least.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "lab/bench/bench.h"
#include "lab/result.h"
#include "options/config.h"
#include "tensor/cpu/device.h"
#include "tensor/group/shared.h"

#define MAX_RUNS    101
#define N_WARM      20
#define MOST_ROUNDS 2000
#define RUN_BYTES   ((int64_t)64 << 20) // that a rank adds up in a run

struct options {
    int64_t ranks, from_bytes, to_bytes, runs;
    bool threads, processes, json;
};

static const struct sl_option option_table[] = {
    {"ranks", 0, SL_OPTION_INT, "4", "N", "2, 4, .. ranks, up to N", SL_FIELD(options, ranks), 2, SL_MAX_RANKS},
    {"first-bytes", 0, SL_OPTION_SIZE, "4K", "BYTES", "of the smallest sum", SL_FIELD(options, from_bytes), 4, 1 << 30},
    {"to", 0, SL_OPTION_SIZE, "16M", "BYTES", "of the largest: four times as much each", SL_FIELD(options, to_bytes), 4,
     1 << 30},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of every figure", SL_FIELD(options, runs), 1, MAX_RUNS},
    {"in-threads", 0, SL_OPTION_FLAG, "no", NULL, "ranks that are threads alone", SL_FIELD(options, threads)},
    {"processes", 0, SL_OPTION_FLAG, "no", NULL, "ranks that are processes alone", SL_FIELD(options, processes)},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

// What ranks work on and say, in memory of all of them.
struct scene {
    int size, n_runs;
    bool one_process;
    int64_t n; // floats; 0: a meeting
    int64_t n_rounds;
    double us[MAX_RUNS], copy_us[MAX_RUNS]; // of rank 0
    enum sl_status status;                  // the first that failed
    struct sl_error err;
    _Alignas(64) char hall[];
};

struct bench {
    struct options options;
};

// --- one rank ----------------------------------------------------------------------------------------------------------

static enum sl_status run_round(struct sl_group *group, struct sl_stream *stream, const struct scene *scene, float *x,
                                struct sl_error *err) {
    return scene->n == 0 ? sl_group_meet(group, SL_OK, NULL, err) : sl_group_sum(group, stream, x, scene->n, err);
}

static enum sl_status run_rounds(struct scene *scene, struct sl_group *group, struct sl_stream *stream, float *x,
                                 float *copy, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < N_WARM && status == SL_OK; i++) {
        status = run_round(group, stream, scene, x, err);
    }
    for (int run = 0; run < scene->n_runs && status == SL_OK; run++) {
        int64_t begin = sl_now_ns();
        for (int64_t i = 0; i < scene->n_rounds && status == SL_OK; i++) {
            status = run_round(group, stream, scene, x, err);
        }
        int64_t end = sl_now_ns();
        if (group->rank == 0) {
            scene->us[run] = (double)(end - begin) / 1e3 / (double)scene->n_rounds;
            for (int64_t i = 0; i < scene->n_rounds; i++) {
                memcpy(i % 2 ? x : copy, i % 2 ? copy : x, (size_t)scene->n * sizeof *x);
                __asm__ volatile("" ::: "memory"); // a copy, whether anybody reads it or not
            }
            scene->copy_us[run] = (double)(sl_now_ns() - end) / 1e3 / (double)scene->n_rounds;
        }
        status = status == SL_OK ? sl_group_meet(group, SL_OK, NULL, err) : status;
    }
    return status;
}

static enum sl_status run_rank(struct scene *scene, int rank, struct sl_error *err) {
    size_t bytes = ((size_t)scene->n * sizeof(float) + 64) / 64 * 64;
    float *x = aligned_alloc(64, bytes), *copy = aligned_alloc(64, bytes);
    struct sl_device *device = NULL;
    struct sl_group *group = NULL;
    enum sl_status status = SL_OK;
    if (x == NULL || copy == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    } else {
        memset(x, 0, bytes);
        memset(copy, 0, bytes);
        status = sl_cpu_device_open(NULL, &device, err);
    }
    if (status == SL_OK) {
        const struct sl_group_config config = {.hall = scene->hall,
                                               .rank = rank,
                                               .size = scene->size,
                                               .one_process = scene->one_process,
                                               .device = device};
        status = sl_group_join(&sl_group_shared, &config, &group, err);
    }
    if (status == SL_OK) {
        status = run_rounds(scene, group, sl_device_stream(device, SL_STREAM_COMPUTE), x, copy, err);
    }
    sl_group_leave(&group);
    sl_device_close(&device);
    free(x);
    free(copy);
    return status;
}

// --- all of them -------------------------------------------------------------------------------------------------------

struct rank {
    struct scene *scene;
    int number;
    pthread_t thread;
    pid_t pid;
    enum sl_status status;
    struct sl_error err;
};

static void *run_thread(void *arg) {
    struct rank *rank = arg;
    rank->status = run_rank(rank->scene, rank->number, &rank->err);
    return NULL;
}

static enum sl_status start(struct rank *rank, struct sl_error *err) {
    if (rank->scene->one_process) {
        return sl_thread_start("rank", run_thread, rank, &rank->thread, err);
    }
    rank->pid = fork();
    if (rank->pid == 0) {
        _exit(run_rank(rank->scene, rank->number, &rank->err) == SL_OK ? 0 : 1);
    }
    return rank->pid > 0 ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no further process");
}

static enum sl_status end(struct rank *rank, struct sl_error *err) {
    int code = 0;
    if (rank->scene->one_process) {
        pthread_join(rank->thread, NULL);
    } else if (waitpid(rank->pid, &code, 0) != rank->pid || !WIFEXITED(code) || WEXITSTATUS(code) != 0) {
        rank->status = sl_fail(&rank->err, SL_ERR_INTERNAL, "the process of rank %d has failed", rank->number);
    }
    if (rank->status != SL_OK) {
        *err = rank->err;
    }
    return rank->status;
}

// The caller is rank 0. Processes first: no thread is there yet.
static enum sl_status run_scene(struct scene *scene, struct sl_error *err) {
    struct rank ranks[SL_MAX_RANKS] = {0};
    enum sl_status status = SL_OK;
    int n_started = 1;
    for (; n_started < scene->size && status == SL_OK; n_started += status == SL_OK) {
        ranks[n_started] = (struct rank){.scene = scene, .number = n_started};
        status = start(&ranks[n_started], err);
    }
    if (status == SL_OK) {
        status = run_rank(scene, 0, err);
    }
    for (int r = 1; r < n_started; r++) { // those that wait for one that was not started end by their deadline
        struct sl_error other;
        enum sl_status its = end(&ranks[r], &other);
        if (status == SL_OK && its != SL_OK) {
            status = its;
            *err = other;
        }
    }
    return status;
}

static void print_scene(const struct bench *b, struct scene *scene) {
    char name[96];
    const char *kind = scene->one_process ? "threads" : "processes";
    struct sl_bench_result result = {.bench = "group", .test = name, .unit = "us", .as_factor = true};
    if (scene->n == 0) {
        snprintf(name, sizeof name, "meeting, %d %s", scene->size, kind);
        result.value = sl_bench_median(scene->us, (size_t)scene->n_runs);
        sl_bench_print(&result, b->options.json);
        return;
    }
    snprintf(name, sizeof name, "sum of %.0f KB, %d %s", (double)scene->n * 4 / 1024, scene->size, kind);
    result.reference = "a copy";
    sl_bench_print_turns(result, scene->us, scene->copy_us, (size_t)scene->n_runs, b->options.json);
}

static enum sl_status measure(const struct bench *b, int size, bool one_process, int64_t bytes, struct sl_error *err) {
    size_t all = sizeof(struct scene) + sl_group_hall_bytes(size);
    struct scene *scene = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (scene == MAP_FAILED) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no %zu bytes of shared memory", all);
    }
    scene->size = size;
    scene->n_runs = (int)b->options.runs;
    scene->one_process = one_process;
    scene->n = bytes / (int64_t)sizeof(float);
    scene->n_rounds = RUN_BYTES / (bytes > 0 ? bytes * size : 1);
    scene->n_rounds = scene->n_rounds < 4 ? 4 : scene->n_rounds > MOST_ROUNDS ? MOST_ROUNDS : scene->n_rounds;
    sl_bench_progress("%d ranks, %" PRId64 " bytes", size, bytes);
    enum sl_status status = run_scene(scene, err);
    if (status == SL_OK) {
        print_scene(b, scene);
    }
    munmap(scene, all);
    return status;
}

static enum sl_status measure_sizes(const struct bench *b, int size, bool one_process, struct sl_error *err) {
    enum sl_status status = measure(b, size, one_process, 0, err);
    for (int64_t bytes = b->options.from_bytes; bytes <= b->options.to_bytes && status == SL_OK; bytes *= 4) {
        status = measure(b, size, one_process, bytes, err);
    }
    return status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    const struct bench *b = bench;
    enum sl_status status = SL_OK;
    for (int size = 2; size <= b->options.ranks && status == SL_OK; size *= 2) {
        if (!b->options.threads || b->options.processes) {
            status = measure_sizes(b, size, false, err);
        }
        if (status == SL_OK && (b->options.threads || !b->options.processes)) {
            status = measure_sizes(b, size, true, err);
        }
    }
    return status;
}

const struct sl_bench sl_bench_group = {
    .name = "sluice bench group",
    .usage = "[options]",
    .summary = "Measure what ranks of one model pay to meet and to add up.",
    SL_OPTIONS(option_table),
    .bytes = sizeof(struct bench),
    .run = run,
};
