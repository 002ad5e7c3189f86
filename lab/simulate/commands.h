// SPDX-License-Identifier: Apache-2.0
// Purpose: the commands of this folder. They return an exit code (client/cli/tool.h).
#pragma once

int sl_command_simulate(int argc, char **argv);
int sl_command_plan(int argc, char **argv);
