// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the commands that bring models here, and list them. See client/cli/tool.h.
 * Design: base/model_place.h says where they lie; a folder made here has besides the model its licence and an origin.json (folder.h).
 */
#pragma once

int sl_command_pull(int argc, char **argv);
int sl_command_models(int argc, char **argv);
