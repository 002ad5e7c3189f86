// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tasks of published benchmarks: how each is asked, how much may be written, and how that is judged.
 *
 * Design: prompts are of our own and short; who wants a benchmark's own words puts them into the plan. Metrics and lengths
 *         are those of its authors.
 */
#pragma once

#include <stdbool.h>

struct sl_benchmark_task {
    const char *format; // "longbench"
    const char *name;   // "hotpotqa": as its file is called
    const char *prompt; // {context}, {input} and {options} are put in
    const char *metric; // NULL: not one that we have; `prompt` says why
    int max_new_tokens;
    bool first_line;
};

// NULL: no such task. A name that ends in "_e" (LongBench-E) is that of the task without.
const struct sl_benchmark_task *sl_benchmark_find(const char *format, const char *name);
