// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tells how many processors this process may use, and which of them the members of a team should run on.
 *
 * Design: reads the kernel's description from /proc and /sys, without a library. `root` is put before those paths: ""
 *         on a real machine, a folder with copies of such files in a test.
 */
#pragma once

#include <sched.h>

#include "base/status.h"

// Returns the number of processors in the affinity mask, or fewer if the quota of a control group (version 2) is
// smaller. At least 1.
int sl_processors_count(void);

// Returns the quota in whole processors, rounded up: the smallest cpu.max from the process's group up to the root. 0:
// none.
int sl_processors_quota(const char *root);

// Returns the NUMA node that has all the processors on which the calling thread may run; -1: there are several.
int sl_processors_node(const char *root);
int sl_processors_node_of(const char *root, const cpu_set_t *allowed); // the same for any processors

/*
 * Chooses n processors among those that are allowed and online. A core's first hardware thread comes before any core's
 * second one, and a NUMA node is filled before the next. processors_out: [n], ordered by node, then by core, so that
 * contiguous shares of memory belong to one node. SL_ERR_RANGE: fewer than n are allowed and online.
 */
enum sl_status sl_processors_place(const char *root, const cpu_set_t *allowed, int n, int *processors_out,
                                   struct sl_error *err);
