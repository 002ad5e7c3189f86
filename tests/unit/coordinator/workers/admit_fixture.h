// SPDX-License-Identifier: Apache-2.0
// Purpose: a registry and an admission for tests, and workers that join them. Include it after cmocka.h.
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/version.h"
#include "coordinator/workers/admit.h"
#include "net/rpc/rpc.h"
#include "tests/unit/rpc_group.h"

static const struct sl_avoid none;

struct fixture {
    struct sl_registry *registry;
    struct sl_affinity *affinity;
    struct sl_admission *admission;
};

static inline struct fixture make(int max_running, int max_queued) {
    struct fixture f = {0};
    struct sl_registry_config config = {.model_fingerprint = 1, .heartbeat_ms = 1000};
    assert_int_equal(sl_registry_create(&config, &f.registry, NULL), SL_OK);
    assert_int_equal(sl_affinity_create(100, &f.affinity, NULL), SL_OK);
    assert_int_equal(sl_admission_create(f.registry, f.affinity, max_running, max_queued, &f.admission, NULL), SL_OK);
    return f;
}

static inline void cleanup(struct fixture *f) {
    struct sl_admission_stats stats;
    sl_admission_get_stats(f->admission, &stats);
    assert_int_equal(stats.n_queued, 0);
    assert_int_equal(stats.n_running, 0);
    assert_int_equal(stats.claimed_bytes, 0);
    sl_admission_destroy(&f->admission);
    sl_affinity_destroy(&f->affinity);
    sl_registry_destroy(&f->registry);
}

#define PREFILL SLUICE__V1__WORKER_ROLE__PREFILL
#define DECODE  SLUICE__V1__WORKER_ROLE__DECODE
#define BOTH    ((Sluice__V1__WorkerRole)99)

// staging_bytes: 0: what travels lies in the arena
static inline void join_staging(struct fixture *f, char *name, Sluice__V1__WorkerRole role, int64_t arena_bytes,
                                int64_t staging_bytes, int max_jobs) {
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = name;
    info.role = role == BOTH ? DECODE : role;
    info.reads = role == BOTH;
    info.rpc_address = "127.0.0.1:1";
    info.version = SL_VERSION;
    info.model_fingerprint = 1;
    info.arena_bytes = arena_bytes;
    info.staging_bytes = staging_bytes;
    info.max_jobs = max_jobs;
    info.epoch = 1;
    assert_int_equal(sl_registry_register(f->registry, &info, sl_now_ns(), NULL), SL_OK);
}

static inline void join(struct fixture *f, char *name, Sluice__V1__WorkerRole role, int64_t arena_bytes, int max_jobs) {
    join_staging(f, name, role, arena_bytes, 0, max_jobs);
}

static inline enum sl_status claim(struct fixture *f, struct sl_queue_place *place, const struct sl_demand *demand,
                                   struct sl_claim *claim_out, struct sl_error *err) {
    const struct sl_claim_spec spec = {.demand = demand, .avoid = &none};
    return sl_admission_claim(f->admission, place, &spec, 20, claim_out, err);
}
