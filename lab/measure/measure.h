// SPDX-License-Identifier: Apache-2.0
// Purpose: commands that inspect a model or a capsule in this process. They return an exit code (client/cli/tool.h).
#pragma once

int sl_command_inspect(int argc, char **argv);
int sl_command_profile(int argc, char **argv);

int sl_command_eval(int argc, char **argv); // finds one of the next three and runs it
int sl_command_eval_fidelity(int argc, char **argv);
int sl_command_eval_perplexity(int argc, char **argv);
int sl_command_eval_weights(int argc, char **argv);
