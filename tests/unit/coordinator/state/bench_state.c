// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures sluice-coordinator --state without a cluster: how long an accepted job waits until a restart would find it, how many
 *          jobs a second several threads run, and how long a start needs for all of them.
 *
 *     bench_state FOLDER [JOBS] [THREADS]
 *
 * FOLDER must be absent or empty. Each job has N_PROMPT tokens and an answer of N_ANSWER.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "state_harness.h"

#define N_PROMPT    1000
#define N_ANSWER    16
#define N_ALONE     200 // jobs that one thread submits, one after the other
#define MAX_THREADS 256

static struct sl_state *state;
static atomic_int next_job;
static int n_jobs = 10000, n_threads = 16;
static struct sl_job **jobs;

static void require(enum sl_status status, const struct sl_error *err) {
    if (status != SL_OK) {
        fprintf(stderr, "bench_state: %s\n", err->text);
        exit(1);
    }
}

static struct sl_job *accept_job(int i) {
    char id[SL_JOB_ID_BYTES];
    snprintf(id, sizeof id, "job-1-%d", i + 1);
    struct sl_job *job = harness_job(id);
    job->spec.tokens = realloc(job->spec.tokens, N_PROMPT * sizeof *job->spec.tokens);
    for (int t = 0; t < N_PROMPT; t++) {
        job->spec.tokens[t] = (t * 7919) % 32000;
    }
    job->spec.n_tokens = N_PROMPT;
    sl_state_keep(state, job, false);
    const struct sl_error err = {.text = "a job was not saved within a minute"};
    require(sl_event_log_wait_told(&job->log, sl_deadline_in_ms(60000)), &err);
    return job;
}

static void finish(struct sl_job *job) {
    harness_decode(job, N_ANSWER);
    harness_finish(job);
    harness_await_told(job);
}

static void *run_jobs(void *arg) {
    (void)arg;
    for (int i; (i = atomic_fetch_add(&next_job, 1)) < n_jobs;) {
        jobs[i] = accept_job(i);
        finish(jobs[i]);
    }
    return NULL;
}

static enum sl_status restore(void *arg, const struct sl_past_jobs *past, struct sl_job **job_out,
                              struct sl_error *err) {
    const Sluice__V1__AcceptedJob *accepted = past->accepted;
    struct sl_job_spec spec = {.max_new_tokens = accepted->request->max_new_tokens, .submitted_ns = sl_now_ns()};
    const struct sl_job_past known = {accepted->job_id, accepted->submitted_ms, past->events, past->n_events,
                                      past->end,        HARNESS_VOCABULARY};
    enum sl_status status = sl_job_restore(&known, &spec, job_out, err);
    *(int *)arg += status == SL_OK;
    return status;
}

static double open_state(const char *folder, int *n_restored_out) {
    const struct sl_state_config config = {.folder = folder, .max_bytes = INT64_C(16) << 30, .model = 42};
    struct sl_error err;
    *n_restored_out = 0;
    int64_t begin_ns = sl_now_ns();
    require(sl_state_open(&config, &state, &err), &err);
    require(sl_state_load(state, restore, n_restored_out, &err), &err);
    return (double)(sl_now_ns() - begin_ns) / SL_NS_PER_MS;
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

int main(int argc, char **argv) {
    n_jobs = argc > 2 ? atoi(argv[2]) : n_jobs;
    n_threads = argc > 3 ? atoi(argv[3]) : n_threads;
    if (argc < 2 || n_jobs < N_ALONE || n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "usage: bench_state FOLDER [JOBS, from %d on] [THREADS, at most %d]\n", N_ALONE, MAX_THREADS);
        return 2;
    }
    jobs = calloc((size_t)n_jobs, sizeof *jobs);
    double waits_ms[N_ALONE];
    pthread_t threads[MAX_THREADS];
    int n_restored;
    (void)sl_log_configure("warn", NULL);
    (void)open_state(argv[1], &n_restored);
    for (int i = 0; i < N_ALONE; i++) {
        int64_t begin_ns = sl_now_ns();
        jobs[i] = accept_job(i);
        waits_ms[i] = (double)(sl_now_ns() - begin_ns) / SL_NS_PER_MS;
        finish(jobs[i]);
    }
    qsort(waits_ms, N_ALONE, sizeof *waits_ms, compare);
    atomic_store(&next_job, N_ALONE);
    int64_t begin_ns = sl_now_ns();
    for (int i = 0; i < n_threads; i++) {
        pthread_create(&threads[i], NULL, run_jobs, NULL);
    }
    for (int i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
    }
    double seconds = (double)(sl_now_ns() - begin_ns) / 1e9;
    sl_state_close(&state);
    double restore_ms = open_state(argv[1], &n_restored);
    printf("accepted after %.2f ms (p50), %.2f ms (p99); %.0f jobs/s by %d threads; %d jobs restored in %.0f ms\n",
           waits_ms[N_ALONE / 2], waits_ms[N_ALONE * 99 / 100], (n_jobs - N_ALONE) / seconds, n_threads, n_restored,
           restore_ms);
    sl_state_close(&state);
    for (int i = 0; i < n_jobs; i++) {
        sl_job_unref(&jobs[i]);
    }
    free(jobs);
    return n_restored == n_jobs ? 0 : 1;
}
