// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a cluster in virtual time: a workload goes through the coordinator's own registry, admission, routing and
 *          affinity, prefill's schedule of chunks, and the stores' memory and eviction. Engines take the times of a table,
 *          links carry bytes at a rate.
 *
 * Design: discrete events on one thread. A job does what coordinator/run does:
 *
 *     arrives --enters the line--> admitted --calls--> a prefill worker looks up the store, fetches, reads; ships while
 *     the last chunk is read --> shipped: prefill is released, the store gets a copy --> decode writes --> ends
 *
 * Not here: faults, heartbeats (no worker is lost), offloaded layers, documents, kept sessions, tenants.
 */
#pragma once

#include "engine/compress/recipe/recipe.h"
#include "engine/model/model.h"
#include "lab/simulate/costs.h"
#include "lab/simulate/workload.h"

struct sl_sim_config {
    const struct sl_workload *workload;
    double time_scale; // of the workload's times
    const struct sl_costs *costs;
    const struct sl_model_config *model;
    const struct sl_recipe *recipe;
    int64_t n_prefill, n_decode, n_aggregated, n_stores;
    int64_t prefill_arena, decode_arena, store_arena; // aggregated workers have decode's
    int64_t prefill_jobs, decode_jobs;                // --max-jobs of workers
    int64_t max_jobs, max_queued;                     // of the coordinator; max_jobs 0: as many as decode workers take
    int64_t keep_ms, ttl_ms;                          // of stores
    double link_bytes_per_s;                          // 0: the table's
    bool only_out;                                    // links limit what leaves a node, not what arrives
    const struct sl_route_policy *routing;            // NULL: the default
    int64_t rebalance_ms; // of the coordinator: n_aggregated change roles; 0: they have both
    int64_t autoscale;    // least n_prefill and n_decode, which follow the load (scale.h); 0: all are there
    int64_t start_ms;     // until a worker that autoscale adds takes jobs
    // Called now and then, may be NULL; a status that is not SL_OK ends the simulation.
    enum sl_status (*check_fn)(void *arg, int64_t n_ended, double at_s, struct sl_error *err);
    void *arg;
};

enum sl_sim_outcome { SL_SIM_UNFINISHED, SL_SIM_DONE, SL_SIM_REFUSED, SL_SIM_FAILED };

struct sl_sim_request {
    enum sl_sim_outcome outcome;
    float ttft_s, tpot_s, e2e_s; // tpot_s 0: one token
    int64_t n_cached;
};

#define SL_SIM_GAP_BINS 4096 // bin i: gaps of 1 us * exp(i / 200)

struct sl_sim_result {
    struct sl_sim_request *requests; // [workload->n]
    double seconds;                  // from the first arrival to the last answer
    double capsule_bytes, full_bytes, resident_bytes, copied_bytes, fetched_bytes;
    int64_t most_at_once, most_queued, n_evicted, n_rebalanced;
    double queued_s;                  // of all jobs that were admitted
    double prefill_busy, decode_busy; // share of their time
    double worker_s;                  // of all workers
    uint64_t gaps[SL_SIM_GAP_BINS];   // between two tokens of an answer
    char failure[256];                // of the first request that failed
};

// SL_ERR_UNSUPPORTED: the recipe offloads layers. SL_ERR_EXHAUSTED: too many workers, or no memory. The caller cleans up
// the result, after a failure too.
enum sl_status sl_sim_run(const struct sl_sim_config *config, struct sl_sim_result *result_out, struct sl_error *err);
void sl_sim_result_cleanup(struct sl_sim_result *result);
