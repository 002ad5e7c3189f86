// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: threads on which handlers run. A handler may block for minutes, so every running job has a thread of its
 *          own; the number of jobs is bounded by the server's admission, not here.
 *
 * Design: a job takes an idle thread or starts one; a thread without work for IDLE_MS exits. An exiting thread joins
 *         the one that exited before it, so that at most one finished thread is unjoined at any time.
 * Invariant: n_queued <= n_idle + threads that are starting: no job waits for another to end.
 * Threads: submit from any; destroy when no thread submits any more.
 */
#include <limits.h>
#include <stdlib.h>

#include "base/clock.h"
#include "net/rpc/rpc_internal.h"

enum { IDLE_MS = 5000 };

struct sl_rpc_pool {
    pthread_mutex_t mutex;
    struct sl_bell work; // a job was queued, or closing
    struct sl_bell left; // a thread has exited
    struct sl_rpc_job *head, **tail;
    size_t n_queued;
    size_t n_free; // threads that wait for a job or are about to: idle and starting threads
    size_t n_threads;
    bool closing;
    bool leaver_valid;
    pthread_t leaver; // the last thread that exited, still to be joined
};

static void *run_jobs(void *arg) {
    struct sl_rpc_pool *pool = arg;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        const int64_t deadline_ns = sl_deadline_in_ms(IDLE_MS);
        while (!pool->head && !pool->closing && sl_bell_wait(&pool->work, &pool->mutex, deadline_ns) == SL_OK) {
        }
        struct sl_rpc_job *job = pool->head;
        if (!job) {
            break;
        }
        pool->head = job->next;
        if (!pool->head) {
            pool->tail = &pool->head;
        }
        pool->n_queued--;
        pool->n_free--;
        pthread_mutex_unlock(&pool->mutex);
        job->fn(job);
        pthread_mutex_lock(&pool->mutex);
        pool->n_free++;
    }
    pool->n_free--;
    pool->n_threads--;
    const pthread_t predecessor = pool->leaver;
    const bool has_predecessor = pool->leaver_valid;
    pool->leaver = pthread_self();
    pool->leaver_valid = true;
    sl_bell_ring(&pool->left, &pool->mutex, 1); // the pool may be freed from here on
    if (has_predecessor) {
        pthread_join(predecessor, NULL);
    }
    return NULL;
}

enum sl_status sl_rpc_pool_create(struct sl_rpc_pool **pool_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_rpc_pool, pool, err, "no memory for the handlers' threads");
    pthread_mutex_init(&pool->mutex, NULL);
    pool->tail = &pool->head;
    *pool_out = pool;
    return SL_OK;
}

enum sl_status sl_rpc_pool_submit(struct sl_rpc_pool *pool, struct sl_rpc_job *job, struct sl_error *err) {
    pthread_mutex_lock(&pool->mutex);
    if (pool->n_queued == pool->n_free) {
        pthread_t thread;
        pool->n_free++; // counted before it starts, so that it finds itself counted
        pool->n_threads++;
        if (sl_thread_start("rpc-call", run_jobs, pool, &thread, err) != SL_OK) {
            pool->n_free--;
            pool->n_threads--;
            pthread_mutex_unlock(&pool->mutex);
            return SL_ERR_EXHAUSTED;
        }
    }
    job->next = NULL;
    *pool->tail = job;
    pool->tail = &job->next;
    pool->n_queued++;
    sl_bell_ring(&pool->work, &pool->mutex, 1);
    return SL_OK;
}

void sl_rpc_pool_destroy(struct sl_rpc_pool **pool) {
    struct sl_rpc_pool *p = *pool;
    if (!p) {
        return;
    }
    pthread_mutex_lock(&p->mutex);
    p->closing = true;
    sl_bell_ring(&p->work, &p->mutex, INT_MAX);
    pthread_mutex_lock(&p->mutex);
    while (p->n_threads) {
        sl_bell_wait(&p->left, &p->mutex, SL_NO_DEADLINE);
    }
    pthread_mutex_unlock(&p->mutex);
    if (p->leaver_valid) {
        pthread_join(p->leaver, NULL);
    }
    pthread_mutex_destroy(&p->mutex);
    free(p);
    *pool = NULL;
}
