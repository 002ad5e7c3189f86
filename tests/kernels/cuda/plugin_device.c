// SPDX-License-Identifier: Apache-2.0
// Purpose: see device_under_test.h: device 0 of libsluice_cuda.so. A real device has an order of its own.
#include "tests/kernels/cuda/device_under_test.h"

#include "engine/runtime/plugin.h"

const char *const device_under_test = "cuda";
static const struct sl_plugin *plugin; // once its device was opened

enum sl_status device_under_test_open(const struct sl_ops *host, struct sl_device **device_out,
                                      const struct sl_ops **ops_out, struct sl_error *err) {
    enum sl_status status = sl_plugin_find("cuda", &plugin, err);
    if (status == SL_OK) {
        *ops_out = plugin->ops(host);
        status = plugin->open(0, NULL, device_out, err);
    }
    return status;
}

void device_under_test_order(unsigned order) {
    (void)order;
}

size_t device_under_test_used(void) {
    return 0;
}

const struct sl_group_ops *device_under_test_group(void) {
    return plugin->group;
}
