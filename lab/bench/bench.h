// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the benches.
 *
 * Design: the table adds --time-limit to the options of each: when it has passed, the bench gets SIGTERM, keeps the
 *         rows that it has printed, and succeeds. A bench prints every row when it is measured, and runs of a row
 *         that takes turns with others by sl_bench_print_run(). The last line says the CPU steal.
 *
 * To add one: a struct sl_bench here, its file in CMakeLists.txt, a row in the table of bench_table.c.
 */
#pragma once

#include <stdbool.h>

#include "client/cli/tool.h"
#include "lab/bench_row.h"

// `sluice bench`: finds the bench in the table of bench_table.c and runs it. argv[0] is "bench". Returns the exit
// status.
int sl_bench_main(int argc, char **argv);

// Runs a bench with these options; argv[0] is its name. Returns the exit status.
int sl_bench_run(const struct sl_bench *bench, int argc, char **argv);

// Waits for a line on standard input. False: it has ended, because the program that paces the bench has finished, or a signal
// has come.
bool sl_bench_wait_for_line(const struct sl_signals *signals);

// Returns the bytes a second of ships over this transport between two processes, which it forks; 0: they failed, and
// have printed why.
double sl_bench_ship_rate(const char *transport);

extern const struct sl_bench sl_bench_calibrate, sl_bench_cells, sl_bench_decode, sl_bench_engine, sl_bench_evict,
    sl_bench_kernels, sl_bench_memory, sl_bench_ships, sl_bench_tiers;
