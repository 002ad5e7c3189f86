// SPDX-License-Identifier: Apache-2.0
// Purpose: the structs of the registry, which registry.c changes and report.c reads.
#pragma once

#include <pthread.h>

#include "base/liveness_timer.h"
#include "coordinator/workers/registry.h"

struct sl_worker {
    struct sl_registry *registry; // its mutex guards what is not constant
    // Constant.
    char name[64], rpc_address[SL_ADDRESS_BYTES], fabric_address[SL_ADDRESS_BYTES], version[32], device[32];
    Sluice__V1__WorkerRole role;
    uint64_t model_fingerprint, epoch;
    int64_t arena_bytes, staging_bytes;
    int max_jobs;
    bool reads; // a decode worker that reads prompts, too
    struct sl_rpc_channel *channel;
    // Guarded.
    int refs;
    bool draining, lost, suspect, stalled;
    bool drain_unheard; // the worker does not know our last drain command: its beats report an older state
    int64_t last_beat_ns;
    struct sl_liveness_timer liveness;
    int64_t still_ns;            // without progress, though there is work
    Sluice__V1__WorkerLoad load; // as last reported
    int64_t claimed_bytes, claimed_staging_bytes, claimed_tokens, jobs_ever;
    int jobs;
};

struct sl_registry {
    struct sl_registry_config config;
    pthread_mutex_t mutex;
    struct sl_worker *workers[SL_MAX_WORKERS]; // one reference each, in order of registration
    int n_workers;
    struct sl_worker_set stores; // scratch of sl_registry_store_address(), without references
};

static inline bool sl_worker_is_draining(const struct sl_worker *worker) {
    return worker->draining || worker->load.stopping;
}
