// SPDX-License-Identifier: Apache-2.0
// Purpose: why what travels goes through staging memory, and not straight from and to the device's (GPUDirect).
#pragma once

#include <stdbool.h>

// What going straight needs.
struct sl_direct_means {
    bool ucx_knows_cuda;  // UCX was built so, and finds a driver
    bool has_rdma;        // a transport that reads and writes memory by itself
    bool network_reaches; // the device and its driver let it
};

// The first that is missing. Where nothing is: digests of pieces are the host's to compute, from bytes that it can read.
const char *sl_staged_reason(const struct sl_direct_means *means);
