// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/remote_kv.h"

#include <string.h>

#include "base/clock.h"
#include "proto/methods.h"

#define PROBE_MS       300  // a store that does not answer within this time counts as lost
#define FIRST_LEASE_MS 3000 // assumed duration of a lease until the store has reported it

void sl_store_shares_fill(const struct sl_claim *claim, struct sl_store_shares *shares) {
    shares->n = (size_t)claim->n_shares;
    for (int i = 0; i < claim->n_shares; i++) {
        Sluice__V1__StoreShare *message = &shares->messages[i];
        sluice__v1__store_share__init(message);
        message->address = (char *)sl_worker_address(claim->shares[i].store);
        message->first_lane = claim->shares[i].first_offloaded_head;
        message->n_lanes = claim->shares[i].n_offloaded_heads;
        message->replica = claim->shares[i].replica;
        shares->pointers[i] = message;
    }
}

// Returns the claim's share that the message describes, or -1.
static int find_share(const struct sl_claim *claim, const Sluice__V1__StoreShare *share) {
    for (int i = 0; share != NULL && i < claim->n_shares; i++) {
        if (strcmp(sl_worker_address(claim->shares[i].store), share->address) == 0 &&
            claim->shares[i].first_offloaded_head == share->first_lane &&
            claim->shares[i].n_offloaded_heads == share->n_lanes && claim->shares[i].replica == share->replica) {
            return i;
        }
    }
    return -1;
}

enum sl_status sl_remote_kv_check(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done,
                                  struct sl_error *err) {
    bool held[SL_MAX_SHARES] = {false};
    size_t n_held = 0;
    for (size_t i = 0; i < done->n_annex; i++) {
        int share = find_share(claim, done->annex[i]->share);
        n_held += share >= 0 && !held[share];
        if (share >= 0) {
            held[share] = true;
        }
    }
    SL_FAIL_IF(n_held != (size_t)claim->n_shares || done->n_annex != n_held, err, SL_ERR_INTERNAL,
               "%s reports that stores hold %zu shares of the job, which has %d", sl_worker_name(claim->prefill),
               done->n_annex, claim->n_shares);
    return SL_OK;
}

// Writes the lease that prefill has passed on in an entry; false: it is not one of the claim's.
static bool lease_of(const struct sl_claim *claim, const Sluice__V1__AnnexShare *annex, struct sl_lease *lease_out) {
    int share = find_share(claim, annex->share);
    if (share < 0 || strlen(annex->lease_id) >= sizeof lease_out->id) {
        return false;
    }
    *lease_out = (struct sl_lease){.worker = claim->shares[share].store,
                                   .renew = &sl_method_store_renew,
                                   .release = &sl_method_store_release,
                                   .lease_ms = FIRST_LEASE_MS};
    strcpy(lease_out->id, annex->lease_id);
    return true;
}

int sl_remote_kv_leases(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done,
                        struct sl_lease *leases_out) {
    int n = 0;
    for (size_t i = 0; done != NULL && i < done->n_annex && n < SL_MAX_SHARES; i++) {
        n += lease_of(claim, done->annex[i], &leases_out[n]);
    }
    return n;
}

void sl_remote_kv_release(const struct sl_claim *claim, const Sluice__V1__PrefillDone *done, const char *job_id,
                          int64_t term) {
    int n = 0;
    for (size_t i = 0; done != NULL && i < done->n_annex && n < SL_MAX_SHARES; i++) {
        struct sl_lease lease;
        if (lease_of(claim, done->annex[i], &lease)) {
            n++;
            lease.term = term;
            sl_lease_release(&lease, job_id);
        }
    }
}

int sl_remote_kv_find_lost(const struct sl_claim *claim, struct sl_avoid *avoid) {
    int n_lost = 0;
    for (int i = 0; i < claim->n_shares; i++) {
        struct sl_worker *store = claim->shares[i].store;
        Sluice__V1__StoreStatsRequest request = SLUICE__V1__STORE_STATS_REQUEST__INIT;
        struct sl_error err = {0};
        bool lost =
            sl_worker_is_lost(store) || sl_rpc_unary(sl_worker_channel(store), &sl_method_store_stats, &request.base,
                                                     sl_deadline_in_ms(PROBE_MS), NULL, NULL, &err) != SL_OK;
        if (lost) {
            n_lost++;
            sl_worker_suspect(store);
            sl_avoid_add(avoid, store);
        }
    }
    return n_lost;
}

int sl_remote_kv_find_named(const struct sl_claim *claim, const struct sl_error *failure, struct sl_avoid *avoid) {
    int n_named = 0;
    for (int i = 0; failure->reason == SL_REASON_STORE && i < claim->n_shares; i++) {
        if (sl_error_blames(failure, sl_worker_address(claim->shares[i].store))) {
            n_named++;
            sl_avoid_add(avoid, claim->shares[i].store);
        }
    }
    return n_named;
}
