// SPDX-License-Identifier: Apache-2.0
// Purpose: how fast a store's index finds the longest stored prefix of a long prompt, and the memory that an entry takes.
#pragma once

#include "client/cli/tool.h"

struct sl_index_bench {
    struct sl_arena *arena; // of sessions that headers describe: address space alone
    int64_t n_entries;
    struct sl_signals *signals;
    bool json;
};

// Fills an index in this process and prints its memory an entry, and the rate of look-ups.
enum sl_status sl_index_bench_run(struct sl_index_bench *bench, struct sl_error *err);
