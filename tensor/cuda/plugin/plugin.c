// SPDX-License-Identifier: Apache-2.0
// Purpose: what libsluice_cuda.so exports (tensor/plugin.h): the table and the device over CUDA's runtime.
#include "tensor/plugin.h"

#include "tensor/cuda/plugin/cudart_driver.h"
#include "tensor/cuda/table/ops.h"

static const struct sl_ops *fill(const struct sl_ops *host) {
    return sl_gpu_ops(&sl_gpu_cudart, host);
}

static enum sl_status open_device(int index, struct sl_team *team, struct sl_device **device_out,
                                  struct sl_error *err) {
    return sl_gpu_device_open(&sl_gpu_cudart, index, team, device_out, err);
}

static const struct sl_plugin plugin = {
    .abi = SL_PLUGIN_ABI,
    .name = "cuda",
    .ops = fill,
    .open = open_device,
    .describe = sl_cudart_describe,
};

const struct sl_plugin *sl_plugin_get(void);

__attribute__((visibility("default"))) const struct sl_plugin *sl_plugin_get(void) {
    return &plugin;
}
