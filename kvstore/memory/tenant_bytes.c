// SPDX-License-Identifier: Apache-2.0
#include "kvstore/memory/tenant_bytes.h"

#include <stdlib.h>

struct sl_tenant_bytes *sl_tenant_bytes_add(struct sl_tenant_table *tenants, uint64_t id, size_t bytes) {
    struct sl_tenant_bytes *tenant = tenants->first;
    while (tenant && tenant->id != id) {
        tenant = tenant->next;
    }
    if (!tenant) {
        tenant = calloc(1, sizeof *tenant);
        if (!tenant) {
            return NULL;
        }
        tenant->id = id;
        tenant->next = tenants->first;
        tenants->first = tenant;
        tenants->n++;
    }
    tenant->n_capsules++;
    tenant->bytes += bytes;
    return tenant;
}

void sl_tenant_bytes_remove(struct sl_tenant_table *tenants, struct sl_tenant_bytes *tenant, size_t bytes) {
    tenant->bytes -= bytes;
    if (--tenant->n_capsules > 0) {
        return;
    }
    struct sl_tenant_bytes **at = &tenants->first;
    while (*at != tenant) {
        at = &(*at)->next;
    }
    *at = tenant->next;
    tenants->n--;
    free(tenant);
}
