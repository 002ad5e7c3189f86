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
    bool ucx_knows_cuda;  // UCX was built so, finds a driver, and is new enough
    bool has_rdma;        // a transport that reads and writes memory by itself
};

// The first that is missing; NULL: nothing is.
const char *sl_staged_reason(const struct sl_direct_means *means);
