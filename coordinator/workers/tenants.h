// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tenants that share the cluster, and how much of each counted resource each of them uses.
 *
 * Design: a tenant may use a share of the queue, of watchers, of memory for calls that may last and of ended jobs.
 *         Running jobs are admitted in turn (coordinator/workers/admit.h). Places are left to others only while another
 *         tenant asks, so that no capacity idles for want of a second tenant. The tenant "" has only the cluster's own
 *         bounds, and the same turn as others. It stands for every client where there are no certificates, and for
 *         operators where there are. Each such caller has an entry of its own for what its calls hold: watchers, and
 *         memory of calls that may last.
 * Ownership: an entry lives as long as it is referenced, so there are never more entries than jobs and calls.
 * Threads: any number.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fiber/bell.h"
#include "base/hash_table.h"
#include "base/status.h"
#include "coordinator/workers/totals.h"
#include "net/trust/identity.h"

struct sl_tenants;

struct sl_tenant {
    struct sl_tenants *tenants;
    struct sl_hash_link by_name;
    char name[SL_TENANT_BYTES];
    uint64_t caller;                // of an entry for the calls of one caller without a tenant; else 0
    uint64_t hash;                  // of the name
    int refs;                       // under the table's lock
    atomic_int n_watchers;          // calls that follow jobs
    atomic_llong call_bytes;        // memory of calls that may last
    struct sl_totals totals;        // since the entry exists: as long as one of its jobs is kept
    int n_queued, n_running;        // jobs, under admission's lock
    int n_reading;                  // of the running ones, those whose prompts are read
    int n_restoring;                // likewise, those that wait for a store's disk before they are read
    int64_t read_ns;                // how long readings took, until read_changed_ns
    int64_t read_changed_ns;        // when one of its readings last began or ended; when it first asked
    struct sl_tenant *next_reading; // of admission's list of tenants whose prompts are read
    int64_t running_bytes;          // of decode workers, claimed by the running ones
    pthread_mutex_t sending;        // guards n_sending
    struct sl_bell sent;            // it was lowered
    int n_sending;                  // turns to send events, see sl_tenant_begin_sending()
    int n_tokenizing,
        n_turns; // requests, their turns, and the time that they took, under the lock of coordinator/jobs/tokenizing.h
    int64_t tokenizing_ns;
    int64_t n_kept_jobs,
        kept_bytes; // of ended jobs, while they are looked through, under the lock of the table of jobs
};

// share: percent of each whole.
enum sl_status sl_tenants_create(int share, struct sl_tenants **tenants_out, struct sl_error *err);
void sl_tenants_destroy(struct sl_tenants **tenants); // all references released; accepts NULL, nulls

// Takes a reference to the tenant of this name. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_tenants_take(struct sl_tenants *tenants, const char *name, struct sl_tenant **tenant_out,
                               struct sl_error *err);
// Takes a reference to the entry for the calls of a caller: that of its tenant, or, if that is "", its own by
// sl_rpc_call_caller().
enum sl_status sl_tenants_take_caller(struct sl_tenants *tenants, const char *name, uint64_t caller,
                                      struct sl_tenant **tenant_out, struct sl_error *err);
void sl_tenant_give(struct sl_tenant **tenant); // accepts NULL, nulls

// Returns the tenant's share of a whole, or that of a caller without one, at least 1; all of it for the tenant "" and
// for NULL.
int64_t sl_tenant_share(const struct sl_tenant *tenant, int64_t whole);

// The two tenants that asked last: enough to tell of each tenant whether another one asks.
struct sl_askers {     // zero-initialized
    uint64_t names[2]; // hashed; the last one first
    int64_t asked_ns[2];
};
void sl_askers_note(struct sl_askers *askers, const struct sl_tenant *tenant, int64_t now_ns);
// Returns whether another tenant than this one has asked within a second before now_ns.
bool sl_askers_has_other(const struct sl_askers *askers, const struct sl_tenant *tenant, int64_t now_ns);

/*
 * Waits for one of the tenant's turns to send events: one for every two processors, so that what waits in gRPC for a
 * tenant's many streams does not delay the calls of others. The tenant "" always has one. False: none was free before
 * the deadline.
 */
bool sl_tenant_begin_sending(struct sl_tenant *tenant, int64_t deadline_ns);
void sl_tenant_end_sending(struct sl_tenant *tenant);
