// SPDX-License-Identifier: Apache-2.0
// Memory that capsules leave from. See outgoing.h.
#include "node/outgoing.h"

#include <stdint.h>

#include "base/log.h"

static enum sl_status take(struct sl_outgoing *outgoing, struct sl_fabric *fabric, size_t bytes, struct sl_error *err) {
    struct sl_device *device = outgoing->device;
    size_t taken_bytes = bytes + SL_ARENA_UNIT; // a device aligns to less
    // Half as much has to be left: scratch comes from there, too, and a job that finds none fails.
    bool has_room = sl_device_room(device) / 3 >= taken_bytes / 2;
    void *block = has_room ? sl_device_alloc(device, SL_MEMORY_DEVICE, taken_bytes) : NULL;
    if (block == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED,
                       "the device has no room for %zu bytes on their way (--staging) and half as much scratch", bytes);
    }
    void *seen = sl_device_network_view(device, block);
    enum sl_status status = sl_fabric_region_add(fabric, block, taken_bytes, seen, err);
    if (status != SL_OK) {
        sl_device_free(device, SL_MEMORY_DEVICE, block);
        return status;
    }
    outgoing->block = block; // the fabric's until it ends
    size_t skip = (SL_ARENA_UNIT - (uintptr_t)block % SL_ARENA_UNIT) % SL_ARENA_UNIT;
    return sl_arena_create((char *)block + skip, bytes, &outgoing->arena, err);
}

void sl_outgoing_open(struct sl_outgoing *outgoing, struct sl_fabric *fabric, struct sl_device *device, size_t bytes,
                      const struct sl_direct_means *means) {
    const char *reason = sl_staged_reason(means);
    struct sl_error err = {0};
    *outgoing = (struct sl_outgoing){.device = device};
    bytes = bytes / SL_ARENA_UNIT * SL_ARENA_UNIT;
    if (reason == NULL && take(outgoing, fabric, bytes, &err) != SL_OK) {
        reason = err.text;
    }
    if (reason == NULL) {
        sl_log_info("node", "straight room=%zu: capsules leave from the device's memory", bytes);
    } else {
        sl_log_info("node", "staged reason=\"%s\"", reason);
    }
}

void sl_outgoing_close(struct sl_outgoing *outgoing) {
    sl_arena_destroy(&outgoing->arena);
    if (outgoing->block != NULL) {
        sl_device_free(outgoing->device, SL_MEMORY_DEVICE, outgoing->block);
    }
    *outgoing = (struct sl_outgoing){0};
}
