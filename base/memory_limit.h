// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how much memory this process may use at most: the least that the control groups it is in and the machine allow.
 *          A container's memory limit is such a group's.
 */
#pragma once

#include <limits.h>
#include <stdint.h>

#include "base/status.h"

struct sl_memory_limit {
    int64_t bytes;
    char source[PATH_MAX]; // the file that says so
};

// `root` is put before the paths of /proc and /sys: "", but in tests. SL_ERR_UNSUPPORTED: neither of them says anything.
enum sl_status sl_memory_limit_read(const char *root, struct sl_memory_limit *limit_out, struct sl_error *err);

// What the machine can still give, by /proc/meminfo. -1: not known.
int64_t sl_memory_available(const char *root);

// Memory that this process has by now, with files that are mapped. -1: not known.
int64_t sl_memory_resident(const char *root);
