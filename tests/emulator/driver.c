// SPDX-License-Identifier: Apache-2.0
// Purpose: the emulator as a driver. Shared memory is the host's own: emulated kernels reach all of it.
#include "tests/emulator/driver.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/emulator/emulator.h"

// For tests of a worker's failures. FAULT: the number of the kernel that fails, counted over all devices, or as "40@1"
// over device 1's. STALL: the number of the kernel of device 1 that never ends (of device 0 as "40@0"). SMALL: the
// device that has little memory. MEMORY: the bytes of every device. PINNED: the bytes that may be pinned at a time, as
// by ulimit -l.
#define FAULT      "SLUICE_EMULATED_FAULT"
#define STALL      "SLUICE_EMULATED_STALL"
#define SMALL      "SLUICE_EMULATED_SMALL"
#define SMALL_ROOM ((size_t)5 << 20)
#define MEMORY     "SLUICE_EMULATED_MEMORY"
#define PINNED     "SLUICE_EMULATED_PINNED"
#define NETWORK    "SLUICE_EMULATED_NETWORK" // 1: a network reaches the devices' memory, at addresses of its own

static size_t limit(const char *name, size_t otherwise) {
    const char *bytes = getenv(name);
    return bytes != NULL ? strtoull(bytes, NULL, 10) : otherwise;
}

static bool network_reaches(void) {
    const char *reached = getenv(NETWORK);
    return reached != NULL && strcmp(reached, "1") == 0; // otherwise only kernels reach it
}

// Copies what the network wrote to the block. Without this call kernels compute on the old contents.
static enum sl_status network_flush(void *block, const void *seen, size_t bytes, struct sl_error *err) {
    char *view = sl_emu_network_view(block);
    if (view == NULL) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "no network reaches the emulated device's memory");
    }
    memcpy(view, seen, bytes);
    return SL_OK;
}

static enum sl_status open_device(int index, struct sl_error *err) {
    const char *fault = getenv(FAULT);
    if (fault != NULL) {
        const char *of = strchr(fault, '@');
        sl_emu_fail_at(of != NULL ? (int)strtol(of + 1, NULL, 10) : -1, strtoull(fault, NULL, 10));
    }
    if (index < 0 || index >= SL_EMU_DEVICES) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "there are emulated devices 0 to %d, not %d", SL_EMU_DEVICES - 1,
                       index);
    }
    sl_emu_use(index);
    if (network_reaches()) {
        sl_emu_open_to_network();
    }
    const char *stall = getenv(STALL), *of_device = stall != NULL ? strchr(stall, '@') : NULL;
    if (stall != NULL && index == (of_device != NULL ? (int)strtol(of_device + 1, NULL, 10) : 1)) {
        sl_emu_stall_at(index, strtoull(stall, NULL, 10));
    }
    if (getenv(MEMORY) != NULL) {
        sl_emu_set_room(limit(MEMORY, 0));
    }
    const char *small = getenv(SMALL);
    if (small != NULL && strtol(small, NULL, 10) == index) {
        sl_emu_set_room(SMALL_ROOM);
    }
    return SL_OK;
}

// Returns the free bytes of a device. It is small, because all of it is written at once, but enough for a test's text.
static size_t room(void) {
    size_t most = limit(MEMORY, (size_t)64 << 20), used = sl_emu_used();
    return used < most ? most - used : 0;
}

static void *alloc_shared(size_t bytes) {
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (block != NULL && sl_emu_is_dry()) {
        memset(block, 0, bytes); // instead of what kernels would write
    }
    return block;
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

static enum sl_status queue_look(struct gpu_queue *queue, struct sl_error *err) {
    (void)queue; // a failure fails all queues
    const char *kernel = sl_emu_failed();
    return kernel == NULL ? SL_OK
                          : sl_fail(err, SL_ERR_INTERNAL, "the emulated kernel %s of device %d was made to fail",
                                    kernel, sl_emu_failed_device());
}

static enum sl_status event_wait(struct gpu_event *event, struct sl_error *err) {
    while (!sl_emu_event_wait(event)) { // a kernel with an error ends the process and names the source line
        sl_sleep_ms(10);
    }
    return queue_look(NULL, err);
}

static bool event_wait_until(struct gpu_event *event, int64_t until_ns) {
    bool reached = sl_emu_event_wait(event);
    while (!reached && sl_now_ns() < until_ns) {
        sl_sleep_ms(5);
        reached = sl_emu_event_wait(event);
    }
    return reached;
}

const struct gpu_driver sl_gpu_emulator = {
    .name = "emulated",
    .ring_bytes = (size_t)4 << 20,
    .open = open_device,
    .use = sl_emu_use,
    .room = room,
    .network_reaches = network_reaches,
    .network_view = sl_emu_network_view,
    .network_flush = network_flush,
    .alloc = sl_emu_alloc,
    .free = sl_emu_free,
    .alloc_shared = alloc_shared,
    .free_shared = free,
    .share = share,
    .unshare = end_sharing,
    .queue_open = sl_emu_queue_open,
    .queue_close = sl_emu_queue_close,
    .queue_look = queue_look,
    .copy = sl_emu_copy,
    .event_open = sl_emu_event_open,
    .event_close = sl_emu_event_close,
    .event_record = sl_emu_event_record,
    .event_before = sl_emu_event_before,
    .event_reached = sl_emu_event_reached,
    .event_wait = event_wait,
    .event_wait_until = event_wait_until,
    .progress = sl_emu_n_done,
};

void sl_gpu_emulator_only_counts(void) {
    sl_emu_set_dry();
}

size_t sl_gpu_emulator_most_bytes(void) {
    sl_emu_use(0);
    return sl_emu_most_used();
}

size_t sl_gpu_emulator_bytes(void) {
    sl_emu_use(0);
    return sl_emu_used();
}
