// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice bench store`, a row of the table of benches.
#pragma once

#include "lab/bench_row.h"

extern const struct sl_bench sl_bench_store;
