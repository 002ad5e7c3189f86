// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: from a client's request to a job with a thread of its own, which is in the line and in the table.
 * Invariants: n_threads counts the threads that may still touch the coordinator.
 */
#include <stdlib.h>

#include "base/thread.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/run_job.h"

struct job_thread {
    struct sl_coordinator *coordinator;
    struct sl_job *job; // a reference
};

static void end_thread(struct sl_coordinator *coordinator) {
    pthread_mutex_lock(&coordinator->mutex);
    coordinator->n_threads--;
    pthread_cond_broadcast(&coordinator->changed);
    pthread_mutex_unlock(&coordinator->mutex);
}

static void *job_thread(void *arg) {
    struct job_thread thread = *(struct job_thread *)arg;
    free(arg);
    struct sl_coordinator *coordinator = thread.coordinator;
    struct sl_run_context context = {
        .registry = coordinator->registry,
        .admission = coordinator->admission,
        .affinity = coordinator->affinity,
        .model = &coordinator->model,
        .silence_ms = coordinator->config.silence_ms,
        .worker_wait_ms = coordinator->config.worker_wait_ms,
        .max_retries = coordinator->config.max_retries,
    };
    sl_run_job(&context, thread.job);
    sl_job_unref(&thread.job);
    end_thread(coordinator);
    return NULL;
}

// Threads are bounded by the places that admission gives: those in the line and those admitted.
static enum sl_status start_thread(struct sl_coordinator *coordinator, struct sl_job *job, struct sl_error *err) {
    struct job_thread *arg = malloc(sizeof(*arg));
    if (arg == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a job's thread");
    }
    *arg = (struct job_thread){coordinator, sl_job_ref(job)};
    pthread_mutex_lock(&coordinator->mutex);
    bool stopping = coordinator->stopping;
    coordinator->n_threads += !stopping;
    pthread_mutex_unlock(&coordinator->mutex);

    enum sl_status status = SL_OK;
    if (stopping) {
        status = sl_fail(err, SL_ERR_PEER_LOST, "the coordinator is shutting down");
    } else {
        pthread_t thread;
        status = sl_thread_start("job", job_thread, arg, &thread, err);
        if (status == SL_OK) {
            pthread_detach(thread); // n_threads is waited for instead
            return SL_OK;
        }
        end_thread(coordinator);
    }
    sl_job_unref(&arg->job);
    free(arg);
    return status;
}

enum sl_status sl_coordinator_submit(struct sl_coordinator *coordinator, const Sluice__V1__GenerateRequest *request,
                                     int64_t call_deadline_ns, struct sl_job **job_out, struct sl_error *err) {
    struct sl_job_spec spec;
    enum sl_status status = sl_request_check(&coordinator->rules, request, call_deadline_ns, &spec, err);
    if (status != SL_OK) {
        return status;
    }
    char id[SL_JOB_ID_BYTES];
    sl_jobs_new_id(coordinator->jobs, id);
    struct sl_job *job = NULL;
    status = sl_job_create(id, &spec, &job, err);
    if (status != SL_OK) {
        sl_job_spec_cleanup(&spec);
        return status;
    }
    status = sl_admission_enter(coordinator->admission, &job->spec.demand, &job->place, err);
    if (status != SL_OK) {
        goto err_unref;
    }
    // Into the table before the thread starts, so that a job is found as soon as anything happens to it.
    sl_jobs_add(coordinator->jobs, job);
    status = start_thread(coordinator, job, err);
    if (status != SL_OK) {
        goto err_remove;
    }
    *job_out = job;
    return SL_OK;

err_remove:
    sl_admission_leave(coordinator->admission, &job->place);
    sl_jobs_remove(coordinator->jobs, job);
err_unref:
    sl_job_unref(&job);
    return status;
}
