// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where the time of a forward pass goes, operation by operation: a table of operations that times the entries
 *          of another one on the way.
 *
 * Design: the forward pass waits for every operation, so the times of the calls add up, and what is missing to the whole
 *         is the forward pass itself: tokens and logits moved, scores sorted by head, and append(), which it calls from
 *         within its own loops.
 * Threads: operations are given no argument of their own, so there is one breakdown a process, for one engine at a time.
 */
#pragma once

#include "engine/tensor/ops.h"

// `ops`, timed. Valid for the life of the process; a second call takes the place of the first.
const struct sl_ops *sl_breakdown_of(const struct sl_ops *ops);

// Forget what was measured so far.
void sl_breakdown_reset(void);

// Since then: every operation's share of `seconds`, which the forward passes took, those of products with their shapes
// and GFLOP/s, below the line of what was measured; in JSON each names it (`label`).
void sl_breakdown_print(const char *label, double seconds, bool json);
