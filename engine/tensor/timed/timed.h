// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a tier that computes nothing and takes the time that a named accelerator would take: so many workers, with
 *          the real network, stores and coordinator, run on one machine.
 *
 *     --tier timed:h100        an H100's time
 *     --tier timed:h100x8      of eight, without what they exchange
 *     --tier timed:h100/10     ten times as long, for a machine that is too slow for so many workers
 *     --tier timed:0.4:12      that of a processor that reaches 0.4 TFLOP/s and 12 GB/s
 *
 * Design: each operation costs max(bytes / bandwidth, operations / peak), with the vendor's bandwidth and dense bf16 peak
 *         times a stated efficiency (the table in timed.c). Costs add up to a time at which the accelerator would be done;
 *         the calling thread sleeps until then. The host's own work overlaps with it, as it does with a real device.
 *         Activations and new slots stay unwritten. Every answer is the same token. Pages that are shipped have their
 *         real size. Evicting recipes keep as many slots as they should, chosen by scores that mean nothing.
 *         Only hollow models (`sluice bench hollow`) run on it, and no other tier runs those: so its answers are never taken
 *         for a model's.
 */
#pragma once

#include "engine/tensor/ops.h"

#define SL_TIMED_PREFIX "timed:"

// Returns true for the names of such tiers.
bool sl_timed_is_named(const char *tier);

// Makes the table of a tier, "timed:NAMExN/SLOWER" (xN and /SLOWER may be absent, NAME may be TFLOPS:GBPS), from the table `base`, which
// keeps what has no cost of its own. There is one in a process: the last call decides. SL_ERR_INVALID: no such accelerator, or no
// factors from 1 to 1000.
enum sl_status sl_timed_ops(const char *tier, const struct sl_ops *base, const struct sl_ops **ops_out,
                            struct sl_error *err);

// Returns the names of the accelerators, "a100, h100, ...".
const char *sl_timed_names(void);

// Lets this thread count times instead of taking them, from 0 on.
void sl_timed_count(void);
// Returns the nanoseconds that this thread has counted; if it does not count, those of the clock.
int64_t sl_timed_now_ns(void);
