// SPDX-License-Identifier: Apache-2.0
// Purpose: a runtime of CUDA for tests of the plugin's driver: the host's memory, nothing to compute, and what a test makes of it.
#pragma once

#include <stdbool.h>

extern struct fake_cudart {
    int driver;       // what the driver is for: 13000; one for an older major version has no devices
    bool hangs;       // no event is reached
    int n_freed_null; // calls that CUDA says are invalid
} fake_cudart;
