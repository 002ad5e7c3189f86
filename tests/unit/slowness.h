// SPDX-License-Identifier: Apache-2.0
// Purpose: the factor of time limits in a sanitized build, as in tests/cluster/harness.py.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWNESS 6
#else
#define SLOWNESS 1
#endif
