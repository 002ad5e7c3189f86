// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tells how much memory this process may use: the least that the machine and the process's control groups
 *          allow. A container's memory limit is the limit of such a group.
 */
#pragma once

#include <limits.h>
#include <stdint.h>

#include "base/status.h"

struct sl_memory_limit {
    int64_t bytes;
    char source[PATH_MAX]; // the file that contains the limit
};

// Reads the limit. `root` is put before the paths of /proc and /sys; "" except in tests. SL_ERR_UNSUPPORTED: no file
// has a limit.
enum sl_status sl_memory_limit_read(const char *root, struct sl_memory_limit *limit_out, struct sl_error *err);

// Returns how much memory the machine still has available, from /proc/meminfo. -1: not known.
int64_t sl_memory_available(const char *root);

// Returns the resident memory of this process, including mapped files. -1: not known.
int64_t sl_memory_resident(const char *root);
