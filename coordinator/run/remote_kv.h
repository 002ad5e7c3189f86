// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the remote KV of a job, which stores hold for its offloaded layers: which store is asked to hold which share,
 *          the check of what prefill reports, and the release.
 * Threads: the job's fiber only.
 */
#pragma once

#include "coordinator/run/worker_call.h"
#include "coordinator/workers/admit.h"
#include "proto/sluice/v1/worker.pb-c.h"

// Holds the shares of a claim in the form of PrefillRequest.stores; the messages point into the claim.
struct sl_store_shares {
    Sluice__V1__StoreShare messages[SL_MAX_SHARES], *pointers[SL_MAX_SHARES];
    size_t n;
};
void sl_store_shares_fill(const struct sl_claim *claim, struct sl_store_shares *shares);

// Returns SL_ERR_INTERNAL if the shares that prefill reports are not those that the claim has.
enum sl_status sl_remote_kv_check(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done,
                                  struct sl_error *err);

// Writes the leases at the claim's stores that prefill has passed on: leases_out[SL_MAX_SHARES]. Returns their number. Queries of decode
// renew them as well, but a second replica gets no query while the first one answers. done may be NULL.
int sl_remote_kv_leases(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done, struct sl_lease *leases_out);

// Releases the leases; waits briefly. Suspects stores that do not answer. done may be NULL.
void sl_remote_kv_release(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done, const char *job_id,
                          int64_t term);

/*
 * Finds the stores of a lost attempt that do not answer. Suspects them, adds them to avoid, and returns their number. A job
 * whose store is lost must not avoid the workers that reported it.
 */
int sl_remote_kv_find_lost(const struct sl_claim *claim, struct sl_avoid *avoid);

/*
 * Adds the attempt's stores that the failure names as culprits to avoid. Returns their number. Prefill and decode name
 * the store in every failure of one: it may be full, busy, or have ended a lease, and still answer.
 */
int sl_remote_kv_find_named(const struct sl_claim *claim, const struct sl_error *failure, struct sl_avoid *avoid);
