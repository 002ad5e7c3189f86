// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: numbers for objects that messages name: the lowest free one is used, so that the table is no larger than the
 *          most objects at one time.
 */
#include <stdlib.h>
#include <string.h>

#include "net/fabric/core/core.h"
#include "base/locked.h"

void sl_slots_init(struct sl_slots *slots) {
    pthread_mutex_init(&slots->lock, NULL);
}

void sl_slots_cleanup(struct sl_slots *slots) {
    pthread_mutex_destroy(&slots->lock);
    free(slots->at);
}

static bool grow(struct sl_slots *slots) {
    uint32_t n = slots->n ? 2 * slots->n : 64;
    void **grown = n > slots->n ? realloc(slots->at, n * sizeof *grown) : NULL;
    if (!grown) {
        return false;
    }
    memset(grown + slots->n, 0, (n - slots->n) * sizeof *grown);
    slots->at = grown;
    slots->n = n;
    return true;
}

bool sl_slots_take(struct sl_slots *slots, void *item, uint32_t *id_out) {
    SL_LOCKED(&slots->lock);
    uint32_t id = slots->first_free; // no lower one is free
    while (id < slots->n && slots->at[id]) {
        id++;
    }
    bool taken = id < slots->n || grow(slots);
    if (taken) {
        slots->at[id] = item;
        slots->first_free = id + 1;
        *id_out = id;
    }
    return taken;
}

void sl_slots_give(struct sl_slots *slots, uint32_t id) {
    SL_LOCKED(&slots->lock);
    slots->at[id] = NULL;
    slots->first_free = id < slots->first_free ? id : slots->first_free;
}

void *sl_slots_find(struct sl_slots *slots, uint32_t id) {
    SL_LOCKED(&slots->lock);
    return id < slots->n ? slots->at[id] : NULL;
}

void *sl_slots_next(struct sl_slots *slots, uint32_t *id_inout) {
    void *item = NULL;
    SL_LOCKED(&slots->lock);
    while (!item && *id_inout < slots->n) {
        item = slots->at[(*id_inout)++];
    }
    return item;
}
