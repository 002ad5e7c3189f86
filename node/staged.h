// SPDX-License-Identifier: Apache-2.0
// Purpose: why what travels goes through staging memory, and not straight from the device's (GPUDirect).
#pragma once

#include <stdbool.h>
#include <stddef.h>

// What going straight needs.
struct sl_direct_means {
    bool wanted;          // --gpudirect
    bool one_device;      // and not several ranks
    bool network_reaches; // the device and its driver let it
    bool ordinary;        // to the network it is ordinary memory (the emulator's), which needs neither of these:
    bool ucx_is_new;      // 1.16 or newer
    const char *ucx;      // its version, "1.13.1"
    bool ucx_knows_cuda;  // UCX was built so, and finds a driver
    bool has_rdma;        // a transport that reads and writes memory by itself
};

// Returns the first that is missing, which may be written to buf; NULL: nothing is.
const char *sl_staged_reason(const struct sl_direct_means *means, char *buf, size_t buf_bytes);
