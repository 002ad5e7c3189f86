// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice chat`. See chat.h.
#pragma once

int sl_command_chat(int argc, char **argv);
