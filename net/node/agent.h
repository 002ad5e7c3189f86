// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a worker's connections to its coordinators: registers, sends heartbeats, and registers again at one that has
 *          forgotten it.
 *
 * Design: one thread per coordinator, so that one that stalls delays no other. Standby coordinators get the heartbeats
 *         as well, so that they know all workers when they become leader. A coordinator that cannot be reached is
 *         retried forever (workers may start first, coordinators may restart). One that refuses the worker (other
 *         model, other version) is asked again from time to time, as it may be about to be replaced; when all of them
 *         refuse, refused_fn gets the reason. The coordinator with the highest term decides whether the worker drains;
 *         our heartbeats tell the others.
 * Threads: create and destroy from one thread; load_fn runs on the agent's threads, several at once;
 *          sl_agent_takes_jobs() from any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "net/node/term_guard.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "net/rpc/rpc.h"

struct sl_agent;

struct sl_agent_config {
    const char *coordinators;                                 // HOST:PORT,HOST:PORT,...
    const struct sl_rpc_credentials *credentials;             // outlive the agent
    const Sluice__V1__WorkerInfo *info;                       // must stay valid
    struct sl_term_guard *term_guard;                         // hears the coordinators' terms
    void (*load_fn)(void *arg, Sluice__V1__WorkerLoad *load); // fills a new load report
    void (*refused_fn)(void *arg, const char *reason);        // no coordinator accepts this worker: stop. Called once
    void *arg;
};

// Returns true when a coordinator knows this worker and gives it jobs; false: `why` is one line with the reason.
bool sl_agent_takes_jobs(struct sl_agent *agent, char *why, size_t why_bytes);

// Starts the agent. SL_ERR_INVALID: coordinators is not a list of addresses.
enum sl_status sl_agent_create(const struct sl_agent_config *config, struct sl_agent **agent_out, struct sl_error *err);

// Sends a heartbeat now, because the load changed in a way that coordinators must know. Returns true when all have
// answered, false at the deadline.
bool sl_agent_announce(struct sl_agent *agent, int64_t deadline_ns);

void sl_agent_destroy(struct sl_agent **agent);
