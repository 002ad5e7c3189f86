// SPDX-License-Identifier: Apache-2.0
// Purpose: see under_test.h.
#include "tests/kernels/cuda/under_test.h"

#include "tests/emulator/emulator.h"
#include "tests/emulator/driver.h"

const struct gpu_driver *const sl_under_test = &sl_gpu_emulator;

void *sl_under_test_alloc(size_t bytes) {
    return sl_emu_alloc(bytes); // NaN by itself
}

void sl_under_test_free(void *block) {
    sl_emu_free(block);
}

size_t sl_under_test_used(void) {
    return sl_emu_used();
}

void sl_under_test_order(unsigned order) {
    sl_emu_set_order(order);
}

bool sl_under_test_has_wgmma(void) {
    return true;
}
