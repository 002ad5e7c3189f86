// SPDX-License-Identifier: Apache-2.0
// Purpose: what `sluice bench coordinator` starts, rows of the table of benches: `jobs`, its clients, and `waiting`, workers that speak
// the whole protocol, compute nothing and only wait, so that the coordinator is what is measured.
#pragma once

#include "lab/bench_row.h"

extern const struct sl_bench sl_bench_jobs, sl_bench_waiting;
