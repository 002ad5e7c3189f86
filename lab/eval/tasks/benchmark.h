// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tasks of published benchmarks: the prompt of each, the length of its answer, and its metric.
 *
 * Design: prompts are our own and short; a plan can contain a benchmark's original prompt. Metrics and lengths are
 *         those of its authors.
 */
#pragma once

#include <stdbool.h>

struct sl_benchmark_task {
    const char *format; // "longbench"
    const char *name;   // "hotpotqa": as its file is called
    const char *prompt; // {context}, {input} and {options} are put in
    const char *metric; // NULL: unsupported; `prompt` has the reason
    int max_new_tokens;
    bool first_line;
};

// Returns a task; NULL if there is none. A name that ends in "_e" (LongBench-E) means the task without it.
const struct sl_benchmark_task *sl_benchmark_find(const char *format, const char *name);
