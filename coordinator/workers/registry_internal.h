// SPDX-License-Identifier: Apache-2.0
// Purpose: the structs of the registry, which registry.c changes and report.c reads.
#pragma once

#include <pthread.h>

#include "base/liveness_timer.h"
#include "coordinator/workers/rebalance.h"
#include "coordinator/workers/registry.h"

#define SL_LINE_CLASSES 32

// The prompts that a worker is still to read, in classes: class i has those of 2^i tokens and more.
struct sl_reading_line {
    int64_t n[SL_LINE_CLASSES], tokens[SL_LINE_CLASSES];
};

struct sl_worker {
    struct sl_registry *registry; // its mutex guards what is not constant
    // Constant.
    char name[64], rpc_address[SL_ADDRESS_BYTES], fabric_address[SL_ADDRESS_BYTES], version[32], device[32];
    Sluice__V1__WorkerRole role;
    uint64_t model_fingerprint, epoch;
    int64_t arena_bytes, staging_bytes, disk_bytes;
    int max_jobs;
    bool reads; // a decode worker that reads prompts, too
    struct sl_rpc_channel *channel;
    // Guarded.
    int refs;
    bool draining, lost, suspect, stalled;
    bool drain_unheard;          // the worker does not know our last drain command: its beats report an older state
    Sluice__V1__WorkerRole duty; // of a worker that reads, under rebalance_ms; 0: both roles
    bool turns;                  // it drains, to take the other duty
    int64_t turned_ns;           // since then
    int64_t last_beat_ns;
    struct sl_liveness_timer liveness;
    int64_t still_ns;            // without progress, though there is work
    Sluice__V1__WorkerLoad load; // as last reported
    int64_t claimed_bytes, claimed_staging_bytes, claimed_tokens, jobs_ever;
    struct sl_reading_line line;
    int jobs, awaited; // awaited: of the jobs, those whose prompts other workers still read
};

struct sl_registry {
    struct sl_registry_config config;
    pthread_mutex_t mutex;
    struct sl_worker *workers[SL_MAX_WORKERS]; // one reference each, in order of registration
    int n_workers;
    struct sl_rebalance rebalance;
    struct sl_worker_set stores; // scratch of sl_registry_store_address(), without references
};

// Returns whether it is seen in this role; a worker that reads has both without a duty, and prefill is then its second.
static inline bool sl_worker_has_role(const struct sl_worker *worker, Sluice__V1__WorkerRole role) {
    return (worker->duty != 0 ? worker->duty : worker->role) == role;
}

// Lets a worker take turns from here on with others of its role, whatever they did before. Called under the lock.
void sl_registry_take_turns(struct sl_worker *worker);

static inline bool sl_worker_is_draining(const struct sl_worker *worker) {
    return worker->draining || worker->load.stopping;
}
