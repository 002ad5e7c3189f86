// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/jobs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/locked.h"

#define N_BUCKETS  4096
#define TRIM_SHARE 16 // a trim looks at every job: sl_jobs_add() waits until a sixteenth of them is new

struct sl_jobs {
    struct sl_retention retention;
    pthread_mutex_t mutex;
    struct sl_job *newest, *oldest;
    int64_t n_jobs, n_new; // n_new: since the last trim
    struct sl_hash_table by_id;
    struct sl_hash_table by_key; // jobs with an idempotency key
};

// Accepts NULL.
static void free_tables(struct sl_jobs *jobs) {
    if (jobs != NULL) {
        sl_hash_table_cleanup(&jobs->by_id);
        sl_hash_table_cleanup(&jobs->by_key);
        free(jobs);
    }
}

enum sl_status sl_jobs_create(const struct sl_retention *retention, struct sl_jobs **jobs_out, struct sl_error *err) {
    struct sl_jobs *jobs = calloc(1, sizeof(*jobs));
    if (jobs == NULL || !sl_hash_table_init(&jobs->by_id, N_BUCKETS) || !sl_hash_table_init(&jobs->by_key, N_BUCKETS)) {
        free_tables(jobs);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the table of jobs");
    }
    jobs->retention = *retention;
    pthread_mutex_init(&jobs->mutex, NULL);
    *jobs_out = jobs;
    return SL_OK;
}

static uint64_t hash_of_id(const char *id) {
    return sl_hash(id, strlen(id), 0);
}

static uint64_t hash_of_key(const char *tenant, const char *key) {
    return sl_hash(key, strlen(key), sl_hash(tenant, strlen(tenant), 0));
}

static bool has_id(const struct sl_hash_link *link, const void *id) {
    return strcmp(SL_HASH_ENTRY(link, struct sl_job, by_id)->id, id) == 0;
}

// Returns the job of this id, or NULL. Lock held.
static struct sl_job *find_id(const struct sl_jobs *jobs, const char *id) {
    return SL_HASH_ENTRY(*sl_hash_table_find(&jobs->by_id, hash_of_id(id), has_id, id), struct sl_job, by_id);
}

// Removes a job from tables and list; its reference passes to the caller. Lock held.
static void take_out(struct sl_jobs *jobs, struct sl_job *job) {
    sl_hash_table_remove(&jobs->by_id, hash_of_id(job->id), &job->by_id);
    if (job->spec.key[0] != '\0') {
        sl_hash_table_remove(&jobs->by_key, hash_of_key(job->spec.tenant, job->spec.key), &job->by_key);
    }
    *(job->newer != NULL ? &job->newer->older : &jobs->newest) = job->older;
    *(job->older != NULL ? &job->older->newer : &jobs->oldest) = job->newer;
    job->newer = job->older = NULL;
    jobs->n_jobs--;
    atomic_store(&job->forgotten, true);
}

void sl_jobs_destroy(struct sl_jobs **jobs_in) {
    SL_TAKE_OR_RETURN(jobs, jobs_in);
    while (jobs->oldest != NULL) {
        struct sl_job *job = jobs->oldest;
        take_out(jobs, job);
        sl_job_unref(&job);
    }
    pthread_mutex_destroy(&jobs->mutex);
    free_tables(jobs);
}

enum sl_status sl_jobs_new_id(char id_out[SL_JOB_ID_BYTES], struct sl_error *err) {
    uint64_t bits;
    SL_FAIL_IF(getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits, err, SL_ERR_IO,
               "no random numbers from the kernel: %s", strerror(errno));
    snprintf(id_out, SL_JOB_ID_BYTES, "job-%016" PRIx64, bits);
    return SL_OK;
}

struct key {
    const char *tenant, *key;
};

static bool has_key(const struct sl_hash_link *link, const void *arg) {
    struct sl_job *job = SL_HASH_ENTRY(link, struct sl_job, by_key);
    const struct key *key = arg;
    return strcmp(job->spec.key, key->key) == 0 && strcmp(job->spec.tenant, key->tenant) == 0 && !sl_job_is_void(job);
}

// Lock held.
static struct sl_job *find_key(struct sl_jobs *jobs, const char *tenant, const char *key) {
    struct key wanted = {tenant, key};
    return SL_HASH_ENTRY(*sl_hash_table_find(&jobs->by_key, hash_of_key(tenant, key), has_key, &wanted), struct sl_job,
                         by_key);
}

struct sl_job *sl_jobs_find_key(struct sl_jobs *jobs, const char *tenant, const char *key) {
    SL_LOCKED(&jobs->mutex);
    struct sl_job *job = find_key(jobs, tenant, key);
    if (job != NULL) {
        sl_job_ref(job);
    }
    return job;
}

struct sl_job *sl_jobs_add(struct sl_jobs *jobs, struct sl_job *job) {
    pthread_mutex_lock(&jobs->mutex);
    if (job->spec.key[0] != '\0') {
        struct sl_job *first = find_key(jobs, job->spec.tenant, job->spec.key);
        if (first != NULL) {
            sl_job_ref(first);
            pthread_mutex_unlock(&jobs->mutex);
            return first;
        }
        sl_hash_table_add(&jobs->by_key, hash_of_key(job->spec.tenant, job->spec.key), &job->by_key);
    }
    sl_job_ref(job);
    sl_hash_table_add(&jobs->by_id, hash_of_id(job->id), &job->by_id);
    job->older = jobs->newest;
    *(jobs->newest != NULL ? &jobs->newest->newer : &jobs->oldest) = job;
    jobs->newest = job;
    jobs->n_jobs++;
    bool is_due = ++jobs->n_new >= jobs->n_jobs / TRIM_SHARE;
    pthread_mutex_unlock(&jobs->mutex);
    if (is_due) {
        sl_jobs_trim(jobs, sl_now_ns());
    }
    return NULL;
}

void sl_jobs_remove(struct sl_jobs *jobs, struct sl_job *job) {
    pthread_mutex_lock(&jobs->mutex);
    struct sl_job *found = find_id(jobs, job->id) == job ? job : NULL; // trimmed jobs are gone already
    if (found != NULL) {
        take_out(jobs, job);
    }
    pthread_mutex_unlock(&jobs->mutex);
    sl_job_unref(&found);
}

static bool is_of(const struct sl_job *job, const char *tenant) {
    return tenant == NULL || strcmp(job->spec.tenant, tenant) == 0;
}

enum sl_status sl_jobs_find(struct sl_jobs *jobs, const char *id, const char *tenant, struct sl_job **job_out,
                            struct sl_error *err) {
    pthread_mutex_lock(&jobs->mutex);
    struct sl_job *job = find_id(jobs, id);
    job = job != NULL && is_of(job, tenant) ? sl_job_ref(job) : NULL;
    pthread_mutex_unlock(&jobs->mutex);
    SL_FAIL_IF(job == NULL, err, SL_ERR_NOT_FOUND,
               "there is no job '%.60s' (or it ended too long ago); `sluice jobs` lists them", id);
    *job_out = job;
    return SL_OK;
}

void sl_jobs_count(struct sl_jobs *jobs, const char *tenant, int64_t counts_out[SL_N_JOB_STATES]) {
    memset(counts_out, 0, sizeof *counts_out * SL_N_JOB_STATES);
    SL_LOCKED(&jobs->mutex);
    for (struct sl_job *job = jobs->newest; job != NULL; job = job->older) {
        counts_out[sl_job_state(job)] += is_of(job, tenant);
    }
}

size_t sl_jobs_list(struct sl_jobs *jobs, const char *tenant, unsigned state_mask, struct sl_job **list,
                    size_t max_list) {
    size_t n = 0;
    SL_LOCKED(&jobs->mutex);
    for (struct sl_job *job = jobs->newest; job != NULL && n < max_list; job = job->older) {
        if (is_of(job, tenant) && (state_mask >> sl_job_state(job) & 1U) != 0) {
            list[n++] = sl_job_ref(job);
        }
    }
    return n;
}

// Returns whether one more ended job is within the tenant's share, and counts it if so. Lock held.
static bool fits_share(struct sl_jobs *jobs, struct sl_tenant *tenant, int64_t job_bytes) {
    if (tenant == NULL) {
        return true;
    }
    if (tenant->n_kept_jobs >= sl_tenant_share(tenant, jobs->retention.max_jobs) ||
        tenant->kept_bytes + job_bytes > sl_tenant_share(tenant, jobs->retention.max_bytes)) {
        return false;
    }
    tenant->n_kept_jobs++;
    tenant->kept_bytes += job_bytes;
    return true;
}

void sl_jobs_trim(struct sl_jobs *jobs, int64_t now_ns) {
    struct sl_job *gone = NULL; // chained by `older`
    int64_t n_ended = 0, bytes = 0;

    pthread_mutex_lock(&jobs->mutex);
    jobs->n_new = 0;
    for (struct sl_job *job = jobs->newest; job != NULL; job = job->older) {
        if (job->place.tenant != NULL) {
            job->place.tenant->n_kept_jobs = job->place.tenant->kept_bytes = 0;
        }
    }
    struct sl_job *older;
    for (struct sl_job *job = jobs->newest; job != NULL; job = older) {
        older = job->older;
        int64_t ended_ns = sl_job_ended_ns(job);
        if (ended_ns == 0) {
            continue;
        }
        int64_t job_bytes = (int64_t)sl_job_bytes(job);
        if (n_ended < jobs->retention.max_jobs && bytes + job_bytes <= jobs->retention.max_bytes &&
            now_ns - ended_ns <= jobs->retention.ms * SL_NS_PER_MS && fits_share(jobs, job->place.tenant, job_bytes)) {
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
    SL_LOCKED(&jobs->mutex);
    for (struct sl_job *job = jobs->newest; job != NULL; job = job->older) {
        sl_job_cancel(job);
    }
}
