// SPDX-License-Identifier: Apache-2.0
// Purpose: the GPU that the checks of kernels run on: under_emulator.c or under_cuda.c, whichever is linked beside the kernels.
#pragma once

#include "engine/tensor/cuda/table/driver.h"

extern const struct gpu_driver *const sl_under_test;

void *sl_under_test_alloc(size_t bytes); // memory of the device, full of NaN
void sl_under_test_free(void *block);
size_t sl_under_test_used(void);          // bytes that were not freed
void sl_under_test_order(unsigned order); // of threads and blocks, where it can be chosen
bool sl_under_test_has_wgmma(void);
