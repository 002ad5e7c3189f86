// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a job's offloaded layers, as its runner sees them: which store is asked to hold what, what prefill says is
 *          held, and how it goes back.
 * Threads: the job's thread only.
 */
#pragma once

#include "coordinator/run/worker_call.h"
#include "coordinator/workers/admit.h"
#include "proto/sluice/v1/worker.pb-c.h"

// The shares of a claim as PrefillRequest.stores; points into the claim.
struct sl_store_shares {
    Sluice__V1__StoreShare messages[SL_MAX_SHARES], *pointers[SL_MAX_SHARES];
    size_t n;
};
void sl_store_shares_fill(const struct sl_claim *claim, struct sl_store_shares *shares);

// SL_ERR_INTERNAL: what prefill says is held is not what it was asked to have held.
enum sl_status sl_remote_kv_check(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done,
                                  struct sl_error *err);

// The leases that prefill has handed on, of the claim's stores: leases_out[SL_MAX_SHARES]. Returns their number. Questions
// renew them as well, but a second replica is asked nothing as long as the first one answers. done may be NULL.
int sl_remote_kv_leases(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done, struct sl_lease *leases_out);

// Give the leases back, waiting briefly; stores that do not answer are suspected. done may be NULL.
void sl_remote_kv_release(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done, const char *job_id,
                          int64_t term);

/*
 * After an attempt was lost: which of its stores do not answer? They are suspected, put into avoid, and counted. A job
 * whose store is gone must not blame the workers that said so.
 */
int sl_remote_kv_find_lost(const struct sl_claim *claim, struct sl_avoid *avoid);

/*
 * Puts the attempt's stores that the failure names as culprits into avoid. Returns how many they are. Prefill and decode name
 * the store in every failure of one: it may be full, busy, or have ended a lease, and still answer.
 */
int sl_remote_kv_find_named(const struct sl_claim *claim, const struct sl_error *failure, struct sl_avoid *avoid);
