// SPDX-License-Identifier: Apache-2.0
// Purpose: the command that trains. Returns an exit code (cli/tool.h).
#ifndef SL_LAB_TRAIN_TRAIN_H
#define SL_LAB_TRAIN_TRAIN_H

int sl_command_train_heads(int argc, char **argv);

#endif
