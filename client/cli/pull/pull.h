// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the commands that pull models, and list them. See client/cli/tool.h.
 * Design: base/model_place.h finds the folders; a folder made here contains the model, its license and an origin.json
 *         (folder.h).
 */
#pragma once

int sl_command_pull(int argc, char **argv);
int sl_command_models(int argc, char **argv);
