// SPDX-License-Identifier: Apache-2.0
// Purpose: bounds of this machine that no kernel can exceed: arithmetic from registers, and reading memory.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/team.h"
#include "client/cli/tool.h"

/*
 * Returns the GFLOP/s, best of several runs, of the instructions that a tier multiplies with, from registers alone on
 * every member of the team; what_out names them. `bf16`: instructions for products that may round to bf16, if the
 * tier has separate ones. This CPU must support the tier (sl_ops_select()). 0: unknown.
 */
double sl_peak_gflops(struct sl_team *team, const char *tier, bool bf16, const char **what_out);

/*
 * Measures a plain sum over a buffer by every member of the team, GB/s (1e9); best of several runs. The buffer is far
 * larger than most caches: *bytes_out, 2 GiB, or a quarter of the free memory if that is less. SL_ERR_EXHAUSTED: no
 * memory for the buffer. SL_ERR_CANCELLED after one of `signals`.
 */
enum sl_status sl_peak_read_gbps(struct sl_team *team, struct sl_signals *signals, size_t *bytes_out, double *gbps_out,
                                 struct sl_error *err);
