// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of jobs that the coordinator knows, by id and newest first.
 *
 * Design: a hash table and a list through the jobs themselves. Jobs that have ended are kept for their watchers until
 *         they are older than the retention, or more or larger than its caps, or than their tenant's share of those; then the
 *         oldest ended one goes first.
 *         A forgotten job lives until its last handler releases it.
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
// Releases the table's references.
void sl_jobs_destroy(struct sl_jobs **jobs);

// Draws an id of 64 random bits, so that no other job of this cluster has had it, and a tenant's ids tell nothing of how many
// jobs others have. SL_ERR_IO: the kernel gives no random numbers.
enum sl_status sl_jobs_new_id(char id_out[SL_JOB_ID_BYTES], struct sl_error *err);

// Adds the job with a reference of the table's own, and returns NULL. If the tenant has a job of the same idempotency key that was not
// cancelled, returns a reference to that job and adds nothing.
struct sl_job *sl_jobs_add(struct sl_jobs *jobs, struct sl_job *job);

// Undoes sl_jobs_add(): the job was refused after all. Does nothing if retention has removed it already.
void sl_jobs_remove(struct sl_jobs *jobs, struct sl_job *job);

// Takes a reference to the job with this id, of this tenant (NULL: of any). SL_ERR_NOT_FOUND.
enum sl_status sl_jobs_find(struct sl_jobs *jobs, const char *id, const char *tenant, struct sl_job **job_out,
                            struct sl_error *err);

// Returns a reference to the tenant's job of this idempotency key, if it is still kept and was not cancelled; else NULL.
struct sl_job *sl_jobs_find_key(struct sl_jobs *jobs, const char *tenant, const char *key);

/*
 * Lists jobs of the tenant (NULL: of all) whose state's bit (1 << state) is in state_mask: newest first, at most max_list. Each entry is a
 * reference of the caller's. Returns how many.
 */
size_t sl_jobs_list(struct sl_jobs *jobs, const char *tenant, unsigned state_mask, struct sl_job **list,
                    size_t max_list);

// Counts the tenant's jobs (NULL: all) by state.
#define SL_N_JOB_STATES 8
void sl_jobs_count(struct sl_jobs *jobs, const char *tenant, int64_t counts_out[SL_N_JOB_STATES]);

// Forgets jobs beyond the retention. Called regularly, and by sl_jobs_add() when a sixteenth of the jobs is new.
void sl_jobs_trim(struct sl_jobs *jobs, int64_t now_ns);

void sl_jobs_cancel_all(struct sl_jobs *jobs);
