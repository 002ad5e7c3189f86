// SPDX-License-Identifier: Apache-2.0
// Purpose: bounds of this machine that no kernel can pass: arithmetic from registers, and reading memory.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/team.h"

/*
 * The instructions that a tier multiplies with, from registers alone on every member of the team: GFLOP/s, best of a
 * few; what_out names them. `bf16`: those for products that may round to bf16, where the tier has others for these.
 * The tier must be one that this processor runs (sl_ops_select()). 0: not known.
 */
double sl_peak_gflops(struct sl_team *team, const char *tier, bool bf16, const char **what_out);

/*
 * A plain sum over a buffer by every member of the team, GB/s (1e9); best of several. The buffer is far larger than most
 * caches: *bytes_out, 2 GiB, or a quarter of the memory that is free where that is less.
 * SL_ERR_EXHAUSTED: no memory for the buffer.
 */
enum sl_status sl_peak_read_gbps(struct sl_team *team, size_t *bytes_out, double *gbps_out, struct sl_error *err);
