// SPDX-License-Identifier: Apache-2.0
// Purpose: the emulator as a driver (engine/tensor/cuda/table/driver.h).
#pragma once

#include "engine/tensor/cuda/table/driver.h"

extern const struct gpu_driver sl_gpu_emulator;

// From here on only counts memory, and does nothing else on the device. Code of the host that needs no result runs as
// always; results from the device are zero. Call it before a device is opened.
void sl_gpu_emulator_only_counts(void);
// Returns the maximum so far of the bytes of device 0's memory in use.
size_t sl_gpu_emulator_most_bytes(void);
size_t sl_gpu_emulator_bytes(void); // the bytes in use now
// sl_emu_stall_at() of libsluice_emulated.so, for a test that links it
void sl_emulated_stall_at(int device, uint64_t n);
