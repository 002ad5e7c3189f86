// SPDX-License-Identifier: Apache-2.0
// Purpose: two emulated devices that are ranks, under the checks of one. See device_under_test.h.
#include "tests/kernels/cuda/device_under_test.h"

#include "tests/emulator/emulator.h"
#include "tests/emulator/driver.h"
#include "engine/tensor/cuda/table/ops.h"
#include "engine/tensor/ranks/ranks.h"

#define N_RANKS 2

const char *const device_under_test = "emulated";

enum sl_status device_under_test_open(const struct sl_ops *host, struct sl_device **device_out,
                                      const struct sl_ops **ops_out, struct sl_error *err) {
    struct sl_ranks_config config = {.n = N_RANKS, .ops = sl_gpu_ops(&sl_gpu_emulator, host)};
    enum sl_status status = SL_OK;
    for (int r = 0; r < N_RANKS && status == SL_OK; r++) {
        status = sl_gpu_device_open(&sl_gpu_emulator, r, NULL, &config.devices[r], err);
    }
    return status == SL_OK ? sl_ranks_open(&config, device_out, ops_out, err) : status;
}

void device_under_test_order(unsigned order) {
    sl_emu_set_order(order);
}

size_t device_under_test_used(void) {
    size_t used = 0;
    for (int r = 0; r < N_RANKS; r++) {
        sl_emu_use(r);
        used += sl_emu_used();
    }
    return used;
}
