// SPDX-License-Identifier: Apache-2.0
// Purpose: the emulator as a driver. Shared memory is the host's own: emulated kernels reach all of it.
#include "tensor/cuda/emulated/driver.h"

#include <stdlib.h>

#include "tensor/cuda/emu/emulator.h"

// For tests of what becomes of a worker.
#define FAULT  "SLUICE_EMULATED_FAULT"  // the number of the kernel that goes wrong
#define MEMORY "SLUICE_EMULATED_MEMORY" // bytes of device memory that there are
#define PINNED "SLUICE_EMULATED_PINNED" // bytes that may be pinned at a time, as by ulimit -l

static size_t limit(const char *name, size_t otherwise) {
    const char *bytes = getenv(name);
    return bytes != NULL ? strtoull(bytes, NULL, 10) : otherwise;
}

static enum sl_status open_device(int index, struct sl_error *err) {
    const char *fault = getenv(FAULT);
    if (fault != NULL) {
        sl_emu_fail_at(strtoull(fault, NULL, 10));
    }
    return index == 0 ? SL_OK
                      : sl_fail(err, SL_ERR_UNSUPPORTED, "there is one emulated device, number 0, not %d", index);
}

// Small, because all of it is written at once: enough for a text that a test can wait for.
static size_t room(void) {
    size_t most = limit(MEMORY, (size_t)64 << 20), used = sl_emu_used();
    return used < most ? most - used : 0;
}

static void *alloc(size_t bytes) {
    size_t most = limit(MEMORY, SIZE_MAX), used = sl_emu_used();
    return bytes <= most && used <= most - bytes ? sl_emu_alloc(bytes) : NULL;
}

static bool network_reaches(void) {
    return false; // not even the host
}

static void *alloc_shared(size_t bytes) {
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static enum sl_status share(void *base, size_t bytes, struct sl_error *err) {
    (void)base;
    return bytes <= limit(PINNED, SIZE_MAX)
               ? SL_OK
               : sl_fail(err, SL_ERR_EXHAUSTED, "%zu bytes cannot be pinned for the emulated device; see ulimit -l",
                         bytes);
}

static void end_sharing(void *base) {
    (void)base;
}

static enum sl_status event_wait(struct gpu_event *event, struct sl_error *err) {
    sl_emu_event_wait(event); // what is wrong with a kernel ends the process, with the place
    const char *kernel = sl_emu_failed();
    return kernel == NULL ? SL_OK : sl_fail(err, SL_ERR_INTERNAL, "the emulated kernel %s was made to fail", kernel);
}

const struct gpu_driver sl_gpu_emulator = {
    .name = "emulated",
    .ring_bytes = (size_t)4 << 20,
    .open = open_device,
    .room = room,
    .network_reaches = network_reaches,
    .alloc = alloc,
    .free = sl_emu_free,
    .alloc_shared = alloc_shared,
    .free_shared = free,
    .share = share,
    .unshare = end_sharing,
    .queue_open = sl_emu_queue_open,
    .queue_close = sl_emu_queue_close,
    .copy = sl_emu_copy,
    .event_open = sl_emu_event_open,
    .event_close = sl_emu_event_close,
    .event_record = sl_emu_event_record,
    .event_before = sl_emu_event_before,
    .event_reached = sl_emu_event_reached,
    .event_wait = event_wait,
};
