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
