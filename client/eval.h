// SPDX-License-Identifier: Apache-2.0
// Purpose: the evaluations behind `sluice eval`. argv[0] is the evaluation's name. Return an exit code (client/tool.h).
#ifndef SL_CLIENT_EVAL_H
#define SL_CLIENT_EVAL_H

int sl_command_eval_fidelity(int argc, char **argv);
int sl_command_eval_grid(int argc, char **argv);
int sl_command_eval_make(int argc, char **argv);
int sl_command_eval_perplexity(int argc, char **argv);
int sl_command_eval_rps(int argc, char **argv);
int sl_command_eval_suites(int argc, char **argv);
int sl_command_eval_weights(int argc, char **argv);

#endif
