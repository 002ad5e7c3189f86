// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: who shares the cluster, and how much of what is counted each of them has.
 *
 * Design: of a queue, of watchers and of ended jobs a tenant may take a share; what runs is given in turn instead
 *         (coordinator/workers/admit.h), so that nothing idles for want of a second tenant. The tenant "", which is everybody where
 *         there are no certificates, and operators where there are, has no bounds but those of all.
 * Ownership: an entry lives as long as somebody holds it, so that there are never more than jobs and calls.
 * Threads: any number.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "coordinator/workers/totals.h"
#include "net/trust/identity.h"

struct sl_tenants;

struct sl_tenant {
    struct sl_tenants *tenants;
    struct sl_tenant *next;
    char name[SL_TENANT_BYTES];
    int refs;                // under the table's lock
    atomic_int n_watchers;   // calls that follow jobs
    struct sl_totals totals; // since somebody holds it: for as long as one of its jobs is kept
    int n_queued, n_running; // jobs, under admission's lock
    int64_t n_kept_jobs,
        kept_bytes; // of ended jobs, while they are looked through, under the lock of the table of jobs
};

// share: percent of each whole.
enum sl_status sl_tenants_create(int share, struct sl_tenants **tenants_out, struct sl_error *err);
void sl_tenants_destroy(struct sl_tenants **tenants); // all given back; accepts NULL, nulls

// The tenant of this name, to be given back. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_tenants_take(struct sl_tenants *tenants, const char *name, struct sl_tenant **tenant_out,
                               struct sl_error *err);
void sl_tenant_give(struct sl_tenant **tenant); // accepts NULL, nulls

// What the tenant may have of a whole, at least 1; all of it for "" and for NULL.
int64_t sl_tenant_share(const struct sl_tenant *tenant, int64_t whole);
