// SPDX-License-Identifier: Apache-2.0
// Purpose: programs that only choose one of several commands: `sluice`, `sluice doc`, `sluice eval`, `sluice bench`.
#pragma once

#include <stddef.h>

#include "base/options/describe.h"

struct sl_subcommands {
    const char *name, *word; // "sluice eval", "evaluation"
    const char *summary;     // for --describe
    const char *head, *tail; // of the help, before the rows and after them
    int width;               // of the rows' names
    const struct sl_subcommand *list;
    size_t n;
};

// Runs the command that argv[1] names, or prints the help, or the description of the commands. Returns the exit code.
int sl_subcommands_run(const struct sl_subcommands *commands, int argc, char **argv);
