// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory of the device that capsules leave from, or arrive in, straight (GPUDirect): a region of the fabric, as large as staging
 *          memory. Or there is none, and everything is staged; the log says which, and why, once.
 */
#pragma once

#include <stdbool.h>

#include "base/arena.h"
#include "fabric/fabric.h"
#include "node/staged.h"
#include "runtime/runtime.h"

struct sl_direct {
    struct sl_device *device;
    char *block; // [bytes] of the device
    char *seen;  // where the network finds it
    size_t bytes;
    struct sl_arena *arena; // of the block; NULL: all is staged
};

// Where something is missing, or the device has no room, or UCX cannot register it, or what arrives could not be flushed, nothing is
// taken. arrives: capsules arrive there, else they leave from there.
void sl_direct_open(struct sl_direct *direct, struct sl_fabric *fabric, struct sl_device *device, size_t bytes,
                    bool arrives, const struct sl_direct_means *means);
void sl_direct_close(struct sl_direct *direct); // behind the fabric, before the device. Accepts zeros

static inline bool sl_direct_has(const struct sl_direct *direct, const void *at) {
    return direct->block != NULL && (const char *)at >= direct->block &&
           (size_t)((const char *)at - direct->block) < direct->bytes;
}
