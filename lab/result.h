// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: results that say what they are measured against: every figure stands beside a bound of this machine or beside
 *          the alternative.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

// One line of a result: a value and what it is compared with (reference NULL: nothing).
struct sl_bench_result {
    const char *bench; // "engine"
    const char *test;  // "prefill 2048 tokens, models/demo"
    double value;
    const char *unit;       // "tokens/s"
    const char *reference;  // "GEMM peak"
    double reference_value; // in the unit of ratio_value
    double ratio_value;     // value, expressed in the unit of reference_value; 0: it is in this unit
    double paired_ratio;    // where value and reference were taken by turns; 0: ratio_value / reference_value
    double aim;             // what the ratio should at least be; 0: nobody said
    bool as_factor;         // print ratio and aim as factors, not as percentages
};

// Print as a table row, or as one JSON object a line: bench, case, value, unit, and with a
// reference its name, value and the ratio, with an aim that too and whether it was reached.
void sl_bench_print(const struct sl_bench_result *result, bool json);

// The same, of n values that were taken by turns with their references: medians, and the median of the turns' own ratios.
void sl_bench_print_turns(struct sl_bench_result result, const double *values, const double *references, size_t n,
                          bool json);
#define SL_BENCH_MAX_TURNS 128

// A progress line on standard error, only when that is a terminal; overwritten by the next one. NULL clears it.
void sl_bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Middle value; sorts the array.
double sl_bench_median(double *values, size_t n);

int sl_bench_ascending(const void *a, const void *b); // of doubles, for qsort()
