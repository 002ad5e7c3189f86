// SPDX-License-Identifier: Apache-2.0
// Purpose: the commands that look into a model or a capsule in this process. Return an exit code (client/cli/tool.h).
#pragma once

int sl_command_inspect(int argc, char **argv);
int sl_command_profile(int argc, char **argv);

// Of `sluice eval` (lab/eval/eval.h).
int sl_command_eval_fidelity(int argc, char **argv);
int sl_command_eval_perplexity(int argc, char **argv);
int sl_command_eval_weights(int argc, char **argv);
