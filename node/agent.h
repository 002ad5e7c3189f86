// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a worker's ties to its coordinators: registers, beats, registers again at one that has forgotten it.
 *
 * Design: one thread a coordinator, so that one that stands still holds up no other. Those that do not lead hear all the same, and know
 *         everybody when they come to lead. A coordinator that cannot be reached is retried for ever (workers may start first,
 *         coordinators may restart). One that refuses the worker (other model, other version) is asked again now and then, for it
 *         may be on its way to be replaced; when all of them refuse, refused_fn says why. Whether to drain is what the one
 *         with the highest term says; the others are told by our beats.
 * Threads: create and destroy from one thread; load_fn runs on the agent's threads, several at once;
 *          sl_agent_takes_jobs() from any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "node/fence.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "rpc/rpc.h"

struct sl_agent;

struct sl_agent_config {
    const char *coordinators;                                 // HOST:PORT,HOST:PORT,...
    const struct sl_rpc_credentials *credentials;             // outlive the agent
    const Sluice__V1__WorkerInfo *info;                       // must stay valid
    struct sl_fence *fence;                                   // hears the coordinators' terms
    void (*load_fn)(void *arg, Sluice__V1__WorkerLoad *load); // fill a fresh load report
    void (*refused_fn)(void *arg, const char *reason);        // no coordinator will have this worker: stop. Called once
    void *arg;
};

// Whether the coordinator knows this worker and gives it jobs; false: `why` is a line that says why not.
bool sl_agent_takes_jobs(struct sl_agent *agent, char *why, size_t why_bytes);

// SL_ERR_INVALID: coordinators.
enum sl_status sl_agent_create(const struct sl_agent_config *config, struct sl_agent **agent_out, struct sl_error *err);

// The load has changed in a way that must be known: beat now. Returns when all coordinators have heard, or at the deadline: false.
bool sl_agent_announce(struct sl_agent *agent, int64_t deadline_ns);

void sl_agent_destroy(struct sl_agent **agent);
