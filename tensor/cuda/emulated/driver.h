// SPDX-License-Identifier: Apache-2.0
// Purpose: the emulator as a driver (tensor/cuda/table/driver.h).
#pragma once

#include "tensor/cuda/table/driver.h"

extern const struct gpu_driver sl_gpu_emulator;
