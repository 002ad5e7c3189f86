// SPDX-License-Identifier: Apache-2.0
// Purpose: finds the region of ours that contains given memory.
#include "net/fabric/core/core.h"
#include "base/locked.h"

// Regions stay on the list until the fabric stops, so the result may be used without the lock.
struct sl_region *sl_fabric_region(struct sl_fabric *fabric, const void *data, size_t bytes) {
    SL_LOCKED(&fabric->lock);
    struct sl_region *region = fabric->regions;
    while (region && !((const uint8_t *)data >= region->base && bytes <= region->bytes &&
                       (size_t)((const uint8_t *)data - region->base) <= region->bytes - bytes)) {
        region = region->next;
    }
    return region;
}
