// SPDX-License-Identifier: Apache-2.0
// Purpose: how many times longer a sanitized build may take for what has to happen in time, as in tests/cluster/harness.py.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWNESS 6
#else
#define SLOWNESS 1
#endif
