// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: counters over all jobs, and over each tenant's.
 * Threads: any; counting takes no lock.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum sl_total {
    SL_TOTAL_READ_TOKENS,   // of prompts, also those that decode workers read after a session
    SL_TOTAL_OUTPUT_TOKENS, // that clients were sent
    SL_TOTAL_CAPSULE_BYTES, // of capsules that arrived at decode workers,
    SL_TOTAL_FULL_BYTES,    // and what the same prompts take in f16 without compression
    SL_TOTAL_FIRST_TOKENS,  // jobs that got so far,
    SL_TOTAL_FIRST_US,      // and how long all of them took for it
    SL_N_TOTALS,
};

struct sl_totals {
    _Atomic int64_t of[SL_N_TOTALS];
};
