// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: time of a forward pass by operation: a table of operations that wraps and times the entries of another
 *          one.
 *
 * Design: the forward pass waits for every operation, so the times of the calls add up. The remainder is the forward
 *         pass itself: it moves tokens and logits, sorts scores by head, and calls append() within its own loops.
 * Threads: operations have no argument for the breakdown, so there is one per process, for one engine at a time.
 */
#pragma once

#include "engine/tensor/ops.h"

// Returns `ops` with timing. Valid for the life of the process; a second call replaces the first.
const struct sl_ops *sl_breakdown_of(const struct sl_ops *ops);

// Discards all measurements so far.
void sl_breakdown_reset(void);

// Prints every operation's share of `seconds`, the time of the forward passes since the reset; for products also
// their shapes and GFLOP/s. The lines follow the measured result; in JSON each has its name (`label`).
void sl_breakdown_print(const char *label, double seconds, bool json);
