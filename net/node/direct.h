// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: device memory from which capsules leave, or in which they arrive, without staging (GPUDirect): a region of
 *          the fabric, as large as staging memory. If it cannot be used, everything is staged; the log says once which,
 *          and why.
 */
#pragma once

#include <stdbool.h>

#include "base/arena.h"
#include "net/fabric/fabric.h"
#include "net/node/staged.h"
#include "engine/runtime/runtime.h"

struct sl_direct {
    struct sl_device *device;
    char *block; // [bytes] of the device
    char *seen;  // its address for the network
    size_t bytes;
    struct sl_arena *arena; // of the block; NULL: everything is staged
};

// Opens the block. Takes nothing when a requirement is missing, the device has no room, UCX cannot register the block,
// or arriving data could not be flushed. arrives: capsules arrive there, else they leave from there.
void sl_direct_open(struct sl_direct *direct, struct sl_fabric *fabric, struct sl_device *device, size_t bytes,
                    bool arrives, const struct sl_direct_means *means);
void sl_direct_close(struct sl_direct *direct); // after the fabric is destroyed, before the device is closed. Accepts
                                                // zeros

static inline bool sl_direct_has(const struct sl_direct *direct, const void *at) {
    return direct->block != NULL && (const char *)at >= direct->block &&
           (size_t)((const char *)at - direct->block) < direct->bytes;
}
