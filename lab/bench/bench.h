// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the benches.
 *
 * To add one: a struct sl_bench here, its file in CMakeLists.txt, a row in the table of bench_table.c.
 */
#pragma once

#include "base/options/config.h"

struct sl_bench {
    const char *name, *usage, *summary; // as in struct sl_program
    const struct sl_option *options;
    size_t n_options;
    size_t bytes; // size of its state, which begins with its options; the rest is zeroed
    // Offset of its struct sl_signals, which takes SIGINT and SIGTERM while it runs; 0: they end the process.
    size_t signals;
    // Checks what the table of options cannot express; or NULL.
    enum sl_status (*check)(void *bench, struct sl_error *err);
    enum sl_status (*run)(void *bench, struct sl_error *err);
};

// `sluice bench`: finds the bench in the table of bench_table.c and runs it. argv[0] is "bench". Returns the exit
// status.
int sl_bench_main(int argc, char **argv);

extern const struct sl_bench sl_bench_cells, sl_bench_compress, sl_bench_decode, sl_bench_engine, sl_bench_group,
    sl_bench_kernels, sl_bench_memory, sl_bench_mixed, sl_bench_retrieve, sl_bench_ship, sl_bench_ttft;
