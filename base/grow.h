// SPDX-License-Identifier: Apache-2.0
// Purpose: arrays that grow by doubling.
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Makes room for one more item in `items`, which has n of *allocated. False: no memory is left, and nothing has changed.
#define SL_GROW(items, n, allocated) sl_grow(&(items), n, &(allocated), sizeof *(items))

static inline bool sl_grow(void *items_inout, size_t n, size_t *allocated_inout, size_t item_bytes) {
    if (n < *allocated_inout) {
        return true;
    }
    size_t allocated = *allocated_inout > 0 ? 2 * *allocated_inout : 16;
    void *items;
    memcpy(&items, items_inout, sizeof items); // a pointer of any type
    items = realloc(items, allocated * item_bytes);
    if (items) {
        memcpy(items_inout, &items, sizeof items);
        *allocated_inout = allocated;
    }
    return items != NULL;
}
