// SPDX-License-Identifier: Apache-2.0
// Purpose: CUDA's runtime as a driver (engine/tensor/cuda/table/driver.h).
#pragma once

#include "engine/tensor/cuda/table/driver.h"

extern const struct gpu_driver sl_gpu_cudart;

// Writes a text for people about an open device: its name, compute capability, memory, driver.
void sl_cudart_describe(int index, char *text, size_t bytes);

bool sl_cudart_has_several(void); // several devices are open
bool sl_cudart_has_wgmma(void);   // the thread's device has it: 9.0, neither older nor newer
