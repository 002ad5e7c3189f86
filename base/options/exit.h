// SPDX-License-Identifier: Apache-2.0
// Purpose: the exit codes of all programs, one table. docs/OPERATIONS.md and `sluice --help` show it.
#pragma once

#include "base/status.h"

enum sl_exit {
    SL_EXIT_OK = 0,
    SL_EXIT_FAILED = 1,      // the operation was tried and failed, or its subject does not exist
    SL_EXIT_USAGE = 2,       // invalid options, values, or files that they name: nothing was done
    SL_EXIT_UNAVAILABLE = 3, // no coordinator, no worker, no memory, or the cluster is full: a retry may succeed
    SL_EXIT_CANCELLED = 4,   // cancelled by a signal (Ctrl-C), or by `sluice cancel`
    SL_EXIT_DEADLINE = 5,
};

#define SL_EXIT_CODES_HELP                                                                                             \
    "Exit codes: 0 done, 1 it failed, 2 wrong usage or no such file, 3 cluster unavailable or full, 4 cancelled or "   \
    "interrupted, 5 deadline."

enum sl_exit sl_exit_of(enum sl_status status);
