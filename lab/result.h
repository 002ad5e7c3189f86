// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: results with their references: every figure is printed with a bound of this machine or an alternative.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// One line of a result: a value and its reference (reference NULL: none).
struct sl_bench_result {
    const char *bench; // "engine"
    const char *test;  // "prefill 2048 tokens, models/demo"
    double value;
    const char *unit;       // "tokens/s"
    const char *reference;  // "GEMM peak"
    double reference_value; // in the unit of ratio_value
    double ratio_value;     // value, expressed in the unit of reference_value; 0: it is in this unit
    double paired_ratio;    // if value and reference alternated; 0: ratio_value / reference_value
    double aim;             // least ratio to reach; 0: no aim
    bool as_factor;         // print ratio and aim as factors, not as percentages
};

// Prints a table row, or one JSON object per line: bench, case, value, unit; with a reference also its name, value
// and the ratio; with an aim also the aim and whether it was reached.
void sl_bench_print(const struct sl_bench_result *result, bool json);

// Prints a value without a reference.
void sl_bench_print_value(const char *bench, const char *test, double value, const char *unit, bool json);

// Prints a result's value in one of several runs that take turns with others, when it is measured. Its reference is left
// out. Runs count from 1.
void sl_bench_print_run(struct sl_bench_result result, int64_t run, double value, bool json);

// Prints n values that alternated with their references: medians, and the median of the pairs' own ratios.
void sl_bench_print_turns(struct sl_bench_result result, const double *values, const double *references, size_t n,
                          bool json);
#define SL_BENCH_MAX_TURNS 128

// Prints a progress line on standard error, only if that is a terminal; the next one overwrites it. NULL clears it.
void sl_bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Returns the median; sorts the array.
double sl_bench_median(double *values, size_t n);

// Sorts the array and returns the value that `share` of n do not exceed (nearest rank); 0: n is 0.
double sl_bench_percentile(double *values, size_t n, double share);

// Returns a number of a process's status in /proc, such as "VmRSS", in KiB, or "Threads". Negative: it has none.
double sl_bench_process_status(pid_t pid, const char *name);
