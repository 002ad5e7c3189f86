// SPDX-License-Identifier: Apache-2.0
// Purpose: the command that trains. Returns an exit code (client/cli/tool.h).
#pragma once

int sl_command_train_heads(int argc, char **argv);
