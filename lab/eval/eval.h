// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval` and its evaluations. argv[0] is the evaluation's name. Functions return an exit code
// (client/cli/tool.h).
#pragma once

int sl_command_eval(int argc, char **argv); // finds the evaluation and runs it

int sl_command_eval_grid(int argc, char **argv);
int sl_command_eval_make(int argc, char **argv);
int sl_command_eval_suites(int argc, char **argv);
