// SPDX-License-Identifier: Apache-2.0
#include "net/node/direct.h"

#include <stdint.h>

#include "base/log.h"

// Makes the device current on UCX's thread, which queries CUDA about the memory, by reading the view. The address is
// known already.
static void enter(void *arg) {
    struct sl_direct *direct = arg;
    (void)sl_device_network_view(direct->device, direct->block);
}

/*
 * Opens the region where peers put arriving data: the block itself or, where the network sees it as ordinary memory, a
 * region that other processes map. Tries a flush, so that one that does not work is found here.
 */
static enum sl_status open_seen(struct sl_direct *direct, struct sl_fabric *fabric, bool arrives,
                                struct sl_error *err) {
    void *seen = sl_device_network_view(direct->device, direct->block);
    enum sl_status status =
        arrives && seen != direct->block ? sl_fabric_region_create(fabric, direct->bytes, 0, &seen, err) : SL_OK;
    if (arrives && status == SL_OK) {
        status = sl_device_network_flush(direct->device, direct->block, seen, SL_ARENA_UNIT, err);
    }
    direct->seen = seen;
    return status;
}

static enum sl_status take(struct sl_direct *direct, struct sl_fabric *fabric, size_t bytes, bool arrives,
                           struct sl_error *err) {
    struct sl_device *device = direct->device;
    size_t taken_bytes = bytes + SL_ARENA_UNIT; // for alignment: the device guarantees less
    // Half as much must stay free: scratch is allocated there too, and a job that gets none fails.
    bool has_room = sl_device_room(device) / 3 >= taken_bytes / 2;
    direct->block = has_room ? sl_device_alloc(device, SL_MEMORY_DEVICE, taken_bytes) : NULL;
    direct->bytes = taken_bytes;
    SL_FAIL_IF(direct->block == NULL, err, SL_ERR_EXHAUSTED,
               "the device has no room for %zu bytes on their way (--staging) and half as much scratch", bytes);
    enum sl_status status = open_seen(direct, fabric, arrives, err);
    if (status == SL_OK) {
        const struct sl_device_region region = {.base = direct->block,
                                                .bytes = taken_bytes,
                                                .seen = direct->seen,
                                                .arrives = arrives,
                                                .enter = enter,
                                                .arg = direct};
        status = sl_fabric_region_add(fabric, &region, err);
    }
    if (status != SL_OK) {
        sl_device_free(device, SL_MEMORY_DEVICE, direct->block);
        direct->block = NULL;
        return status;
    } // else the fabric owns it until the fabric ends
    size_t skip = (SL_ARENA_UNIT - (uintptr_t)direct->block % SL_ARENA_UNIT) % SL_ARENA_UNIT;
    return sl_arena_create(direct->block + skip, bytes, &direct->arena, err);
}

void sl_direct_open(struct sl_direct *direct, struct sl_fabric *fabric, struct sl_device *device, size_t bytes,
                    bool arrives, const struct sl_direct_means *means) {
    char text[128];
    const char *reason = sl_staged_reason(means, text, sizeof text);
    struct sl_error err = {0};
    *direct = (struct sl_direct){.device = device};
    bytes = bytes / SL_ARENA_UNIT * SL_ARENA_UNIT;
    if (reason == NULL && take(direct, fabric, bytes, arrives, &err) != SL_OK) {
        reason = err.text;
    }
    if (reason == NULL) {
        sl_log_info("node", "straight room=%zu: capsules %s the device's memory", bytes,
                    arrives ? "arrive in" : "leave from");
    } else {
        sl_log_info("node", "staged reason=\"%s\"", reason);
    }
}

void sl_direct_close(struct sl_direct *direct) {
    sl_arena_destroy(&direct->arena);
    if (direct->block != NULL) {
        sl_device_free(direct->device, SL_MEMORY_DEVICE, direct->block);
    }
    *direct = (struct sl_direct){0};
}
