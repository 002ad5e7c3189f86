// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory of the device that capsules leave from straight (GPUDirect): a region of the fabric, as large as staging memory. Or
 *          there is none, and everything is staged; the log says which, and why, once.
 */
#pragma once

#include "base/arena.h"
#include "fabric/fabric.h"
#include "node/staged.h"
#include "runtime/runtime.h"

struct sl_outgoing {
    struct sl_device *device;
    void *block;
    struct sl_arena *arena; // of the block; NULL: all is staged
};

// Where something is missing, or the device has no room, or UCX cannot register it, nothing is taken.
void sl_outgoing_open(struct sl_outgoing *outgoing, struct sl_fabric *fabric, struct sl_device *device, size_t bytes,
                      const struct sl_direct_means *means);
void sl_outgoing_close(struct sl_outgoing *outgoing); // behind the fabric, before the device. Accepts zeros
