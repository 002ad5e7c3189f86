// SPDX-License-Identifier: Apache-2.0
// Purpose: the emulator as a driver (engine/tensor/cuda/table/driver.h).
#pragma once

#include "engine/tensor/cuda/table/driver.h"

extern const struct gpu_driver sl_gpu_emulator;

// From here on memory is counted and nothing else done: what a host does that asks for no result is done as ever. Before a device
// is opened. What comes from the device is zero.
void sl_gpu_emulator_only_counts(void);
// Bytes of device 0's memory, the most there ever were.
size_t sl_gpu_emulator_most_bytes(void);
size_t sl_gpu_emulator_bytes(void); // now
