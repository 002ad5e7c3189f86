// SPDX-License-Identifier: Apache-2.0
// Purpose: tells which UCX this process runs with, for `sluice doctor`.
#pragma once

// Returns the version of UCX. A static text; UCX need not be started.
const char *sl_fabric_library_version(void);
