// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: every job that the coordinator knows, by id and newest first.
 *
 * Design: a hash table and a list through the jobs themselves. Jobs that have ended are kept for their watchers until
 *         they are older than the retention, or more or larger than its caps, or than their tenant's share of those; then the
 *         oldest ended one goes first.
 *         A forgotten job lives on until the last handler that holds it lets go.
 * Threads: every function from any thread. Lock order: jobs, then job.
 */
#pragma once

#include "coordinator/jobs/job.h"

struct sl_jobs;

struct sl_retention {
    int64_t ms;        // after a job's end
    int64_t max_jobs;  // ended ones
    int64_t max_bytes; // of ended ones
};

enum sl_status sl_jobs_create(const struct sl_retention *retention, struct sl_jobs **jobs_out, struct sl_error *err);
// Gives back the table's references.
void sl_jobs_destroy(struct sl_jobs **jobs);

// An id that no other job of this cluster has had, also not before a restart.
void sl_jobs_new_id(struct sl_jobs *jobs, char id_out[SL_JOB_ID_BYTES]);

// The table takes a reference of its own, and NULL comes back; or, if the tenant has a job of the same idempotency key that was not
// cancelled, a reference to that, and nothing has changed.
struct sl_job *sl_jobs_add(struct sl_jobs *jobs, struct sl_job *job);

// Undo sl_jobs_add(): the job was refused after all. Nothing happens if retention was quicker.
void sl_jobs_remove(struct sl_jobs *jobs, struct sl_job *job);

// A reference to the job with this id, of this tenant (NULL: of any), or SL_ERR_NOT_FOUND.
enum sl_status sl_jobs_find(struct sl_jobs *jobs, const char *id, const char *tenant, struct sl_job **job_out,
                            struct sl_error *err);

// A reference to the tenant's job of this idempotency key, if that is still kept and was not cancelled; or NULL.
struct sl_job *sl_jobs_find_key(struct sl_jobs *jobs, const char *tenant, const char *key);

/*
 * Newest first, at most max_list, those of the tenant (NULL: of all) whose state's bit (1 << state) is in state_mask. Each is a
 * reference of the caller's. Returns how many.
 */
size_t sl_jobs_list(struct sl_jobs *jobs, const char *tenant, unsigned state_mask, struct sl_job **list,
                    size_t max_list);

// By state, those of the tenant (NULL: of all).
#define SL_N_JOB_STATES 8
void sl_jobs_count(struct sl_jobs *jobs, const char *tenant, int64_t counts_out[SL_N_JOB_STATES]);

// Forget what retention no longer keeps. Called regularly and by sl_jobs_add().
void sl_jobs_trim(struct sl_jobs *jobs, int64_t now_ns);

void sl_jobs_cancel_all(struct sl_jobs *jobs);
