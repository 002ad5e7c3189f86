// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/tenants.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/locked.h"
#include "base/processors.h"

#define N_BUCKETS  256
#define PRESENT_NS SL_NS_PER_S // how long places are left to a tenant that has asked

struct sl_tenants {
    int share, n_sending; // of each tenant at most
    pthread_mutex_t mutex;
    struct sl_hash_table by_name;
};

enum sl_status sl_tenants_create(int share, struct sl_tenants **tenants_out, struct sl_error *err) {
    struct sl_tenants *tenants = calloc(1, sizeof *tenants);
    if (tenants == NULL || !sl_hash_table_init(&tenants->by_name, N_BUCKETS)) {
        free(tenants);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for tenants");
    }
    tenants->share = share;
    tenants->n_sending = (sl_processors_count() + 1) / 2;
    pthread_mutex_init(&tenants->mutex, NULL);
    *tenants_out = tenants;
    return SL_OK;
}

void sl_tenants_destroy(struct sl_tenants **tenants_inout) {
    SL_TAKE_OR_RETURN(tenants, tenants_inout);
    for (int i = 0; i < N_BUCKETS; i++) {
        assert(tenants->by_name.buckets[i] == NULL);
    }
    sl_hash_table_cleanup(&tenants->by_name);
    pthread_mutex_destroy(&tenants->mutex);
    free(tenants);
}

struct key {
    const char *name;
    uint64_t caller;
};

static bool has_key(const struct sl_hash_link *link, const void *wanted) {
    const struct sl_tenant *tenant = SL_HASH_ENTRY(link, struct sl_tenant, by_name);
    const struct key *key = wanted;
    return tenant->caller == key->caller && strcmp(tenant->name, key->name) == 0;
}

// Returns where the entry of this key is, or would be. Lock held.
static struct sl_hash_link **find(struct sl_tenants *tenants, struct key key) {
    return sl_hash_table_find(&tenants->by_name, sl_hash(key.name, strlen(key.name), key.caller), has_key, &key);
}

enum sl_status sl_tenants_take(struct sl_tenants *tenants, const char *name, struct sl_tenant **tenant_out,
                               struct sl_error *err) {
    return sl_tenants_take_caller(tenants, name, 0, tenant_out, err);
}

enum sl_status sl_tenants_take_caller(struct sl_tenants *tenants, const char *name, uint64_t caller,
                                      struct sl_tenant **tenant_out, struct sl_error *err) {
    assert(strlen(name) < SL_TENANT_BYTES);
    const struct key key = {name, name[0] == '\0' ? caller : 0};
    pthread_mutex_lock(&tenants->mutex);
    struct sl_hash_link **at = find(tenants, key);
    struct sl_tenant *tenant = SL_HASH_ENTRY(*at, struct sl_tenant, by_name);
    if (tenant == NULL) {
        tenant = calloc(1, sizeof *tenant);
        if (tenant != NULL) {
            tenant->tenants = tenants;
            strcpy(tenant->name, name);
            tenant->caller = key.caller;
            tenant->hash = sl_hash(name, strlen(name), 1);
            pthread_mutex_init(&tenant->sending, NULL);
            *at = &tenant->by_name;
        }
    }
    if (tenant != NULL) {
        tenant->refs++;
    }
    pthread_mutex_unlock(&tenants->mutex);
    SL_FAIL_IF(tenant == NULL, err, SL_ERR_EXHAUSTED, "no memory for a tenant");
    *tenant_out = tenant;
    return SL_OK;
}

void sl_tenant_give(struct sl_tenant **tenant_inout) {
    SL_TAKE_OR_RETURN(tenant, tenant_inout);
    struct sl_tenants *tenants = tenant->tenants;
    SL_LOCKED(&tenants->mutex);
    if (--tenant->refs == 0) {
        *find(tenants, (struct key){tenant->name, tenant->caller}) = tenant->by_name.next;
        pthread_mutex_destroy(&tenant->sending);
        free(tenant);
    }
}

int64_t sl_tenant_share(const struct sl_tenant *tenant, int64_t whole) {
    if (tenant == NULL || (tenant->name[0] == '\0' && tenant->caller == 0)) {
        return whole;
    }
    int64_t percent = tenant->tenants->share;
    int64_t share = whole / 100 * percent + whole % 100 * percent / 100; // which does not overflow
    return share > 1 ? share : 1;
}

void sl_askers_note(struct sl_askers *askers, const struct sl_tenant *tenant, int64_t now_ns) {
    if (askers->names[0] != tenant->hash) {
        askers->names[1] = askers->names[0];
        askers->asked_ns[1] = askers->asked_ns[0];
        askers->names[0] = tenant->hash;
    }
    askers->asked_ns[0] = now_ns;
}

bool sl_askers_has_other(const struct sl_askers *askers, const struct sl_tenant *tenant, int64_t now_ns) {
    const int64_t other_ns = askers->asked_ns[askers->names[0] == tenant->hash];
    return other_ns != 0 && now_ns - other_ns < PRESENT_NS;
}

bool sl_tenant_begin_sending(struct sl_tenant *tenant, int64_t deadline_ns) {
    const int most = tenant->name[0] != '\0' ? tenant->tenants->n_sending : INT_MAX;
    enum sl_status status = SL_OK;
    SL_LOCKED(&tenant->sending);
    while (tenant->n_sending >= most && status == SL_OK) {
        status = sl_bell_wait(&tenant->sent, &tenant->sending, deadline_ns);
    }
    const bool has_turn = tenant->n_sending < most;
    tenant->n_sending += has_turn;
    return has_turn;
}

void sl_tenant_end_sending(struct sl_tenant *tenant) {
    pthread_mutex_lock(&tenant->sending);
    tenant->n_sending--;
    sl_bell_ring(&tenant->sent, &tenant->sending, 1);
}
