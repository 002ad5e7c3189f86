// SPDX-License-Identifier: Apache-2.0
// Purpose: the command that plans a cluster. Returns an exit code (client/cli/tool.h).
#pragma once

int sl_command_plan(int argc, char **argv);
