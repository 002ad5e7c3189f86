// SPDX-License-Identifier: Apache-2.0
// Purpose: bounds of this machine that no kernel can pass: arithmetic from registers, and reading memory.
#ifndef SL_BENCH_PEAK_H
#define SL_BENCH_PEAK_H

#include "base/team.h"

// f32 multiply-adds from registers alone on every member of the team, GFLOP/s; best of a few. 0: not known here.
double sl_peak_gflops(struct sl_team *team);

// Reading a buffer far larger than the caches with every member of the team, GB/s (1e9); best of a few.
// SL_ERR_EXHAUSTED: no memory for the buffer.
enum sl_status sl_peak_read_gbps(struct sl_team *team, double *gbps_out, struct sl_error *err);

#endif
