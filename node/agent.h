// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a worker's tie to its coordinator: registers, beats, registers again when the coordinator has forgotten it.
 *
 * Design: one thread. A coordinator that cannot be reached is retried for ever (workers may start first, coordinators
 *         may restart); one that refuses the worker (other model, other version) ends it: refused_fn says why.
 * Threads: create and destroy from one thread; load_fn runs on the agent's thread; sl_agent_takes_jobs() from any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "rpc/rpc.h"

struct sl_agent;

struct sl_agent_config {
    const char *coordinator;                                  // HOST:PORT
    const struct sl_rpc_credentials *credentials;             // outlive the agent
    const Sluice__V1__WorkerInfo *info;                       // must stay valid
    void (*load_fn)(void *arg, Sluice__V1__WorkerLoad *load); // fill a fresh load report
    void (*refused_fn)(void *arg, const char *reason);        // the coordinator will not have this worker: stop
    void *arg;
};

// Whether the coordinator knows this worker and gives it jobs; false: `why` is a line that says why not.
bool sl_agent_takes_jobs(struct sl_agent *agent, char *why, size_t why_bytes);

enum sl_status sl_agent_create(const struct sl_agent_config *config, struct sl_agent **agent_out, struct sl_error *err);
void sl_agent_destroy(struct sl_agent **agent);
