// SPDX-License-Identifier: Apache-2.0
// Purpose: products by wgmma (dense/wgmma.cu) with the interface of a library (driver.h), so that they are tried like
// one before they are used.
#pragma once

#include "engine/tensor/cuda/table/driver.h"

extern const struct gpu_library sl_gpu_wgmma; // on a device that has it
