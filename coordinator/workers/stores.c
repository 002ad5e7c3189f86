// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/stores.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/workers/route.h"

int sl_stores_rank(struct sl_registry *registry, uint64_t key, struct sl_ranked_store *stores_out) {
    struct sl_worker_set *set = malloc(sizeof *set);
    int n = 0, i;
    if (set == NULL) {
        return 0;
    }
    sl_registry_snapshot(registry, SLUICE__V1__WORKER_ROLE__KVSTORE, set);
    while ((i = sl_route_store(set->views, set->n, key)) >= 0) {
        struct sl_ranked_store *store = &stores_out[n++];
        strcpy(store->name, sl_worker_name(set->workers[i]));
        strcpy(store->address, sl_worker_address(set->workers[i]));
        store->arena_bytes = set->views[i].capacity_bytes;
        store->disk_bytes = sl_worker_disk_bytes(set->workers[i]);
        set->views[i].ready = false;
    }
    sl_worker_set_release(set);
    free(set);
    return n;
}

int64_t sl_stores_choose(struct sl_registry *registry, uint64_t key, const char (*names)[64], int n_names,
                         char address_out[SL_ADDRESS_BYTES]) {
    struct sl_ranked_store *ranked = n_names > 0 ? malloc(SL_MAX_WORKERS * sizeof *ranked) : NULL;
    int n = ranked != NULL ? sl_stores_rank(registry, key, ranked) : 0;
    int64_t arena_bytes = 0;
    for (int i = 0; i < n && arena_bytes == 0; i++) {
        for (int j = 0; j < n_names && arena_bytes == 0; j++) {
            if (strcmp(ranked[i].name, names[j]) == 0) {
                strcpy(address_out, ranked[i].address);
                arena_bytes = ranked[i].arena_bytes;
            }
        }
    }
    free(ranked);
    return arena_bytes > 0 ? arena_bytes : sl_registry_store_address(registry, key, address_out);
}
