// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the benches.
 *
 * To add one: an entry function here, its file in CMakeLists.txt, a row in the table of bench_table.c.
 */
#ifndef SL_LAB_BENCH_BENCH_H
#define SL_LAB_BENCH_BENCH_H

// `sluice bench`: find the bench in the table of bench_table.c and run it. argv[0] is "bench".
int sl_bench_main(int argc, char **argv);

// Entry points: argv[0] is the bench's name. Return the exit status.
int sl_bench_ask(int argc, char **argv);
int sl_bench_cells(int argc, char **argv);
int sl_bench_compress(int argc, char **argv);
int sl_bench_decode(int argc, char **argv);
int sl_bench_engine(int argc, char **argv);
int sl_bench_mixed(int argc, char **argv);
int sl_bench_retrieve(int argc, char **argv);
int sl_bench_ship(int argc, char **argv);
int sl_bench_ttft(int argc, char **argv);

#endif
