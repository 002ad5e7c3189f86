// SPDX-License-Identifier: Apache-2.0
// Purpose: tells which gRPC this process runs with, for `sluice doctor`.
#pragma once

// Returns the version of gRPC's core. A static text; gRPC need not be started.
const char *sl_rpc_library_version(void);
