// SPDX-License-Identifier: Apache-2.0
// Purpose: see device_under_test.h.
#include "tests/kernels/cuda/device_under_test.h"

#include "tests/emulator/emulator.h"
#include "tests/emulator/driver.h"
#include "engine/tensor/cuda/table/ops.h"

const char *const device_under_test = "emulated";

enum sl_status device_under_test_open(const struct sl_ops *host, struct sl_device **device_out,
                                      const struct sl_ops **ops_out, struct sl_error *err) {
    *ops_out = sl_gpu_ops(&sl_gpu_emulator, host);
    return sl_gpu_device_open(&sl_gpu_emulator, 0, NULL, device_out, err);
}

void device_under_test_order(unsigned order) {
    sl_emu_set_order(order);
}

size_t device_under_test_used(void) {
    return sl_emu_used();
}
