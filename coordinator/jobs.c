// SPDX-License-Identifier: Apache-2.0
// Purpose: see jobs.h.
#include "coordinator/jobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"

#define N_BUCKETS 4096

struct sl_jobs {
    struct sl_retention retention;
    pthread_mutex_t mutex;
    struct sl_job *newest, *oldest;
    struct sl_job *buckets[N_BUCKETS];
    int64_t born_ms; // makes ids of this process unlike those of the one before
    uint64_t last_number;
};

enum sl_status sl_jobs_create(const struct sl_retention *retention, struct sl_jobs **jobs_out, struct sl_error *err) {
    struct sl_jobs *jobs = calloc(1, sizeof(*jobs));
    if (jobs == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the table of jobs");
    }
    jobs->retention = *retention;
    jobs->born_ms = sl_wall_ms();
    pthread_mutex_init(&jobs->mutex, NULL);
    *jobs_out = jobs;
    return SL_OK;
}

static struct sl_job **bucket_of(struct sl_jobs *jobs, const char *id) {
    return &jobs->buckets[sl_hash(id, strlen(id), 0) % N_BUCKETS];
}

// Take a job out of table and list; its reference passes to the caller. Called under the lock.
static void take_out(struct sl_jobs *jobs, struct sl_job *job) {
    struct sl_job **at = bucket_of(jobs, job->id);
    while (*at != job) {
        at = &(*at)->chain;
    }
    *at = job->chain;
    *(job->newer != NULL ? &job->newer->older : &jobs->newest) = job->older;
    *(job->older != NULL ? &job->older->newer : &jobs->oldest) = job->newer;
    job->newer = job->older = job->chain = NULL;
}

void sl_jobs_destroy(struct sl_jobs **jobs_in) {
    struct sl_jobs *jobs = *jobs_in;
    if (jobs == NULL) {
        return;
    }
    while (jobs->oldest != NULL) {
        struct sl_job *job = jobs->oldest;
        take_out(jobs, job);
        sl_job_unref(&job);
    }
    pthread_mutex_destroy(&jobs->mutex);
    free(jobs);
    *jobs_in = NULL;
}

void sl_jobs_new_id(struct sl_jobs *jobs, char id_out[SL_JOB_ID_BYTES]) {
    pthread_mutex_lock(&jobs->mutex);
    uint64_t number = ++jobs->last_number;
    pthread_mutex_unlock(&jobs->mutex);
    snprintf(id_out, SL_JOB_ID_BYTES, "job-%" PRIx64 "-%" PRIu64, (uint64_t)jobs->born_ms, number);
}

void sl_jobs_add(struct sl_jobs *jobs, struct sl_job *job) {
    sl_job_ref(job);
    pthread_mutex_lock(&jobs->mutex);
    struct sl_job **bucket = bucket_of(jobs, job->id);
    job->chain = *bucket;
    *bucket = job;
    job->older = jobs->newest;
    *(jobs->newest != NULL ? &jobs->newest->newer : &jobs->oldest) = job;
    jobs->newest = job;
    pthread_mutex_unlock(&jobs->mutex);
    sl_jobs_trim(jobs, sl_now_ns());
}

void sl_jobs_remove(struct sl_jobs *jobs, struct sl_job *job) {
    pthread_mutex_lock(&jobs->mutex);
    struct sl_job *found = *bucket_of(jobs, job->id);
    while (found != NULL && found != job) {
        found = found->chain;
    }
    if (found != NULL) {
        take_out(jobs, job);
    }
    pthread_mutex_unlock(&jobs->mutex);
    sl_job_unref(&found);
}

enum sl_status sl_jobs_find(struct sl_jobs *jobs, const char *id, struct sl_job **job_out, struct sl_error *err) {
    pthread_mutex_lock(&jobs->mutex);
    struct sl_job *job = *bucket_of(jobs, id);
    while (job != NULL && strcmp(job->id, id) != 0) {
        job = job->chain;
    }
    if (job != NULL) {
        sl_job_ref(job);
    }
    pthread_mutex_unlock(&jobs->mutex);
    if (job == NULL) {
        return sl_fail(err, SL_ERR_NOT_FOUND, "there is no job '%.60s' (or it ended too long ago)", id);
    }
    *job_out = job;
    return SL_OK;
}

size_t sl_jobs_list(struct sl_jobs *jobs, unsigned state_mask, struct sl_job **list, size_t max_list) {
    size_t n = 0;
    pthread_mutex_lock(&jobs->mutex);
    for (struct sl_job *job = jobs->newest; job != NULL && n < max_list; job = job->older) {
        if ((state_mask >> sl_job_state(job) & 1U) != 0) {
            list[n++] = sl_job_ref(job);
        }
    }
    pthread_mutex_unlock(&jobs->mutex);
    return n;
}

void sl_jobs_trim(struct sl_jobs *jobs, int64_t now_ns) {
    struct sl_job *gone = NULL; // chained by `older`
    int64_t n_ended = 0, bytes = 0;

    pthread_mutex_lock(&jobs->mutex);
    struct sl_job *older;
    for (struct sl_job *job = jobs->newest; job != NULL; job = older) {
        older = job->older;
        int64_t ended_ns = sl_job_ended_ns(job);
        if (ended_ns == 0) {
            continue;
        }
        int64_t job_bytes = (int64_t)sl_job_bytes(job);
        if (n_ended < jobs->retention.max_jobs && bytes + job_bytes <= jobs->retention.max_bytes &&
            now_ns - ended_ns <= jobs->retention.ms * SL_NS_PER_MS) {
            n_ended++;
            bytes += job_bytes;
        } else {
            take_out(jobs, job);
            job->older = gone;
            gone = job;
        }
    }
    pthread_mutex_unlock(&jobs->mutex);

    while (gone != NULL) {
        struct sl_job *job = gone;
        gone = job->older;
        sl_job_unref(&job);
    }
}

void sl_jobs_cancel_all(struct sl_jobs *jobs) {
    pthread_mutex_lock(&jobs->mutex);
    for (struct sl_job *job = jobs->newest; job != NULL; job = job->older) {
        sl_job_cancel(job);
    }
    pthread_mutex_unlock(&jobs->mutex);
}
