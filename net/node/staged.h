// SPDX-License-Identifier: Apache-2.0
// Purpose: says why data in transit goes through staging memory and not straight from or to the device's (GPUDirect).
#pragma once

#include <stdbool.h>
#include <stddef.h>

// The requirements of the way without staging.
struct sl_direct_means {
    bool wanted;          // --gpudirect
    bool one_device;      // and not several ranks
    bool network_reaches; // the device and its driver allow it
    bool ordinary;        // the network sees ordinary memory (the emulator's), so the following three do not apply:
    bool ucx_is_new;      // 1.16 or newer
    const char *ucx;      // its version, "1.13.1"
    bool ucx_knows_cuda;  // UCX was built with CUDA, and finds a driver
    bool has_rdma;        // a transport with remote memory access
};

// Returns the first missing requirement, which may be written to buf; NULL: none is missing.
const char *sl_staged_reason(const struct sl_direct_means *means, char *buf, size_t buf_bytes);
