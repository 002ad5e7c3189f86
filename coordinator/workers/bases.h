// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: counts the jobs that share a document's capsule on a decode worker, so that admission claims the capsule's bytes once: with
 *          the first of these jobs, and until the last of them ends.
 * Ownership: an entry exists as long as a job is counted. The claims of its jobs have references to the worker.
 * Threads: one at a time (admission's lock).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sl_worker;
struct sl_shared_base; // a list; NULL: empty

// Returns the bytes that jobs share on the worker; 0: none do.
int64_t sl_shared_base_bytes(const struct sl_shared_base *bases, const struct sl_worker *worker, uint64_t key);

/*
 * Counts one more job. shared_out: the bytes that are claimed for all of them. new_out: `bytes` for the first job, which the caller
 * claims, and 0 for others. Returns false, and counts nothing, if there is no memory for an entry.
 */
bool sl_shared_base_join(struct sl_shared_base **bases, const struct sl_worker *worker, uint64_t key, int64_t bytes,
                         int64_t *shared_out, int64_t *new_out);

// Counts one job less. Returns the bytes that the caller gives back: those of the base if this was its last job, else 0.
int64_t sl_shared_base_leave(struct sl_shared_base **bases, const struct sl_worker *worker, uint64_t key);
