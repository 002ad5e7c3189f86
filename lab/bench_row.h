// SPDX-License-Identifier: Apache-2.0
// Purpose: a bench, as the table of `sluice bench` has it (lab/bench/bench.h).
#pragma once

#include <stdbool.h>

#include "base/options/config.h"

struct sl_bench {
    const char *name, *usage, *summary; // as in struct sl_program
    const struct sl_option *options;
    size_t n_options;
    size_t bytes;   // size of its state, which begins with its options; the rest is zeroed
    size_t signals; // offset of its struct sl_signals: SIGINT, SIGTERM and the end of --time-limit stop it
    bool counts;    // nothing is timed: CPU steal does not matter
    // Checks what the table of options cannot express; or NULL.
    enum sl_status (*check)(void *bench, struct sl_error *err);
    enum sl_status (*run)(void *bench, struct sl_error *err);
};

// Defines sl_bench_ID of a file whose state is a struct bench with `signals`, whose options are option_table[], and which has
// run(). More members follow.
#define SL_BENCH(id, usage_, summary_, ...)                                                                            \
    const struct sl_bench sl_bench_##id = {.name = "sluice bench " #id,                                                \
                                           .usage = (usage_),                                                          \
                                           .summary = (summary_),                                                      \
                                           SL_OPTIONS(option_table),                                                   \
                                           .bytes = sizeof(struct bench),                                              \
                                           .signals = offsetof(struct bench, signals),                                 \
                                           .run = run,                                                                 \
                                           __VA_ARGS__}
