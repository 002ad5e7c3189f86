// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: describes programs, their commands and options for the generators of man pages and completions
 *          (tools/reference.py): one JSON object on standard output, if SL_DESCRIBE is the only argument. --help does
 *          not show it.
 */
#pragma once

#include <stdbool.h>

#include "base/options/config.h"

#define SL_DESCRIBE "--describe"

// Returns true if the command line asks for the description.
bool sl_describe_asked(int argc, char **argv);

// Prints {"name": .., "usage": .., "summary": .., "epilog": .., "options": [{"name": .., "letter": .., "metavar": ..,
// "default": .., "help": .., "list": .., "variable": ..}]}; variable: of the environment, if the option is read from
// there.
void sl_describe_program(const struct sl_program *program);

struct sl_subcommand {
    const char *name, *summary;
    int (*run)(int argc, char **argv); // argv[0] is the name
};

// Prints {"name": .., "summary": .., "commands": [{"name": .., "summary": ..}]} for a program that only dispatches
// commands.
void sl_describe_commands(const char *name, const char *summary, const struct sl_subcommand *list, size_t n);
