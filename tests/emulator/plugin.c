// SPDX-License-Identifier: Apache-2.0
// Purpose: the exports of libsluice_emulated.so (engine/tensor/plugin.h): a GPU that the CPU emulates, for --device
//          emulated, and for benches that count the memory of a device.
#include "engine/tensor/plugin.h"

#include <stdio.h>

#include "engine/tensor/cuda/table/ops.h"
#include "tests/emulator/driver.h"
#include "tests/emulator/emulator.h"

static const struct sl_ops *fill(const struct sl_ops *host) {
    return sl_gpu_ops(&sl_gpu_emulator, host);
}

static enum sl_status open_device(int index, struct sl_team *team, struct sl_device **device_out,
                                  struct sl_error *err) {
    return sl_gpu_device_open(&sl_gpu_emulator, index, team, device_out, err);
}

static void describe(int index, char *text, size_t bytes) {
    snprintf(text, bytes, "emulated device %d", index);
}

static const struct sl_plugin_counts counts = {
    .only = sl_gpu_emulator_only_counts,
    .bytes = sl_gpu_emulator_bytes,
    .most_bytes = sl_gpu_emulator_most_bytes,
};

static const struct sl_plugin plugin = {
    .abi = SL_PLUGIN_ABI,
    .name = "emulated",
    .ops = fill,
    .open = open_device,
    .describe = describe,
    .counts = &counts,
};

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void sl_emulated_stall_at(int device, uint64_t n) {
    sl_emu_stall_at(device, n);
}

const struct sl_plugin *sl_plugin_get(void);

EXPORTED const struct sl_plugin *sl_plugin_get(void) {
    return &plugin;
}
