// SPDX-License-Identifier: Apache-2.0
// Purpose: how many bytes each tenant has in a capsule cache. Threads: one at a time, under the cache's lock.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sl_tenant_bytes { // of a tenant that has capsules
    struct sl_tenant_bytes *next;
    uint64_t id; // 0: capsules whose tenant is not known
    int64_t n_capsules;
    size_t bytes;
};

struct sl_tenant_table { // zeroed: none
    struct sl_tenant_bytes *first;
    int64_t n;
};

// Counts a capsule of this tenant. NULL: out of memory.
struct sl_tenant_bytes *sl_tenant_bytes_add(struct sl_tenant_table *tenants, uint64_t id, size_t bytes);
// Counts it no more; frees the tenant with its last capsule.
void sl_tenant_bytes_remove(struct sl_tenant_table *tenants, struct sl_tenant_bytes *tenant, size_t bytes);
