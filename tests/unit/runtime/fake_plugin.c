// SPDX-License-Identifier: Apache-2.0
// A plugin that finds no driver; its interface is another one where FAKE_ABI says so.
#include "engine/tensor/plugin.h"

#ifndef FAKE_ABI
#define FAKE_ABI SL_PLUGIN_ABI
#endif

// The program's symbols are not exported to a plugin.
static enum sl_status find_no_driver(int index, struct sl_team *team, struct sl_device **device_out,
                                     struct sl_error *err) {
    (void)index;
    (void)team;
    (void)device_out;
    *err = (struct sl_error){.status = SL_ERR_UNSUPPORTED,
                             .text = "no NVIDIA driver (CUDA says 35); nvidia-smi must work"};
    return SL_ERR_UNSUPPORTED;
}

static const struct sl_ops *host_ops(const struct sl_ops *host) {
    return host;
}

const struct sl_plugin *sl_plugin_get(void);

__attribute__((visibility("default"))) const struct sl_plugin *sl_plugin_get(void) {
    static const struct sl_plugin plugin = {FAKE_ABI, "cuda", host_ops, find_no_driver, NULL, NULL, NULL};
    return &plugin;
}
