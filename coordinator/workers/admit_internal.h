// SPDX-License-Identifier: Apache-2.0
// Purpose: declarations that the files of admission share: admit.c has the line and the claims, choose.c the workers.
#pragma once

#include <pthread.h>

#include "base/arena.h"
#include "coordinator/workers/admit.h"
#include "coordinator/workers/bases.h"

struct sl_admission {
    struct sl_registry *registry;
    struct sl_affinity *affinity;
    const struct sl_route_policy *policy;
    int max_running, max_queued;
    pthread_mutex_t mutex;
    struct sl_queue_place line;   // sentinel of a ring in order of tickets
    struct sl_queue_place *first; // next in turn, though it may be held; NULL: none has its workers
    uint64_t next_ticket;
    struct sl_askers askers;
    int64_t now_ns;            // of the last request, claim or rebalancing
    int n_readers;             // workers
    int n_reading;             // prompts that they have
    struct sl_tenant *reading; // whose prompts these are
    int64_t least_read_ns;     // the least that one of these had; INT64_MAX: a reader has no prompt
    int64_t most_read_ns;      // the most that a tenant had when a reading of it began or ended, or another asked
    int64_t n_places;          // of jobs that run
    int64_t n_bytes;           // of decode workers
    struct sl_admission_stats stats;
    double place_interval_ms; // how often a job ends lately: what the retry hint is made of
    int64_t last_end_ns;
    struct sl_shared_base *bases; // that running jobs share
    struct sl_place_rates rates;
    bool is_short[SL_N_DUTIES]; // the first place found no room there when it last looked
    struct sl_worker_set set;   // scratch of the functions that choose workers: a snapshot of one role
};

static inline int64_t sl_in_units(int64_t bytes) {
    return (int64_t)sl_arena_rounded((size_t)bytes);
}

// Both return the memory that a job needs of a worker that only writes, or only reads. The capsule is in staging memory
// on both sides until it has been shipped.
static inline struct sl_route_need sl_decode_need(const struct sl_demand *demand) {
    return (struct sl_route_need){demand->decode_bytes, sl_in_units(demand->capsule_bytes)};
}
static inline struct sl_route_need sl_prefill_need(const struct sl_demand *demand) {
    return (struct sl_route_need){demand->prefill_bytes,
                                  sl_in_units(demand->capsule_bytes) + sl_in_units(demand->travelling_bytes)};
}
// Returns what it needs of a worker that does both: the session at its largest, of which nothing travels.
static inline struct sl_route_need sl_here_need(const struct sl_demand *demand) {
    int64_t bytes = demand->prefill_bytes > demand->decode_bytes ? demand->prefill_bytes : demand->decode_bytes;
    return (struct sl_route_need){bytes, sl_in_units(demand->travelling_bytes)};
}

/*
 * choose.c. All are called under the admission's lock.
 * Checks that workers that take jobs could run the job when idle; without workers of a role, a job waits.
 */
enum sl_status sl_choose_check_fits(struct sl_admission *admission, const struct sl_demand *demand,
                                    struct sl_error *err);
// Chooses the decode worker of a job that has nothing to be read. A reference goes into the claim.
enum sl_status sl_choose_decode(struct sl_admission *admission, const struct sl_claim_spec *spec,
                                struct sl_claim *claim, struct sl_error *err);
/*
 * Chooses the workers of a prompt that must be read: one that reads it and writes the answer, or one for each, in the
 * place that sl_place_is_here() prefers. References go into the claim, on failure too.
 */
enum sl_status sl_choose_places(struct sl_admission *admission, const struct sl_claim_spec *spec,
                                struct sl_claim *claim, struct sl_error *err);
// Chooses stores for the offloaded layers. References go into the claim at once, claims of memory later.
enum sl_status sl_choose_stores(struct sl_admission *admission, const struct sl_claim_spec *spec,
                                struct sl_claim *claim, struct sl_error *err);
