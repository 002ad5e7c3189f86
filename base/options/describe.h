// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what programs and their commands take, for those who make man pages and completions of it (tools/reference.py): one JSON object on
 *          standard output, for the only word SL_DESCRIBE. It is not in --help.
 */
#pragma once

#include <stdbool.h>

#include "base/options/config.h"

#define SL_DESCRIBE "--describe"

// Whether that is what a command line asks for.
bool sl_describe_asked(int argc, char **argv);

// {"name": .., "usage": .., "summary": .., "epilog": .., "options": [{"name": .., "letter": .., "metavar": .., "default": .., "help": ..,
// "list": .., "variable": ..}]}; variable: of the environment, where it is taken from there.
void sl_describe_program(const struct sl_program *program);

// {"name": .., "summary": .., "commands": [{"name": .., "summary": ..}]}: of what only finds a command. Row i of `table`, false at its end.
void sl_describe_commands(const char *name, const char *summary,
                          bool (*row_fn)(size_t i, const char **name_out, const char **summary_out));
