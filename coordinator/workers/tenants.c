// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/tenants.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define N_BUCKETS 256

struct sl_tenants {
    int share;
    pthread_mutex_t mutex;
    struct sl_tenant *buckets[N_BUCKETS];
};

enum sl_status sl_tenants_create(int share, struct sl_tenants **tenants_out, struct sl_error *err) {
    struct sl_tenants *tenants = calloc(1, sizeof *tenants);
    if (tenants == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for tenants");
    }
    tenants->share = share;
    pthread_mutex_init(&tenants->mutex, NULL);
    *tenants_out = tenants;
    return SL_OK;
}

void sl_tenants_destroy(struct sl_tenants **tenants) {
    if (*tenants != NULL) {
        for (int i = 0; i < N_BUCKETS; i++) {
            assert((*tenants)->buckets[i] == NULL);
        }
        pthread_mutex_destroy(&(*tenants)->mutex);
        free(*tenants);
        *tenants = NULL;
    }
}

// Returns where the entry of this name is, or would be. Lock held.
static struct sl_tenant **find(struct sl_tenants *tenants, const char *name) {
    struct sl_tenant **at = &tenants->buckets[sl_hash(name, strlen(name), 0) % N_BUCKETS];
    while (*at != NULL && strcmp((*at)->name, name) != 0) {
        at = &(*at)->next;
    }
    return at;
}

enum sl_status sl_tenants_take(struct sl_tenants *tenants, const char *name, struct sl_tenant **tenant_out,
                               struct sl_error *err) {
    assert(strlen(name) < SL_TENANT_BYTES);
    pthread_mutex_lock(&tenants->mutex);
    struct sl_tenant **at = find(tenants, name);
    if (*at == NULL) {
        *at = calloc(1, sizeof **at);
        if (*at != NULL) {
            (*at)->tenants = tenants;
            strcpy((*at)->name, name);
        }
    }
    struct sl_tenant *tenant = *at;
    if (tenant != NULL) {
        tenant->refs++;
    }
    pthread_mutex_unlock(&tenants->mutex);
    if (tenant == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a tenant");
    }
    *tenant_out = tenant;
    return SL_OK;
}

void sl_tenant_give(struct sl_tenant **tenant) {
    if (*tenant == NULL) {
        return;
    }
    struct sl_tenants *tenants = (*tenant)->tenants;
    pthread_mutex_lock(&tenants->mutex);
    if (--(*tenant)->refs == 0) {
        struct sl_tenant **at = find(tenants, (*tenant)->name);
        *at = (*tenant)->next;
        free(*tenant);
    }
    pthread_mutex_unlock(&tenants->mutex);
    *tenant = NULL;
}

int64_t sl_tenant_share(const struct sl_tenant *tenant, int64_t whole) {
    if (tenant == NULL || tenant->name[0] == '\0') {
        return whole;
    }
    int64_t percent = tenant->tenants->share;
    int64_t share = whole / 100 * percent + whole % 100 * percent / 100; // which does not overflow
    return share > 1 ? share : 1;
}
